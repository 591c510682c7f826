"""What several tests of the pool need: counted driver calls, foreign streams, threads that fail."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from vramkit import Pool
from vramkit.driver import Device, Simulator, Stream

KIB = 1 << 10
MIB = 1 << 20

# Entering and leaving a slow path: the context, and a capture mode in which nothing breaks.
SCOPE = {"cuCtxGetCurrent", "cuCtxSetCurrent", "cuThreadExchangeStreamCaptureMode"}
# No fence is recorded on a captured stream: asked before, and after in case a capture began.
FENCE = {"cuStreamIsCapturing": 2, "cuEventRecord": 1}
FIRST_FENCE = {**FENCE, "cuEventCreate": 1}
# What a raw handle is asked with each call.
RAW = {"cuStreamGetId": 1, "cuStreamIsCapturing": 1}


class Foreign:
    """What another library's stream looks like."""

    def __init__(self, stream: Stream) -> None:
        self.handle = stream.handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


def legacy_streams(device: Device) -> list[Stream | Foreign | None]:
    """All names of the legacy default stream."""
    ours = [Stream.from_handle(device, handle) for handle in (0, 1)]
    return [None, *ours, *(Foreign(stream) for stream in ours)]


def calls(sim: Simulator) -> dict[str, int]:
    """Calls since the last look, without scopes and what the pool tells the checker."""
    counts = sim.call_counts()
    sim.reset_call_counts()
    return {
        call: count
        for call, count in counts.items()
        if count and call not in SCOPE and not call.startswith("simBlock")
    }


def ahead_bytes(device: Device) -> int:
    """What a pool with a background thread maps when it is made."""
    part = device.memory_info().total // 1024
    return min(max(part - part % (2 * MIB), 2 * MIB), 32 * MIB)


def idle_ranges(pool: Pool) -> list[tuple[int, int]]:
    """Address and bytes of memory that is in no slab and no block, joined."""
    layout = pool._layout()
    used = sorted((each["address"], each["bytes"]) for each in layout["slabs"] + layout["blocks"])
    idle = []
    for extent in layout["extents"]:
        at, end = extent["address"], extent["address"] + extent["bytes"]
        for address, nbytes in used:
            if at <= address < end:
                if address > at:
                    idle.append((at, address - at))
                at = address + nbytes
            elif extent["address"] <= address < at:
                at = max(at, address + nbytes)  # a block of a slab
        if end > at:
            idle.append((at, end - at))
    return idle


def eventually(holds: Callable[[], bool]) -> bool:
    """Waits for what another thread is about to do; gives up after a long time."""
    end = time.monotonic() + 30
    while not holds() and time.monotonic() < end:
        os.sched_yield()
    return holds()


def run(*targets: Callable[[], object]) -> None:
    """Each in a thread of its own; the first failure is raised here."""
    failures: list[BaseException] = []

    def guarded(target: Callable[[], object]) -> None:
        try:
            target()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(target,)) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


# Captures


def captures(pool: Pool) -> int:
    return pool.stats().captures


def all_ended(pool: Pool) -> bool:
    """The driver tells of the end of a graph on a thread of its own."""

    def ended() -> bool:
        pool.step()
        return captures(pool) == 0

    return eventually(ended)


def take_all(pool: Pool, size: int, streams: list[Stream], count: int = 40) -> set[int]:
    """Addresses that the pool hands out on these streams while none is freed."""
    taken = [pool.malloc(size, stream) for stream in streams for _ in range(count)]
    for address in taken:
        pool.free(address)
    return set(taken)
