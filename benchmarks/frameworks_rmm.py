"""RMM DeviceBuffers of many sizes on several streams: filled, copied, dropped, read back."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy
import rmm
from frameworks_work import CardMemory, Part, Results, pool_details, timed_rounds
from rmm.pylibrmm.stream import Stream

STREAMS = 4
BUFFERS = 2000
CHECKED_BUFFERS = 100
LIVE = 32
SIZES = (256, 70_000, 4_096, 2 << 20, 513, 9 << 20, 1_000_000, 64, 33 << 20)
INITIAL_POOL = 256 << 20


def buffers(streams: list[Any], count: int) -> Iterator[tuple[int, int, Any]]:
    """Number, size and stream of each buffer."""
    pairs = zip(itertools.cycle(SIZES), itertools.cycle(streams), strict=False)
    for number, (size, stream) in enumerate(itertools.islice(pairs, count)):
        yield number, size, stream


def check(streams: list[Any], results: Results) -> None:
    """What comes back of copies whose originals were dropped while the copying went on."""
    random = numpy.random.default_rng(3)
    source = random.integers(0, 256, max(SIZES) + CHECKED_BUFFERS, dtype=numpy.uint8)
    live: list[Any] = []
    for number, size, stream in buffers(streams, CHECKED_BUFFERS):
        original = rmm.DeviceBuffer.to_device(source[number : number + size], stream=stream)
        copy = original.copy()
        del original
        copy.resize(size + 1000, stream=stream)
        copy.resize(size, stream=stream)
        live.append((copy, stream))
        if len(live) == LIVE:
            oldest, its_stream = live.pop(number % LIVE)
            results.add_bytes(oldest.tobytes(its_stream))
    for buffer, stream in live:
        results.add_bytes(buffer.tobytes(stream))


def churn(streams: list[Any]) -> None:
    live: list[Any] = []
    for number, size, stream in buffers(streams, BUFFERS):
        live.append(rmm.DeviceBuffer(size=size, stream=stream).copy())
        if len(live) == LIVE:
            live.pop(number % LIVE)


def run(mode: str, allocator: str, repetitions: int) -> Part:
    if mode != "buffers":
        raise ValueError(f"the mode is {mode!r}; RMM has buffers")
    card = CardMemory(rmm.mr.available_device_memory)  # makes the context
    pool: Any = None
    rmm_pool: Any = None
    if allocator == "vramkit":
        from vramkit.integrations import rmm as integration

        pool = integration.install()
    else:
        upstream = rmm.mr.CudaMemoryResource()
        rmm_pool = rmm.mr.PoolMemoryResource(upstream, initial_pool_size=INITIAL_POOL)
        rmm.mr.set_current_device_resource(rmm_pool)
    streams = [Stream() for _ in range(STREAMS)]

    def synchronize() -> None:
        for stream in streams:
            stream.synchronize()

    results = Results()
    check(streams, results)
    first = timed_rounds(lambda: churn(streams), synchronize, 1)
    card.look()
    milliseconds = timed_rounds(lambda: churn(streams), synchronize, repetitions)
    card.look()
    return Part(
        milliseconds=milliseconds,
        peak_bytes=rmm_pool.pool_size() if pool is None else pool.stats().peak_reserved,
        card_bytes=card.most,
        digest=results.digest,
        figures=results.figures,
        details={"first_round_ms": first[0], "buffers": float(BUFFERS), **pool_details(pool)},
    )
