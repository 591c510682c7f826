"""Where each group of weights lies on the card: resident, or in the ring.

The ring is memory that is mapped twice, one mapping behind the other, so that a group may begin
anywhere in it and still has contiguous addresses. The streamed groups of a pass lie behind each
other around the ring, and the ring's size is chosen so that the last one ends where the first
begins: every group keeps one address, and the next pass continues without a gap. With slots of one
layer that works only where the number of layers divides by the number of slots.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import NamedTuple

import msgspec

from vramkit.report.units import bytes_text

ALIGNMENT = 512
"""Of each group, as PyTorch aligns its tensors."""


MOST_OF_TWO = 1.25
"""How much larger than two layers a ring may be so that it closes with room for two."""


class Group(msgspec.Struct, frozen=True):
    """Weights that are copied and used together: `name` is "attn", "ffn" or another part of a
    layer."""

    layer: int
    name: str
    nbytes: int

    def __str__(self) -> str:
        return f"{self.layer}.{self.name}"


class BudgetError(ValueError):
    """The budget holds neither the weights nor a ring to stream them through."""


class Layout(msgspec.Struct, frozen=True):
    """Offsets by group: in the resident memory for residents, else in the ring."""

    groups: tuple[Group, ...]
    resident: tuple[bool, ...]
    offsets: tuple[int, ...]
    resident_bytes: int
    ring_bytes: int
    laps: int
    """How often the streamed groups of a pass go around the ring."""

    @property
    def streamed_bytes(self) -> int:
        pairs = zip(self.groups, self.resident, strict=True)
        return sum(group.nbytes for group, resident in pairs if not resident)

    @property
    def device_bytes(self) -> int:
        return self.resident_bytes + self.ring_bytes

    def share_bytes(self, one: int, other: int) -> bool:
        """Whether a copy of one of these groups overwrites the other."""
        if one == other:
            return True
        if self.resident[one] or self.resident[other]:
            return False
        distance = (self.offsets[other] - self.offsets[one]) % self.ring_bytes
        return (
            distance < self.groups[one].nbytes
            or self.ring_bytes - distance < self.groups[other].nbytes
        )


def plan_layout(
    groups: Sequence[Group],
    *,
    budget: int,
    ring: int | None = None,
    depth: int | None = None,
    prefer: Collection[int] = (),
    granularity: int = 2 << 20,
) -> Layout:
    """Lay groups, given in the order of their use, out in `budget` bytes of the card.

    All are resident if they fit. Else the ring takes at most `ring` bytes (default: two of the
    largest layer, with which a layer is copied while another one computes; a little more where
    layers are one group each and their number is odd), and residents take what is left, spaced
    evenly: with a run of residents the link would have nothing to do while they compute. Groups
    whose numbers are in `prefer` are resident before others. With a `depth`, so many layers beside
    the current one fit into the ring at once. Raises BudgetError.
    """
    if not groups:
        raise ValueError("there are no groups of weights to lay out")
    if ring is not None and depth is not None:
        raise ValueError("ring has no effect with a depth, which says how much must fit at once")
    for group in groups:
        if group.nbytes <= 0:
            raise ValueError(f"group {group} has {group.nbytes} bytes; it must have some")
    sizes = [_rounded(group.nbytes, ALIGNMENT) for group in groups]
    layers = _layer_sizes(groups, sizes)
    needs = _Needs(
        largest=_rounded(max(sizes), granularity),
        overlap=_rounded(2 * max(layers), granularity),
        whole=_rounded(sum(sizes), granularity),
    )
    if needs.whole <= budget:
        return _lay_out(groups, sizes, [True] * len(groups), 1, granularity)
    if depth is not None:
        return _for_depth(groups, sizes, prefer, _most(layers, depth + 1), budget, granularity)
    if ring is None and len(layers) == len(groups):
        # A layer that is one group is copied in time only where two of them have room.
        with suppress(BudgetError):
            layout = _for_depth(groups, sizes, prefer, _most(layers, 2), budget, granularity)
            if layout.ring_bytes <= MOST_OF_TWO * needs.overlap:
                return layout
    wanted = needs.overlap if ring is None else ring
    limit = min(wanted, budget) // granularity * granularity
    if limit < needs.largest:
        what = "budget" if ring is None or ring > budget else "ring"
        raise BudgetError(needs.refusal(what, min(wanted, budget), groups))
    resident = _spaced(sizes, prefer, (budget - limit) // granularity * granularity)
    streamed = _sum(sizes, resident, False)
    return _lay_out(groups, sizes, resident, -(-streamed // limit), granularity)


def _for_depth(
    groups: Sequence[Group],
    sizes: Sequence[int],
    prefer: Collection[int],
    least: int,
    budget: int,
    granularity: int,
) -> Layout:
    """The smallest ring that closes and has room for `least` bytes, residents beside it."""
    room = (budget - _rounded(least, granularity)) // granularity * granularity
    while room >= 0:
        resident = _spaced(sizes, prefer, room)
        laps = max(1, _sum(sizes, resident, False) // least)
        layout = _lay_out(groups, sizes, resident, laps, granularity)
        if layout.device_bytes <= budget:
            return layout
        room -= layout.device_bytes - budget
    raise BudgetError(
        f"budget is {bytes_text(budget)}; with this depth {bytes_text(least)} must be on the card "
        "at once, in a ring that the weights of a pass fill a whole number of times"
    )


class _Needs(NamedTuple):
    largest: int
    overlap: int
    whole: int

    def refusal(self, what: str, given: int, groups: Sequence[Group]) -> str:
        biggest = max(groups, key=lambda group: group.nbytes)
        rows = [
            (f"at least: a ring of the largest group, {biggest}", self.largest),
            ("copies beside compute: a ring of two layers", self.overlap),
            ("everything resident", self.whole),
        ]
        width = max(len(text) for text, _ in rows)
        table = "\n".join(f"  {text:<{width}}  {bytes_text(nbytes)}" for text, nbytes in rows)
        return f"{what} is {bytes_text(given)}, too little for these weights:\n{table}"


def _rounded(nbytes: int, multiple: int) -> int:
    return -(-nbytes // multiple) * multiple


def _layer_sizes(groups: Sequence[Group], sizes: Sequence[int]) -> list[int]:
    totals: dict[int, int] = {}
    for group, nbytes in zip(groups, sizes, strict=True):
        totals[group.layer] = totals.get(group.layer, 0) + nbytes
    return list(totals.values())


def _most(layers: Sequence[int], count: int) -> int:
    """The most bytes that so many layers in a row have, the first behind the last."""
    count = min(count, len(layers))
    around = [*layers, *layers]
    return max(sum(around[first : first + count]) for first in range(len(layers)))


def _sum(sizes: Sequence[int], resident: Sequence[bool], stays: bool) -> int:
    return sum(nbytes for nbytes, each in zip(sizes, resident, strict=True) if each is stays)


def _spaced(sizes: Sequence[int], prefer: Collection[int], room: int) -> list[bool]:
    """Residents of `room` bytes in all: those preferred, then others in even distances by bytes."""
    resident = [False] * len(sizes)

    def stays(index: int) -> bool:
        nonlocal room
        if resident[index] or sizes[index] > room:
            return False
        resident[index] = True
        room -= sizes[index]
        return True

    for index in prefer:
        stays(index)
    share = room / max(1, _sum(sizes, resident, False))
    owed = 0.0  # resident bytes that the groups so far should have had
    for index, nbytes in enumerate(sizes):
        if not resident[index]:
            owed += nbytes * share
            if owed >= nbytes / 2 and stays(index):
                owed -= nbytes
    # What is left holds more groups, the largest that fit.
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        stays(index)
    return resident


def _lay_out(
    groups: Sequence[Group],
    sizes: Sequence[int],
    resident: Sequence[bool],
    laps: int,
    granularity: int,
) -> Layout:
    streamed = _sum(sizes, resident, False)
    ring = _rounded(-(-streamed // laps), granularity)
    around = laps * ring
    flows = [nbytes for nbytes, stays in zip(sizes, resident, strict=True) if not stays]
    if flows and (largest := _rounded(max(flows), granularity)) > ring:
        # A ring that closes is too small for this group. The gap is then behind the last one.
        ring, around = largest, streamed
    stays_at = list(accumulate(n if stays else 0 for n, stays in zip(sizes, resident, strict=True)))
    return Layout(
        groups=tuple(groups),
        resident=tuple(resident),
        offsets=_offsets(sizes, resident, [0, *stays_at[:-1]], ring, around),
        resident_bytes=_rounded(stays_at[-1], granularity),
        ring_bytes=ring,
        laps=laps if ring else 0,
    )


def _offsets(
    sizes: Sequence[int],
    resident: Sequence[bool],
    stays_at: Sequence[int],
    ring: int,
    around: int,
) -> tuple[int, ...]:
    """Streamed groups lie behind each other, spread over `around` bytes of the ring in all."""
    streamed = _sum(sizes, resident, False)
    offsets = []
    flows_at = 0
    for number, nbytes in enumerate(sizes):
        if resident[number]:
            offsets.append(stays_at[number])
        else:
            # What rounding added is spread over all of them: in one place it would shift groups
            # against those of the lap before.
            offsets.append(flows_at * around // streamed // ALIGNMENT * ALIGNMENT % ring)
            flows_at += nbytes
    return tuple(offsets)


def lay_out_again(layout: Layout, resident: Sequence[bool]) -> Layout:
    """With other residents and the same ring, which must hold each of the other groups. Streamed
    groups lie elsewhere then."""
    sizes = [_rounded(group.nbytes, ALIGNMENT) for group in layout.groups]
    ring = layout.ring_bytes
    laps = -(-_sum(sizes, resident, False) // ring)
    changed = _sum(sizes, resident, True) - _sum(sizes, layout.resident, True)
    return msgspec.structs.replace(
        layout,
        resident=tuple(resident),
        offsets=_offsets(sizes, resident, layout.offsets, ring, laps * ring),
        resident_bytes=layout.resident_bytes + changed,
        laps=laps,
    )


def lay_out_beside(layout: Layout, number: int, used: Collection[int]) -> Layout:
    """With one resident in the ring, beside the groups there that are used now: all others stay
    where they are. If there is no room, it shares bytes with those."""
    resident = tuple(stays and each != number for each, stays in enumerate(layout.resident))
    ends = (layout.offsets[each] + layout.groups[each].nbytes for each in used)
    starts = (_rounded(end, ALIGNMENT) % layout.ring_bytes for end in ends)
    made = layout
    for offset in (0, *starts):
        offsets = (*layout.offsets[:number], offset, *layout.offsets[number + 1 :])
        made = msgspec.structs.replace(layout, resident=resident, offsets=offsets)
        if not any(made.share_bytes(number, each) for each in used):
            break
    return made
