"""Settings of an experiment: declared by it, given as NAME=VALUE."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Value = str | int | float | bool | list[str]
Settings = Mapping[str, Value]
NONE: Settings = {}

SWITCH = {"on": True, "yes": True, "true": True, "off": False, "no": False, "false": False}


@dataclass(frozen=True)
class Setting:
    """The type of the default is the type of the setting.

    `least` and `most` limit a number, `choices` a text. An int in `nbytes` is also read as text
    such as "24GiB".
    """

    name: str
    default: int | float | bool | str
    help: str
    least: float = 0
    most: float = math.inf
    choices: tuple[str, ...] = ()
    nbytes: bool = False

    def parse(self, text: str) -> int | float | bool | str:
        """Raises ValueError with what is allowed."""
        value = self._read(text)
        if value is None or not self._allows(value):
            raise ValueError(f"{self.name} is {text!r}; it may be {self.allowed}")
        return value

    def _allows(self, value: int | float | bool | str) -> bool:
        if isinstance(value, str):
            return not self.choices or value in self.choices
        return self.least <= value <= self.most

    @property
    def allowed(self) -> str:
        if isinstance(self.default, bool):
            return "on or off"
        if self.choices:
            return ", ".join(self.choices)
        if isinstance(self.default, str):
            return "a text"
        kind = "a whole number" if isinstance(self.default, int) else "a number"
        if self.nbytes:
            kind = 'a number of bytes, or text such as "24GiB",'
        if self.most == math.inf:
            return f"{kind} from {self.least:g} on"
        return f"{kind} from {self.least:g} to {self.most:g}"

    def _read(self, text: str) -> int | float | bool | str | None:
        """None for what is no value of the type."""
        if isinstance(self.default, bool):
            return SWITCH.get(text.lower())
        if isinstance(self.default, str):
            return text
        try:
            if self.nbytes:
                from vramkit.weights.budget import parse_bytes

                return parse_bytes(text, self.name)
            return int(text) if isinstance(self.default, int) else float(text)
        except ValueError:
            return None


def pairs(declared: Sequence[Setting], values: Settings) -> list[str]:
    """NAME=VALUE, for resolve(), of those that are not at their defaults."""
    return [
        f"{setting.name}={values[setting.name]}"
        for setting in declared
        if values[setting.name] != setting.default
    ]


def resolve(
    declared: Sequence[Setting], given: Sequence[str], before: Settings = NONE
) -> dict[str, Value]:
    """All settings by name: those given as NAME=VALUE, else as before, else their defaults.

    Raises ValueError.
    """
    by_name = {setting.name: setting for setting in declared}
    values = {name: before.get(name, setting.default) for name, setting in by_name.items()}
    for pair in given:
        name, equals, text = pair.partition("=")
        if not equals:
            raise ValueError(f"{pair!r} is no setting; it may be NAME=VALUE")
        if name not in by_name:
            known = ", ".join(by_name) or "none here"
            raise ValueError(f"no setting is called {name!r}; there are: {known}")
        values[name] = by_name[name].parse(text)
    return values
