"""The bytes of a snapshot added up: by state, size class, stream and stack."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar

import msgspec

from vramkit.pool.snapshot import Block, Snapshot

Key = TypeVar("Key", bound=Hashable)


class Sum(msgspec.Struct):
    """Bytes by state; `asked` is the part of `live` that was asked for, the rest is rounding."""

    live: int = 0
    cached: int = 0
    waiting: int = 0
    idle: int = 0
    rest: int = 0
    asked: int = 0
    blocks: int = 0

    @property
    def total(self) -> int:
        return self.live + self.cached + self.waiting + self.idle + self.rest

    def add(self, block: Block) -> None:
        setattr(self, block.state, getattr(self, block.state) + block.bytes)
        self.asked += block.asked
        self.blocks += 1


class StackSum(msgspec.Struct, frozen=True):
    """Live blocks with the same stack; no frames: blocks without a known stack."""

    frames: tuple[str, ...]
    live: int
    asked: int
    blocks: int


def by_state(snapshot: Snapshot) -> Sum:
    """All memory of the pool.

    Memory without a block is "rest" inside a slab (its end, too short for one more block), and idle
    elsewhere.
    """
    everything = _total(snapshot.blocks)
    mapped = sum(extent.bytes for extent in snapshot.extents)
    slabs = sum(slab.bytes for slab in snapshot.slabs)
    in_slabs = sum(block.bytes for block in _blocks_in_slabs(snapshot))
    everything.rest = slabs - in_slabs
    everything.idle += mapped - slabs - (everything.total - everything.rest - in_slabs)
    return everything


def by_class(snapshot: Snapshot, most: int = 24) -> list[tuple[str, Sum]]:
    """Blocks by their size; by doublings of it if there were more than `most` rows."""
    from vramkit.report.units import bytes_text

    sizes = _grouped(snapshot.blocks, lambda block: block.bytes)
    if len(sizes) <= most:
        return [(bytes_text(size), sizes[size]) for size in sorted(sizes)]
    doublings = _grouped(snapshot.blocks, lambda block: block.bytes.bit_length() - 1)
    return [
        (f"{bytes_text(1 << power)} to < {bytes_text(2 << power)}", doublings[power])
        for power in sorted(doublings)
    ]


def by_stream(snapshot: Snapshot) -> list[tuple[int, Sum]]:
    """Stream numbers, most bytes first. Idle blocks belong to no stream and are left out."""
    owned = (block for block in snapshot.blocks if block.stream >= 0)
    sums = _grouped(owned, lambda block: block.stream)
    return sorted(sums.items(), key=lambda item: -item[1].total)


def by_stack(snapshot: Snapshot) -> list[StackSum]:
    """Most bytes first."""
    live = (block for block in snapshot.blocks if block.state == "live")
    sums = _grouped(live, lambda block: tuple(snapshot.stacks.get(block.address, ())))
    found = [StackSum(frames, sum.live, sum.asked, sum.blocks) for frames, sum in sums.items()]
    return sorted(found, key=lambda stack: -stack.live)


def _total(blocks: Iterable[Block]) -> Sum:
    total = Sum()
    for block in blocks:
        total.add(block)
    return total


def _grouped(blocks: Iterable[Block], key: Callable[[Block], Key]) -> dict[Key, Sum]:
    groups: dict[Key, Sum] = {}
    for block in blocks:
        groups.setdefault(key(block), Sum()).add(block)
    return groups


def _blocks_in_slabs(snapshot: Snapshot) -> Iterator[Block]:
    starts = [slab.address for slab in snapshot.slabs]
    for block in snapshot.blocks:
        at = bisect_right(starts, block.address) - 1
        if at >= 0 and block.address < starts[at] + snapshot.slabs[at].bytes:
            yield block
