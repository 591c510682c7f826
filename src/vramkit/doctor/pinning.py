"""How fast host memory is pinned, by method: the driver's allocation, or touched and registered."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from vramkit.doctor.clock import Clock, rates, spread
from vramkit.doctor.facts import Limits, Pinning
from vramkit.host.pages import HostPages, default_threads

if TYPE_CHECKING:
    from vramkit.driver import Device


def measure_pinning(
    device: Device, clock: Clock, limits: Limits, nbytes: int, samples: int
) -> list[Pinning]:
    results = [_driver_allocation(device, clock, nbytes, samples)]
    page_kinds = [False]
    if limits.transparent_huge_pages in ("always", "madvise"):
        page_kinds.append(True)
    for huge in page_kinds:
        for threads in sorted({1, default_threads()}):
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
        pages = HostPages(nbytes, huge=huge)
        start = time.perf_counter()
        pages.populate(threads)
        touches.append(time.perf_counter() - start)
        pin_start = clock()
        registered = device.register(pages.address, nbytes=nbytes)
        pins.append(clock() - pin_start)
        registered.close()
        pages.close()
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
