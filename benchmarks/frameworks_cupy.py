"""A CuPy pipeline: filters, products and sums of arrays of many sizes on several streams."""

from collections.abc import Callable
from typing import Any

import cupy
import numpy
from frameworks_work import CardMemory, Part, Results, pool_details, timed_rounds

STREAMS = 4
ITEMS = 120
# Elements of a side: from a few KiB to 36 MiB an array.
SIDES = (96, 1024, 33, 512, 3000, 257, 2048, 64, 1500)


def process(item: int, source: Any) -> Any:
    """Some figures of one array, on the current stream."""
    smooth = cupy.fft.ifft2(cupy.fft.fft2(source) * 0.5).real.astype(cupy.float32)
    product = smooth @ source.T
    rows = product.sum(axis=1)
    ranked = cupy.sort(rows)[:: max(1, rows.size // 16)]
    outliers = product[product > product.mean()]
    return cupy.stack(
        [product.max(), product.min(), rows.sum(), ranked.sum(), outliers.sum() / (item + 1)]
    )


def make_work(results: list[Any]) -> Callable[[], None]:
    random = numpy.random.default_rng(5)
    largest = random.standard_normal((max(SIDES), max(SIDES)), dtype=numpy.float32)
    sources = {side: numpy.ascontiguousarray(largest[:side, :side]) for side in SIDES}
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(STREAMS)]

    def work() -> None:
        for item in range(ITEMS):
            which = item % len(SIDES)
            side = SIDES[which]
            # A size has one stream: CuPy keeps one plan of cuFFT for it, with one work area.
            with streams[which % STREAMS]:
                results.append(process(item, cupy.asarray(sources[side])))

    return work


def run(mode: str, allocator: str, repetitions: int) -> Part:
    if mode != "pipeline":
        raise ValueError(f"the mode is {mode!r}; CuPy has pipeline")
    pool = None
    if allocator == "vramkit":
        from vramkit.integrations import cupy as integration

        pool = integration.install()
    synchronize = cupy.cuda.Device().synchronize
    synchronize()  # makes the context
    card = CardMemory(cupy.cuda.runtime.memGetInfo)
    found: list[Any] = []
    work = make_work(found)
    first = timed_rounds(work, synchronize, 1)
    card.look()
    milliseconds = timed_rounds(work, synchronize, repetitions)
    card.look()

    default = cupy.get_default_memory_pool()
    results = Results()
    for figures in found:
        results.add(figures.get().tolist())
    return Part(
        milliseconds=milliseconds,
        peak_bytes=default.total_bytes() if pool is None else pool.stats().peak_reserved,
        card_bytes=card.most,
        digest=results.digest,
        figures=results.figures,
        details={"first_round_ms": first[0], "items": float(ITEMS), **pool_details(pool)},
    )
