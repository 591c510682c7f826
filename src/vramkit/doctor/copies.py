"""Copy rates over the link: pinned each way, both ways at once, pageable each way."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from vramkit.doctor.clock import Clock, rates
from vramkit.doctor.facts import CopyRate, Spread

if TYPE_CHECKING:
    from vramkit.driver import Device


def measure_copies(device: Device, clock: Clock, nbytes: int, samples: int) -> list[CopyRate]:
    """Takes 2 * nbytes on the card, as much pinned and as much pageable host memory at most."""
    with ExitStack() as stack:
        inward, outward = (stack.enter_context(device.stream()) for _ in range(2))
        first, second = (stack.enter_context(device.alloc(nbytes)) for _ in range(2))
        source, target = (stack.enter_context(device.alloc_pinned(nbytes)) for _ in range(2))
        pageable = bytearray(nbytes)
        device.fill(second, 0)
        device.synchronize()

        def host_to_device() -> None:
            device.copy(first, source, nbytes, stream=inward)
            inward.synchronize()

        def device_to_host() -> None:
            device.copy(target, second, nbytes, stream=outward)
            outward.synchronize()

        def both() -> None:
            device.copy(first, source, nbytes, stream=inward)
            device.copy(target, second, nbytes, stream=outward)
            inward.synchronize()
            outward.synchronize()

        def pageable_in() -> None:
            device.copy(first, pageable, nbytes)
            device.synchronize()

        def pageable_out() -> None:
            device.copy(pageable, second, nbytes)

        ways = (
            ("pinned, host to device", host_to_device, False),
            ("pinned, device to host", device_to_host, False),
            ("pinned, both ways at once", both, True),
            ("pageable, host to device", pageable_in, False),
            ("pageable, device to host", pageable_out, False),
        )
        return [
            CopyRate(
                what=what,
                nbytes=nbytes,
                each_way=each_way,
                rate=_timed(way, clock, nbytes, samples),
            )
            for what, way, each_way in ways
        ]


def _timed(way: Callable[[], None], clock: Clock, nbytes: int, samples: int) -> Spread:
    """The first run warms up and does not count."""
    way()
    seconds = []
    for _ in range(samples):
        start = clock()
        way()
        seconds.append(clock() - start)
    return rates(nbytes, seconds)
