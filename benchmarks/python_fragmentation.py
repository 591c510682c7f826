"""The full card with holes, for allocators that are reached from Python: the lab's subjects.

The same blocks in the same order as in the native programs (`filling_sizes` there).
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

from rows import Row

from vramkit.driver import OutOfMemoryError
from vramkit.lab.fragmentation.sequences import filling_sizes
from vramkit.lab.subjects import Room

if TYPE_CHECKING:
    from vramkit.driver import Device, Stream
    from vramkit.lab.subjects import Allocator, Subject

REPETITIONS = 5


def allocated(allocator: Allocator, size: int, stream: Stream) -> object | None:
    """None: no memory left."""
    try:
        return allocator.allocate(size, stream)
    except OutOfMemoryError:
        return None


def fill_up(allocator: Allocator, sizes: list[int], stream: Stream) -> list[tuple[object, int]]:
    """As many of the blocks as the allocator has memory for, with their sizes."""
    blocks = []
    for size in sizes:
        block = allocated(allocator, size, stream)
        if block is None:
            break
        blocks.append((block, size))
    return blocks


def card_bytes(device: Device) -> int:
    """Memory of the card in use, by whomever."""
    memory = device.memory_info()
    return memory.total - memory.free


def measure(row: Row, subject: Subject, device: Device, cap: int, fill: int) -> None:
    """Milliseconds of one request for 90 % of what every second block left. `cap`: bytes of the
    card that the allocator may have."""
    sizes = list(filling_sizes(fill))
    served: list[float] = []
    refused: list[float] = []
    most = 0
    for _ in range(REPETITIONS):
        before = card_bytes(device)
        with (
            device.stream() as stream,
            subject.open(device, Room(peak_in_use=fill, limit=cap)) as allocator,
        ):
            blocks = fill_up(allocator, sizes, stream)
            filled = sum(size for _, size in blocks)
            most = max(most, card_bytes(device) - before)
            freed = sum(size for _, size in blocks[1::2])
            for block, size in blocks[1::2]:
                allocator.free(block, size, stream)
            stream.synchronize()
            start = time.perf_counter()
            large = allocated(allocator, freed // 10 * 9, stream)
            milliseconds = (time.perf_counter() - start) * 1e3
            (refused if large is None else served).append(milliseconds)
            most = max(most, card_bytes(device) - before)
            for block, size in blocks[::2]:
                allocator.free(block, size, stream)
            if large is not None:
                allocator.free(large, freed // 10 * 9, stream)
            stream.synchronize()
    row.take(served)
    row.outcome = "out of memory" if not served else "at times" if refused else "served"
    row.details = {
        "cap_bytes": cap,
        "blocks": len(blocks),
        "filled_bytes": filled,
        "freed_bytes": freed,
        "asked_bytes": freed // 10 * 9,
        "most_card_bytes": most,
        "served": len(served),
        "refused_after_ms": statistics.median(refused) if refused else 0,
    }
    # The request is for less than what was freed before it.
    row.tell_held(most, filled)
