"""When fences are recorded on streams that other code made."""

from __future__ import annotations

import pytest

from vramkit import Pool
from vramkit.driver import Device, Simulator
from vramkit.pool import PoolConfig

from .support import FIRST_FENCE, RAW, Foreign, calls

pytestmark = pytest.mark.sim_only

PART = PoolConfig().cache_bytes // 4


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("given", [False, True])
def test_a_raw_stream_gets_a_fence_while_given_once_for_the_bytes_of_a_cache(
    pool: Pool, device: Device, sim: Simulator, raw: bool, given: bool
) -> None:
    """It may be destroyed without notice. Other streams get a fence when it is needed."""
    pool.configure(thread_cache_max_blocks=0)
    with device.stream() as owner:
        stream = Foreign(owner) if raw else owner
        blocks = [pool.malloc(PART, stream) for _ in range(11)]
        asked = RAW if raw and given else {}
        fences: list[int] = []
        calls(sim)
        for number, address in enumerate(blocks[:9], 1):
            if given:
                pool.free(address, stream=stream)
            else:
                pool.free(address)
            made = calls(sim)
            if made != asked:
                fences.append(number)
                # An event of its own each: the first has not been queried yet.
                assert made == {**RAW, **FIRST_FENCE, "cuStreamIsCapturing": 3}
        assert fences == ([4, 8] if raw and given else [])
        assert pool.stats().events_recorded == len(fences)
        for address in blocks[9:]:
            pool.free(address)


def test_a_raw_stream_that_is_given_gets_a_fence_for_what_was_freed_without_it(
    pool: Pool, device: Device, sim: Simulator
) -> None:
    pool.configure(thread_cache_max_blocks=0)
    with device.stream() as owner:
        blocks = [pool.malloc(PART, Foreign(owner)) for _ in range(5)]
        for address in blocks[:4]:
            pool.free(address)
        assert pool.stats().events_recorded == 0
        calls(sim)
        pool.free(blocks[4], stream=Foreign(owner))
        assert calls(sim) == {**RAW, **FIRST_FENCE, "cuStreamIsCapturing": 3}


@pytest.mark.parametrize("raw", [False, True])
def test_a_malloc_that_gets_past_its_stream_cache_records_a_fence_on_a_raw_stream(
    pool: Pool, device: Device, sim: Simulator, raw: bool
) -> None:
    pool.configure(thread_cache_max_blocks=0)
    with device.stream() as owner:
        stream = Foreign(owner) if raw else owner
        pool.free(pool.malloc(4096, stream))
        calls(sim)
        address = pool.malloc(8192, stream)  # on the same piece
        made = calls(sim)
        assert made == ({**RAW, **FIRST_FENCE, "cuStreamIsCapturing": 3} if raw else {})
        pool.free(address)
        address = pool.malloc(8192, stream)  # from the stream cache
        assert calls(sim) == (RAW if raw else {})
        pool.free(address)
        assert pool.stats().events_recorded == raw
