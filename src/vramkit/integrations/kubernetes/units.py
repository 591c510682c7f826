"""Units of a card's memory: the devices that the kubelet counts. No I/O.

The kubelet counts devices by their ids, all of which are in one message of 4 MiB at most. Hence ids
are short: MiB of up to 186 GiB a node fit. Nodes that announce more count in larger units, and the
resource's name says in which.
"""

from __future__ import annotations

import hashlib
import string
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from vramkit.cluster.cards import MIB, Card

DOMAIN = "vramkit.dev"
DEFAULT_UNIT_MIB = 1
LARGEST_UNIT_MIB = 1024

# What gRPC takes without being told otherwise, which nobody tells the kubelet.
LARGEST_MESSAGE = 4 << 20
# Around an id: tags and lengths of the device and its two fields, and the longer health.
BYTES_AROUND_ID = 2 + 2 + 2 + len("Unhealthy")

# Of an id; allowed in it without an escape anywhere.
DIGITS = string.digits + string.ascii_lowercase + string.ascii_uppercase
TAG_LENGTH = 4


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

    @staticmethod
    def of(resource: str) -> Unit | None:
        """That of a resource's name; None: not one of ours."""
        units = (Unit(1 << power) for power in range(LARGEST_UNIT_MIB.bit_length()))
        return next((unit for unit in units if unit.resource == resource), None)

    def ids(self, card: Card) -> list[str]:
        """The same ones whenever the plugin starts: the kubelet remembers which a pod has."""
        tag = card_tag(card.uuid)
        return [tag + _number(each) for each in range(card.announced // (self.mib * MIB))]

    def must_be_listable(self, cards: Collection[Card]) -> None:
        """Raises UnitError where the kubelet could not be told of all units."""
        if len({card_tag(card.uuid) for card in cards}) < len(cards):
            listed = ", ".join(card.uuid for card in cards)
            raise UnitError(f"two of the cards {listed} have the same {TAG_LENGTH} letters in ids")
        count, size = self._message(cards)
        if size > LARGEST_MESSAGE:
            raise UnitError(
                f"{count} units of {self.mib} MiB are a message of {size} bytes to the kubelet, "
                f"which takes {LARGEST_MESSAGE}; {self._larger(cards)}"
            )

    def _message(self, cards: Collection[Card]) -> tuple[int, int]:
        """The number of units, and the bytes of their list."""
        ids = [each for card in cards for each in self.ids(card)]
        return len(ids), sum(len(each) + BYTES_AROUND_ID for each in ids)

    def _larger(self, cards: Collection[Card]) -> str:
        mib = self.mib
        while (mib := 2 * mib) <= LARGEST_UNIT_MIB:
            if Unit(mib)._message(cards)[1] <= LARGEST_MESSAGE:
                return f"start the plugin with --unit={mib}MiB or more, the same on all nodes"
        return "lower the oversubscription"


def card_tag(uuid: str) -> str:
    """What ids have for their card."""
    value = int.from_bytes(hashlib.sha256(uuid.encode()).digest()[:8], "big")
    return _number(value % len(DIGITS) ** TAG_LENGTH).rjust(TAG_LENGTH, DIGITS[0])


def _number(value: int) -> str:
    digits = ""
    while True:
        value, digit = divmod(value, len(DIGITS))
        digits = DIGITS[digit] + digits
        if value == 0:
            return digits


def tag_of(identity: str) -> str:
    """The tag of an id's card. Raises UnitError."""
    if len(identity) <= TAG_LENGTH or not set(identity) <= set(DIGITS):
        raise UnitError(f"{identity!r} is no id of a unit of a card's memory")
    return identity[:TAG_LENGTH]


def prefer(available: Sequence[str], required: Collection[str], size: int) -> list[str]:
    """The units for a container: all of one card, the fullest that has enough of them left.

    The rest stays free for containers that need much. Where no card has enough, the kubelet gets
    units of several, and `Allocate` refuses them.
    """
    of_card: dict[str, list[str]] = {}
    for identity in available:
        of_card.setdefault(tag_of(identity), []).append(identity)
    wanted = {tag_of(each) for each in required}
    fitting = [
        (len(found), tag)
        for tag, found in of_card.items()
        if len(found) >= size and wanted <= {tag}
    ]
    order = of_card[min(fitting)[1]] if fitting else list(available)
    taken = set(required)
    return [*required, *(each for each in order if each not in taken)][:size]


def amount(ids: Collection[str], unit: Unit, cards: Iterable[Card]) -> tuple[Card, int]:
    """The card of a container's units, and the bytes that they are. Raises UnitError."""
    tags = {tag_of(each) for each in ids}
    if len(tags) != 1:
        raise UnitError(
            f"{len(ids)} units of {unit.mib} MiB are free on {len(tags)} cards together, and on "
            "none alone; a container's memory is on one card"
        )
    card = next((each for each in cards if card_tag(each.uuid) in tags), None)
    if card is None:
        raise UnitError(f"this node has no card whose units are {tags.pop()}...")
    nbytes = len(ids) * unit.mib * MIB
    if nbytes > card.budget:
        raise UnitError(
            f"{nbytes // MIB} MiB were asked for, and {card.uuid} has {card.budget // MIB} MiB for "
            "programs; a container cannot be larger than its card"
        )
    return card, nbytes
