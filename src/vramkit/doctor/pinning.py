"""How fast host memory is pinned, by method: the driver's allocation, or touched and registered."""

from __future__ import annotations

import ctypes
import mmap
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from vramkit.doctor.clock import Clock, rates, spread
from vramkit.doctor.facts import Limits, Pinning

if TYPE_CHECKING:
    from vramkit.driver import Device

MADV_POPULATE_WRITE = 23  # Linux 5.14; Python names it from 3.14 on
HUGE = 2 << 20


def measure_pinning(
    device: Device, clock: Clock, limits: Limits, nbytes: int, samples: int
) -> list[Pinning]:
    results = [_driver_allocation(device, clock, nbytes, samples)]
    many = min(limits.cpus, 16)
    page_kinds = [False]
    if limits.transparent_huge_pages in ("always", "madvise"):
        page_kinds.append(True)
    for huge in page_kinds:
        for threads in sorted({1, many}):
            results.append(_registration(device, clock, nbytes, samples, huge, threads))
    return results


def _driver_allocation(device: Device, clock: Clock, nbytes: int, samples: int) -> Pinning:
    seconds = []
    for _ in range(samples):
        start = clock()
        memory = device.alloc_pinned(nbytes)
        seconds.append(clock() - start)
        memory.close()
    return Pinning(
        method="cuMemHostAlloc",
        threads=1,
        nbytes=nbytes,
        touch=None,
        pin=spread(seconds),
        rate=rates(nbytes, seconds),
    )


def _registration(
    device: Device, clock: Clock, nbytes: int, samples: int, huge: bool, threads: int
) -> Pinning:
    touches, pins = [], []
    for _ in range(samples):
        memory = mmap.mmap(-1, nbytes + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)
        start = time.perf_counter()
        address = _touch(memory, nbytes, threads)
        touches.append(time.perf_counter() - start)
        pin_start = clock()
        registered = device.register(address, nbytes=nbytes)
        pins.append(clock() - pin_start)
        registered.close()
        memory.close()
    simulated = device.driver.simulated
    total = [touch + pin for touch, pin in zip(touches, pins, strict=True)]
    return Pinning(
        method="mmap with huge pages, touch, register" if huge else "mmap, touch, register",
        threads=threads,
        nbytes=nbytes,
        touch=spread(touches),
        pin=spread(pins),
        rate=None if simulated else rates(nbytes, total),
    )


def _touch(memory: mmap.mmap, nbytes: int, threads: int) -> int:
    """Populates nbytes from the first huge-page boundary on and returns that address.

    ctypes lets go of the interpreter lock during a call, so that threads really run at once.
    """
    view = ctypes.c_char.from_buffer(memory)
    address = (ctypes.addressof(view) + HUGE - 1) // HUGE * HUGE
    del view  # lets the mapping be closed
    populate = _populate()
    piece = -(-nbytes // threads + HUGE - 1) // HUGE * HUGE if threads > 1 else nbytes
    parts = [(at, min(piece, nbytes - at)) for at in range(0, nbytes, piece)]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda part: populate(address + part[0], part[1]), parts))
    return address


def _populate() -> Callable[[int, int], None]:
    libc = ctypes.CDLL(None, use_errno=True)
    madvise = libc.madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

    def populate(address: int, nbytes: int) -> None:
        if madvise(address, nbytes, MADV_POPULATE_WRITE) != 0:
            # An older kernel: writing does the same, a little slower.
            ctypes.memset(address, 0, nbytes)

    return populate
