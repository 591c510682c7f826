"""Work for compute-sanitizer: sanitizer_check.py clean|overrun|freed [nvtx]. Needs a card.

clean must end with status 0 and no report, with and without nvtx. overrun writes past the end of a
block into its free neighbour, freed into a block that was given back: the memory is the pool's, so
only its NVTX regions let the tool see it. Without a tool both end with status 0.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable
from typing import Any

from vramkit import Pool
from vramkit.driver import Device, Stream, open

MIB = 1 << 20
SIZES = (4, 256, 1000, 4096, 60_000, MIB, 2 * MIB, 5 * MIB + 4)


def check(device: Device, stream: Stream, address: int, words: int, value: int) -> None:
    """Fails unless the block holds that value in its first and last word."""
    host = bytearray(4)
    for word in {0, words - 1}:
        device.copy(host, address + 4 * word, 4, stream=stream)
        stream.synchronize()
        found = int.from_bytes(host, sys.byteorder)
        assert found == value, f"word {word} of {words} is {found}, not {value}"


def mixed_work(device: Device, pool: Pool, seed: int) -> None:
    """Blocks of all kinds on three streams, each filled to its last word and read back."""
    choose = random.Random(seed)
    streams = [device.stream() for _ in range(3)]
    live: list[tuple[int, int, int, Stream]] = []
    for value in range(120):
        stream = choose.choice(streams)
        words = choose.choice(SIZES) // 4
        address = pool.malloc(4 * words, stream)
        device.kernels.fill(address, words, value, stream=stream)
        live.append((address, words, value, stream))
        if len(live) > 12:
            address, words, value, stream = live.pop(choose.randrange(len(live)))
            device.kernels.add(address, address, address, words, stream=stream)
            check(device, stream, address, words, 2 * value)
            if choose.random() < 0.3:  # given back in the order of another stream
                other = choose.choice(streams)
                pool.also_used_on(address, other)
                device.kernels.fill(address, words, 7, stream=other)
            pool.free(address)
    for address, _, _, _ in live:
        pool.free(address)
    for stream in streams:
        stream.close()


def remapping(device: Device, pool: Pool) -> None:
    """One block out of many free pieces: they are remapped side by side."""
    with device.stream() as stream:
        small = [pool.malloc(2 * MIB, stream) for _ in range(24)]
        for address in small:
            device.kernels.fill(address, MIB // 2, 1, stream=stream)
        for address in small[::2]:
            pool.free(address)
        words = 20 * MIB // 4
        large = pool.malloc(4 * words, stream)
        assert pool.stats().remapped_bytes > 0, "nothing was remapped"
        device.kernels.fill(large, words, 3, stream=stream)
        check(device, stream, large, words, 3)
        for address in [large, *small[1::2]]:
            pool.free(address)
    pool.defragment()
    pool.trim()


def clean(device: Device, settings: dict[str, Any]) -> None:
    with Pool(device=device, **settings) as pool:
        threads = [
            threading.Thread(target=mixed_work, args=(device, pool, seed)) for seed in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert pool.stats().allocation_count == 240, "a thread failed"
    with Pool(device=device, **settings | {"limit": 56 * MIB}) as pool:
        if not pool.config.nvtx:  # with it nothing moves
            remapping(device, pool)
        mixed_work(device, pool, 2)
    with Pool(device=device, large="direct", **settings) as pool:
        mixed_work(device, pool, 3)


def overrun(device: Device, settings: dict[str, Any]) -> None:
    with Pool(device=device, **settings) as pool, device.stream() as stream:
        block = pool.malloc(4096, stream)
        device.kernels.fill(block, 4096 // 4 + 1, 1, stream=stream)
        stream.synchronize()
        pool.free(block)


def freed(device: Device, settings: dict[str, Any]) -> None:
    with Pool(device=device, **settings) as pool, device.stream() as stream:
        block = pool.malloc(4096, stream)
        pool.free(block)
        device.kernels.fill(block, 4096 // 4, 1, stream=stream)
        stream.synchronize()


WORK: dict[str, Callable[[Device, dict[str, Any]], None]] = {
    "clean": clean,
    "overrun": overrun,
    "freed": freed,
}

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in WORK or sys.argv[2:] not in ([], ["nvtx"]):
        sys.exit("usage: sanitizer_check.py clean|overrun|freed [nvtx]")
    marks = {"nvtx": True, "limit": 256 * MIB} if sys.argv[2:] else {}
    WORK[sys.argv[1]](open().device(), marks)
    print(" ".join(sys.argv[1:]), "done")
