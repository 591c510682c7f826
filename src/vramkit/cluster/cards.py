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


def probe() -> list[tuple[str, int]]:
    """`find_cards` in a process of its own: one that has lost a card never sees it again.

    Raises OSError.
    """
    command = [sys.executable, "-P", "-m", "vramkit.cluster.cards"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise OSError(f"the driver did not answer within {PROBE_SECONDS:g} s") from None
    if done.returncode != 0:
        raise OSError(" ".join(done.stderr.split()[-40:]))
    return msgspec.json.decode(done.stdout, type=list[tuple[str, int]])


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
