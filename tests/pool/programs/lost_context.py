"""Every use of a pool after a kernel's bad access: lost_context.py DRIVER. Prints JSON.

A pool for each use is made before; then the kernel ends the context. Each use is printed with the
error that it raised, or "served". The process must come to its end, too.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

from vramkit import Pool, driver
from vramkit.driver import Device, DriverError, Stream

MIB = 1 << 20

USES: dict[str, Callable[[Pool, Stream], object]] = {
    "malloc": lambda pool, stream: pool.malloc(4096, stream),
    "another size": lambda pool, stream: pool.malloc(300_000, stream),
    "growth": lambda pool, stream: pool.malloc(100 * MIB, stream),
    "try_malloc": lambda pool, stream: pool.try_malloc(100 * MIB, stream),
    "step": lambda pool, _: pool.step(),
    "trim": lambda pool, _: pool.trim(),
    "release_all": lambda pool, _: pool.release_all(),
    "defragment": lambda pool, _: pool.defragment(),
    "preallocate": lambda pool, _: pool.preallocate(4 * MIB, 2),
    "stats": lambda pool, _: pool.stats(),
    "snapshot": lambda pool, _: pool.snapshot(),
}


def used_pool(device: Device, stream: Stream) -> tuple[Pool, int]:
    """One that has memory in its caches, and a live block."""
    pool = Pool(device=device, background=False, limit=256 * MIB)
    live = pool.malloc(4096, stream)
    for block in [pool.malloc(size, stream) for size in (4096, 4 * MIB, 40 * MIB)]:
        device.fill(block, 1, 4096, stream=stream)
        pool.free(block)
    return pool, live


def outcome(use: Callable[..., object], *arguments: object) -> str:
    try:
        use(*arguments)
    except DriverError as error:
        return str(error)
    return "served"


def main(spec: str) -> None:
    device = driver.open(spec).device()
    stream = device.stream()
    pools = {name: used_pool(device, stream) for name in USES}
    device.kernels.fill(0x0123_4560_0000, 1024, 1, stream=stream)
    outcomes = {"the kernel": outcome(stream.synchronize)}
    for name, use in USES.items():
        pool, live = pools[name]
        outcomes[name] = outcome(use, pool, stream)
        assert pool.check_invariants() == "", name
        pool.free(live)
        if pool.stats().current_usage == 0:
            pool.close()
            assert pool.closed
    outcomes["a new pool"] = outcome(lambda: Pool(device=device, background=False))
    print(json.dumps(outcomes, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
