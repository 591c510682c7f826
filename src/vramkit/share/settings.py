"""What `vramkit config` sets: names, values as people write them, and the file they are kept in."""

from __future__ import annotations

import ipaddress
import os
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from vramkit.share.policy import PolicySettings

ALL_CARDS = "all"
LARGEST_FILE = 64 << 10
DEFAULT_RESERVE = 2 << 30
# On small cards the reserve is a part of the total.
LARGEST_RESERVE_SHARE = 8
MOST_OVERSUBSCRIPTION = 16.0


class SettingError(ValueError):
    """An unknown setting, or a value that is not allowed."""


class ShareSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sizes in bytes, times in seconds; 0 bytes: no limit."""

    quantum: float | None = 30.0
    switch_share: float = 0.05
    policy: Literal["together", "exclusive"] = "together"
    patience: float = 10.0
    window: int = 64
    limit: int = 0
    host_limit: int = 0
    budget: dict[str, int] = {}
    reserve: int | None = None
    oversubscription: float = 1.0
    idle_exit: float = 600.0
    metrics_port: int = 0
    metrics_host: str = "127.0.0.1"
    admin_group: str = ""
    max_weight: float = 1.0
    max_priority: int = 0

    def for_policy(self) -> PolicySettings:
        return PolicySettings(
            quantum=self.quantum,
            switch_share=self.switch_share,
            patience=self.patience,
            policy=self.policy,
        )


def _seconds(least: float, most: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|min|h)?\s*", text)
        scale = {"ms": 0.001, "min": 60.0, "h": 3600.0}
        value = float(match[1]) * scale.get(match[2] or "s", 1.0) if match else -1.0
        if not least <= value <= most:
            raise ValueError(f'{least:g} s to {most:g} s, such as "2.5", "500ms" or "10min"')
        return value

    return parse


def _quantum(text: str) -> float | None:
    if text == "adaptive":
        return None
    try:
        return _seconds(0.05, 86400)(text)
    except ValueError as error:
        raise ValueError(f'{error}, or "adaptive"') from None


def _bytes(text: str) -> int:
    from vramkit.weights.budget import parse_bytes

    if text in ("0", "none"):
        return 0
    try:
        return parse_bytes(text, "it")
    except ValueError:
        raise ValueError('bytes, text such as "24GiB" or "800MB", or "none"') from None


def _reserve(text: str) -> int | None:
    return None if text == "default" else _bytes(text)


def _share(text: str) -> float:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%?)\s*", text)
    value = float(match[1]) * (0.01 if match[2] else 1.0) if match else 0.0
    if not 0 < value <= 0.5:
        raise ValueError('more than 0 and at most 50 %, such as "5%"')
    return value


def _factor(text: str) -> float:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*", text)
    value = float(match[1]) if match else 0.0
    if not 1 <= value <= MOST_OVERSUBSCRIPTION:
        raise ValueError(f'1 to {MOST_OVERSUBSCRIPTION:g}, such as "1.5"')
    return value


def _count(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"\d{1,10}", text) or not least <= int(text) <= most:
            raise ValueError(f"{least} to {most}")
        return int(text)

    return parse


def _weight(text: str) -> float:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*", text)
    value = float(match[1]) if match else 0.0
    if not 0.001 <= value <= 1000:
        raise ValueError('0.001 to 1000, such as "2"')
    return value


def _priority(text: str) -> int:
    if not re.fullmatch(r"-?\d{1,4}", text) or not -1000 <= int(text) <= 1000:
        raise ValueError("-1000 to 1000")
    return int(text)


def _policy(text: str) -> str:
    if text not in ("together", "exclusive"):
        raise ValueError('"together" or "exclusive"')
    return text


def _address(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise ValueError("an address of this machine, or 0.0.0.0 for all of them") from None


def _group(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.-]{0,32}", text):
        raise ValueError("the name of a group")
    return text


@dataclass(frozen=True)
class Setting:
    """`parse` raises ValueError with what is allowed. `note`: what it does."""

    parse: Callable[[str], Any]
    note: str


SETTINGS = {
    "quantum": Setting(_quantum, "how long a turn lasts while others wait"),
    "switch_share": Setting(_share, "adaptive quantum: the part of the time that switches take"),
    "policy": Setting(_policy, "together: who fits runs; exclusive: one program a card"),
    "patience": Setting(_seconds(0.1, 3600), "how long a program may take to stop"),
    "window": Setting(_count(1, 100_000), "launches in flight; of programs started from now on"),
    "limit": Setting(_bytes, "the most memory of a card for a program without --memory"),
    "host_limit": Setting(
        _bytes, "pinned host memory of a program for each card; of those started from now on"
    ),
    "budget": Setting(_bytes, "memory of a card for programs; without one: total less reserve"),
    "reserve": Setting(_reserve, "what is kept of a card for contexts and modules"),
    "oversubscription": Setting(
        _factor, "budgets times this are what a node announces to Ray or Kubernetes"
    ),
    "idle_exit": Setting(
        _seconds(0.1, 10**7), "the daemon ends when nobody was there for that long"
    ),
    "metrics_port": Setting(_count(0, 65535), "Prometheus metrics; 0: none"),
    "metrics_host": Setting(_address, "the address of the metrics; 0.0.0.0: who can reach this"),
    "admin_group": Setting(_group, "who may configure a system-wide daemon, beside root"),
    "max_weight": Setting(
        _weight, "of programs in a system-wide daemon whose user may not configure it"
    ),
    "max_priority": Setting(
        _priority, "of programs in a system-wide daemon whose user may not configure it"
    ),
}


def changed(settings: ShareSettings, name: str, text: str, card: str = ALL_CARDS) -> ShareSettings:
    """The settings with one value set from text. Raises SettingError."""
    name = name.replace("-", "_")
    setting = SETTINGS.get(name)
    if setting is None:
        raise SettingError(f"there is no setting {name}; there are {', '.join(SETTINGS)}")
    try:
        value = setting.parse(text)
    except ValueError as error:
        raise SettingError(f"{name} is {text!r}; it may be {error}") from None
    if name == "budget":
        budgets = {each: size for each, size in settings.budget.items() if each != card}
        return msgspec.structs.replace(settings, budget=budgets | ({card: value} if value else {}))
    if card != ALL_CARDS:
        raise SettingError(f"{name} holds for all cards; only budget can be set for one")
    return msgspec.structs.replace(settings, **{name: value})


def card_budget(settings: ShareSettings, uuid: str, total: int, others: int = 0) -> int:
    """Bytes of a card that programs may use together. `others`: what programs not ours use."""
    budget = settings.budget.get(uuid, settings.budget.get(ALL_CARDS))
    if budget is None:
        reserve = settings.reserve
        if reserve is None:
            reserve = min(DEFAULT_RESERVE, total // LARGEST_RESERVE_SHARE)
        budget = total - reserve - others
    return min(max(budget, 0), total)


def read_settings(path: Path) -> ShareSettings:
    """Raises SettingError for a file that cannot be used; without one: the defaults."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise SettingError(f"{path} is larger than {LARGEST_FILE} bytes")
        return msgspec.json.decode(path.read_bytes(), type=ShareSettings)
    except FileNotFoundError:
        return ShareSettings()
    except (msgspec.DecodeError, OSError) as error:
        raise SettingError(f"{path} cannot be used: {error}; correct or remove it") from error


def write_settings(path: Path, settings: ShareSettings) -> None:
    """Whole or not at all. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".share-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(settings), indent=2) + b"\n")
        os.replace(name, path)
    except OSError:
        os.unlink(name)
        raise
