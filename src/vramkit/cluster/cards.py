"""The cards of this node, and how much of their memory a cluster's scheduler may give out."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec

from vramkit.host.available import bounds
from vramkit.host.limits import ROOT
from vramkit.report.units import bytes_text
from vramkit.share import paths
from vramkit.share.connect import settings_in_use
from vramkit.share.settings import ShareSettings, card_budget, changed

MIB = 1 << 20
PROBE_SECONDS = 30.0


class Card(msgspec.Struct, frozen=True):
    """Bytes. `announced` is the budget that programs share, times the oversubscription."""

    uuid: str
    total: int
    budget: int
    announced: int

    @staticmethod
    def of(uuid: str, total: int, settings: ShareSettings) -> Card:
        budget = card_budget(settings, uuid, total)
        return Card(uuid, total, budget, int(budget * settings.oversubscription))


def find_cards() -> list[tuple[str, int]]:
    """UUID and bytes of the cards of the driver that VRAMKIT_DRIVER chooses.

    Takes no memory of them. Raises DriverNotFoundError or DriverError.
    """
    from vramkit import driver

    opened = driver.open()
    devices = [opened.device(ordinal) for ordinal in range(opened.device_count())]
    return [(device.uuid, device.total_memory) for device in devices]


def cards_here(settings: ShareSettings) -> list[Card]:
    """Raises DriverNotFoundError or DriverError."""
    return [Card.of(uuid, total, settings) for uuid, total in find_cards()]


def host_shortage(cards: Iterable[Card], root: Path = ROOT) -> str:
    """Why this host may not hold what goes there when all that is announced is used; or nothing."""
    most = sum(card.announced - card.budget for card in cards)
    narrowest = min(bounds(root), default=None, key=lambda bound: bound.available)
    if narrowest is None or most <= narrowest.available:
        return ""
    return (
        f"up to {bytes_text(most)} of what is announced would be in host memory, of which "
        f"{bytes_text(max(0, narrowest.available))} are left: {narrowest.what}; where it ends, "
        "programs stay on the card and others wait. Lower `vramkit config oversubscription`"
    )


class Probe:
    """`find_cards` in a process of its own: one that has lost a card never sees it again.

    Raises OSError.
    """

    def __init__(self) -> None:
        self._stuck: subprocess.Popen[str] | None = None
        """In a call of a driver whose card is lost not even SIGKILL ends a process: it is not
        waited for, and there is one at most."""

    def __call__(self) -> list[tuple[str, int]]:
        if self._stuck is not None and self._stuck.poll() is None:
            raise OSError(f"process {self._stuck.pid} is still in a call of the driver")
        self._stuck = None
        command = [sys.executable, "-P", "-m", "vramkit.cluster.cards"]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)
        try:
            told, errors = process.communicate(timeout=PROBE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            for each in (process.stdout, process.stderr):
                if each is not None:
                    each.close()
            self._stuck = process
            raise OSError(f"the driver did not answer within {PROBE_SECONDS:g} s") from None
        if process.returncode != 0:
            raise OSError(" ".join(errors.split()[-40:]))
        return msgspec.json.decode(told, type=list[tuple[str, int]])


def settings_here(oversubscription: float | None = None) -> ShareSettings:
    """Those of this node's daemon, with another factor if one is given. Raises SettingError."""
    return announcing(settings_in_use(paths.chosen_socket()), oversubscription)


def announcing(settings: ShareSettings, oversubscription: float | None) -> ShareSettings:
    """With another factor, if one is given. Raises SettingError."""
    if oversubscription is None:
        return settings
    return changed(settings, "oversubscription", f"{oversubscription:g}")


if __name__ == "__main__":
    print(msgspec.json.encode(find_cards()).decode())
