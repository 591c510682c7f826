"""Units of a card's memory: the devices that the kubelet counts. No I/O.

The kubelet counts devices by their ids, all of which are in one message. At 1 MiB a unit, 140 GiB
would be 143,360 ids of some 62 bytes: 8.9 MB, twice what gRPC takes. So the unit is a setting, and
the resource's name says it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from vramkit.cluster.cards import MIB, Card

DOMAIN = "vramkit.dev"
DEFAULT_UNIT_MIB = 256
LARGEST_UNIT_MIB = 1024

# What gRPC takes without being told otherwise, which nobody tells the kubelet.
LARGEST_MESSAGE = 4 << 20
# Around an id: tags and lengths of the device and its two fields, and the longer health.
BYTES_AROUND_ID = 2 + 2 + 2 + len("Unhealthy")


class UnitError(ValueError):
    """A unit, or a set of ids, that cannot be used; the text says why."""


@dataclass(frozen=True)
class Unit:
    """A power of two of MiB. Raises UnitError."""

    mib: int = DEFAULT_UNIT_MIB

    def __post_init__(self) -> None:
        if not 1 <= self.mib <= LARGEST_UNIT_MIB or self.mib & (self.mib - 1):
            raise UnitError(
                f"the unit is {self.mib} MiB; it may be 1 to {LARGEST_UNIT_MIB} MiB, a power of two"
            )

    @property
    def resource(self) -> str:
        """vram-mib, vram-256mib, vram-gib, ..."""
        name = "gib" if self.mib == 1024 else "mib" if self.mib == 1 else f"{self.mib}mib"
        return f"{DOMAIN}/vram-{name}"

    def ids(self, card: Card) -> list[str]:
        return [f"{card.uuid}-{number}" for number in range(card.announced // (self.mib * MIB))]

    def must_fit_message(self, cards: Iterable[Card]) -> None:
        """Raises UnitError where the kubelet could not be told of all units."""
        ids = [each for card in cards for each in self.ids(card)]
        size = sum(len(each) + BYTES_AROUND_ID for each in ids)
        if size > LARGEST_MESSAGE:
            raise UnitError(
                f"{len(ids)} units of {self.mib} MiB are a message of {size} bytes to the kubelet, "
                f"which takes {LARGEST_MESSAGE}; choose a larger unit"
            )


def card_of(identity: str) -> str:
    """The UUID of an id's card. Raises UnitError."""
    uuid, dash, number = identity.rpartition("-")
    if not dash or not number.isdecimal():
        raise UnitError(f"{identity!r} is no id of a unit of a card's memory")
    return uuid


def prefer(available: Sequence[str], required: Collection[str], size: int) -> list[str]:
    """The units for a container: all of one card, the fullest that has enough of them left.

    The rest stays free for containers that need much. Where no card has enough, the kubelet gets
    units of several, and `Allocate` refuses them.
    """
    of_card: dict[str, list[str]] = {}
    for identity in available:
        of_card.setdefault(card_of(identity), []).append(identity)
    wanted = {card_of(each) for each in required}
    fitting = [
        (len(found), uuid)
        for uuid, found in of_card.items()
        if len(found) >= size and wanted <= {uuid}
    ]
    order = of_card[min(fitting)[1]] if fitting else list(available)
    chosen = list(required)
    chosen += [each for each in order if each not in set(required)]
    return chosen[:size]


def amount(ids: Collection[str], unit: Unit, cards: Iterable[Card]) -> tuple[Card, int]:
    """The card of a container's units, and the bytes that they are. Raises UnitError."""
    uuids = sorted({card_of(each) for each in ids})
    if len(uuids) != 1:
        raise UnitError(
            f"{len(ids)} units of {unit.mib} MiB are free on {len(uuids)} cards together, and on "
            "none alone; a container's memory is on one card"
        )
    card = next((each for each in cards if each.uuid == uuids[0]), None)
    if card is None:
        raise UnitError(f"this node has no card {uuids[0]}")
    nbytes = len(ids) * unit.mib * MIB
    if nbytes > card.budget:
        raise UnitError(
            f"{nbytes // MIB} MiB were asked for, and {card.uuid} has {card.budget // MIB} MiB for "
            "programs; a container cannot be larger than its card"
        )
    return card, nbytes
