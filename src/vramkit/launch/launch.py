"""What is to be run: a program, and what is put before it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vramkit.launch.errors import LaunchError


@dataclass(frozen=True)
class Launch:
    """A program with its arguments, and the library that it is to find first.

    `search_first` is a folder whose libraries are found before others of the same name; `preload`
    is a library that is loaded before all others. Children of the program inherit both.
    """

    program: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict)
    search_first: Path | None = None
    preload: Path | None = None

    def __post_init__(self) -> None:
        if isinstance(self.program, str) or not self.program:
            raise LaunchError(
                f"the program is {self.program!r}; it must be a list of at least one word, "
                'as in ["python", "my_program.py"]'
            )
        # The dynamic linker takes these characters for the end of a path, and offers no escape.
        for path, separators in ((self.search_first, ":;"), (self.preload, ": ")):
            if path is not None and any(mark in str(path) for mark in separators):
                raise LaunchError(
                    f"{path} cannot be put before a program: the dynamic linker allows none of "
                    f"{' '.join(map(repr, separators))} in a path"
                )

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """The program's environment: that of the caller, with what this launch adds."""
        result = {**base, **self.variables}
        for name, path in (("LD_LIBRARY_PATH", self.search_first), ("LD_PRELOAD", self.preload)):
            if path is not None:
                paths = [str(path), *filter(None, [base.get(name)])]
                result[name] = os.pathsep.join(paths)
        return result
