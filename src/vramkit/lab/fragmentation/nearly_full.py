"""Memory that is nearly used up: what is served then, and how much can be had in one piece."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vramkit.driver import OutOfMemoryError
from vramkit.lab.experiment import Lab
from vramkit.lab.fragmentation.sequences import FILLING_SMALLEST, LARGEST, Generator, filling_sizes
from vramkit.lab.small_card import small_card
from vramkit.lab.subjects.subject import Room

if TYPE_CHECKING:
    from vramkit.driver import Stream
    from vramkit.lab.subjects.subject import Allocator, Subject

CARD = 4 << 30
FILLED = 7 / 8
"""Of the card, before every second block is freed."""
SIZED = 31 / 32
"""Of the card, what allocators are given that must be given a size."""
LIMIT = 15 / 16
"""Of the card, what is in use at most while blocks are replaced."""
REQUESTS = 2000
REQUESTS_SEED = 8
PRECISION = 1 / 512
"""Of the card, for the largest piece."""


def measure_nearly_full(subject: Subject, lab: Lab) -> dict[str, float]:
    with small_card(lab, CARD):
        room = Room(round(CARD * FILLED), size=round(CARD * SIZED))
        with subject.open(lab.device, room) as allocator, lab.device.stream() as stream:
            blocks = Blocks(allocator, stream)
            try:
                return _measure(blocks)
            finally:
                lab.device.synchronize()
                blocks.free_all()


def _measure(blocks: Blocks) -> dict[str, float]:
    """Raises OutOfMemoryError where not even the filling fits."""
    for size in filling_sizes(round(CARD * FILLED) - LARGEST):
        blocks.take(size)
    blocks.free_every_second()
    free = CARD - blocks.in_use
    largest = largest_piece(blocks.fits, free, round(CARD * PRECISION))
    served = _replace(blocks, round(CARD * LIMIT))
    return {"one_piece": largest / free, "largest": largest, "served": served / REQUESTS}


def largest_piece(fits: Callable[[int], bool], most: int, precision: int) -> int:
    """The largest size up to `most` that fits, and at most `precision` below the true one."""
    if fits(most):
        return most
    served, refused = 0, most
    while refused - served > precision:
        middle = (served + refused) // 2
        if fits(middle):
            served = middle
        else:
            refused = middle
    return served


def _replace(blocks: Blocks, limit: int) -> int:
    """Requests that are served of REQUESTS, at the limit: for each, blocks go until there is room
    for it."""
    random, served = Generator(REQUESTS_SEED), 0
    for _ in range(REQUESTS):
        size = random.uniform(FILLING_SMALLEST, LARGEST)
        while blocks.in_use + size > limit:
            blocks.free(random.below(len(blocks.live)))
        try:
            blocks.take(size)
        except OutOfMemoryError:
            continue
        served += 1
    return served


@dataclass(frozen=True)
class Block:
    handle: object
    size: int


class Blocks:
    """What is in use of an allocator, on one stream."""

    def __init__(self, allocator: Allocator, stream: Stream) -> None:
        self._allocator = allocator
        self._stream = stream
        self.live: list[Block] = []
        self.in_use = 0

    def take(self, size: int) -> None:
        self.live.append(Block(self._allocator.allocate(size, self._stream), size))
        self.in_use += size

    def free(self, place: int) -> None:
        self.live[place], self.live[-1] = self.live[-1], self.live[place]
        block = self.live.pop()
        self.in_use -= block.size
        self._allocator.free(block.handle, block.size, self._stream)

    def free_every_second(self) -> None:
        kept, gone = self.live[1::2], self.live[::2]
        self.live = gone
        self.free_all()
        self.live = kept

    def free_all(self) -> None:
        while self.live:
            self.free(len(self.live) - 1)

    def fits(self, size: int) -> bool:
        try:
            self.take(size)
        except OutOfMemoryError:
            return False
        self.free(len(self.live) - 1)
        return True
