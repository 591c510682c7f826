"""The full card with holes, for allocators that are reached from Python: CuPy and PyTorch.

The same blocks in the same order as in the native programs (`filling_sizes` there).
"""

import statistics
import time
from collections.abc import Iterator
from importlib import import_module
from typing import Protocol

from rows import MIB, Row

from vramkit.lab.subjects.torch import require_segments

REPETITIONS = 5


class Peer(Protocol):
    """An allocator that may have `cap` bytes of the card."""

    def allocate(self, size: int) -> object | None:
        """A block that is freed when nobody holds it; None: no memory left."""

    def card_bytes(self) -> int:
        """Memory of the card in use, by whomever."""

    def synchronize(self) -> None: ...

    def empty(self) -> None:
        """Gives everything that is idle back to the driver, for the next repetition."""


class Cupy:
    def __init__(self, cap: int) -> None:
        self._cupy = import_module("cupy")
        self._pool = self._cupy.get_default_memory_pool()
        self._pool.set_limit(size=cap)

    def allocate(self, size: int) -> object | None:
        try:
            block: object = self._pool.malloc(size)
        except self._cupy.cuda.memory.OutOfMemoryError:
            return None
        return block

    def card_bytes(self) -> int:
        free, total = self._cupy.cuda.runtime.memGetInfo()
        return int(total - free)

    def synchronize(self) -> None:
        self._cupy.cuda.runtime.deviceSynchronize()

    def empty(self) -> None:
        self._pool.free_all_blocks()


class Torch:
    def __init__(self, cap: int) -> None:
        self._torch = import_module("torch")
        total = self._torch.cuda.get_device_properties(0).total_memory
        self._torch.cuda.set_per_process_memory_fraction(min(1.0, cap / total), 0)

    def allocate(self, size: int) -> object | None:
        try:
            block: object = self._torch.empty(size, dtype=self._torch.uint8, device="cuda")
        except self._torch.OutOfMemoryError:
            return None
        return block

    def card_bytes(self) -> int:
        free, total = self._torch.cuda.mem_get_info()
        return int(total - free)

    def synchronize(self) -> None:
        self._torch.cuda.synchronize()

    def empty(self) -> None:
        self._torch.cuda.empty_cache()


class ExpandableTorch(Torch):
    """The process must have been started with that setting: looked up, not trusted."""

    def __init__(self, cap: int) -> None:
        super().__init__(cap)
        require_segments(self._torch.cuda, 0, expandable=True)


def filling_sizes(total: int) -> Iterator[int]:
    """2 to 64 MiB, uniform, until their sum is the total; from SplitMix64 with seed 7."""
    mask = (1 << 64) - 1
    state, given = 7, 0
    while given < total:
        state = (state + 0x9E3779B97F4A7C15) & mask
        mixed = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & mask
        mixed ^= mixed >> 31
        size = 2 * MIB + int((mixed >> 11) * 2.0**-53 * (62 * MIB + 1))
        given += size
        yield size


def fill_up(peer: Peer, sizes: list[int]) -> list[object]:
    """As many of the blocks as the allocator has memory for."""
    blocks: list[object] = []
    for size in sizes:
        block = peer.allocate(size)
        if block is None:
            break
        blocks.append(block)
    return blocks


def measure(row: Row, peer: Peer, cap: int, fill: int) -> None:
    """Milliseconds of one request for 90 % of what every second block left."""
    sizes = list(filling_sizes(fill))
    served: list[float] = []
    refused: list[float] = []
    most = 0
    for _ in range(REPETITIONS):
        before = peer.card_bytes()
        blocks = fill_up(peer, sizes)
        filled = sizes[: len(blocks)]
        most = max(most, peer.card_bytes() - before)
        freed = sum(filled[1::2])
        del blocks[1::2]
        peer.synchronize()
        start = time.perf_counter()
        large = peer.allocate(freed // 10 * 9)
        milliseconds = (time.perf_counter() - start) * 1e3
        (refused if large is None else served).append(milliseconds)
        most = max(most, peer.card_bytes() - before)
        del blocks, large
        peer.synchronize()
        peer.empty()
    row.take(served)
    row.outcome = "out of memory" if not served else "at times" if refused else "served"
    row.details = {
        "cap_bytes": cap,
        "blocks": len(filled),
        "filled_bytes": sum(filled),
        "freed_bytes": freed,
        "asked_bytes": freed // 10 * 9,
        "most_card_bytes": most,
        "served": len(served),
        "refused_after_ms": statistics.median(refused) if refused else 0,
    }
    # The request is for less than what was freed before it.
    row.tell_held(most, sum(filled))
