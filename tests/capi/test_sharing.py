"""Python, C and the functions for frameworks have the same pools, streams and drivers."""

from __future__ import annotations

import re
from ctypes import CDLL
from pathlib import Path

import pytest

import vramkit
from vramkit import Pool
from vramkit.driver import Device, Driver, Stream

OK, CLOSED = 0, 2
MIB = 1 << 20


def handle(stream: Stream) -> int:
    return stream.__cuda_stream__()[1]


def test_headers_and_library_are_where_they_are_said_to_be() -> None:
    folder = Path(vramkit.get_include())
    assert (folder / "vramkit.h").is_file()
    assert (folder / "vramkit.hpp").is_file()
    assert Path(vramkit.get_library()).is_file()


def test_the_library_has_every_function_of_the_header() -> None:
    text = (Path(vramkit.get_include()) / "vramkit.h").read_text(encoding="utf-8")
    declared = re.findall(r"^\w[^\n(]*?\b(vramkit_\w+)\(", text, flags=re.MULTILINE)
    library = CDLL(vramkit.get_library())
    assert len(declared) >= 25
    assert [name for name in declared if not hasattr(library, name)] == []


@pytest.mark.parametrize("python_first", [True, False])
def test_the_process_wide_pool_is_one(library: CDLL, device: Device, python_first: bool) -> None:
    if python_first:
        pool = Pool.instance(device)
        made = library.vramkit_pool_instance(0)
    else:
        made = library.vramkit_pool_instance(0)
        pool = Pool.instance(device)
    assert made == pool.c_handle
    block = library.vramkit_malloc(made, 1000, None)
    assert pool.stats().current_usage == 1000
    pool.free(block, 1000)
    assert library.vramkit_malloc(made, 1000, None) == block  # Python freed it into one cache
    assert library.vramkit_free(made, block) == OK
    assert pool.stats().cache_hits == 1
    pool.close()
    assert library.vramkit_malloc(made, 1000, None) is None
    assert (library.vramkit_last_status(), library.vramkit_last_error()) == (
        CLOSED,
        b"the pool is closed",
    )


def test_closed_from_c_it_is_made_again_for_both(library: CDLL, device: Device) -> None:
    first = Pool.instance(device)
    assert library.vramkit_pool_close(library.vramkit_pool_instance(0)) == OK
    assert first.closed
    second = Pool.instance(device)
    assert second is not first
    assert library.vramkit_pool_instance(0) == second.c_handle != first.c_handle
    second.close()


@pytest.mark.sim_only
def test_a_reset_of_the_simulated_gpu_closes_pools_made_in_c(
    library: CDLL, driver: Driver, device: Device
) -> None:
    assert driver.sim is not None
    made = library.vramkit_pool_instance(0)
    block = library.vramkit_malloc(made, 1000, None)
    driver.sim.reset()
    assert library.vramkit_free(made, block) == CLOSED
    again = library.vramkit_pool_instance(0)
    assert again != made
    assert library.vramkit_free(again, library.vramkit_malloc(again, 1000, None)) == OK
    assert library.vramkit_pool_close(again) == OK


def test_a_stream_that_closes_in_c_gets_its_fence_while_it_lives(
    library: CDLL, device: Device
) -> None:
    stream = device.stream()
    pool = Pool.instance(device)
    block = pool.malloc(4 * MIB, stream)
    device.fill(block, 1, 4 * MIB, stream=stream)
    pool.free(block)
    assert pool.stats().events_recorded == 0
    assert library.vramkit_stream_closing(handle(stream)) == OK
    assert (pool.stats().events_recorded, pool.stats().cached) == (1, 0)
    stream.close()
    pool.close()


def test_free_on_another_stream(library: CDLL, device: Device) -> None:
    """The block is the other stream's from then on; the checker sees that the order holds."""
    first, second = device.stream(), device.stream()
    pool = Pool.instance(device)
    block = library.vramkit_malloc(pool.c_handle, 4 * MIB, handle(first))
    device.fill(block, 1, 4 * MIB, stream=first)
    second.wait(first)
    device.fill(block, 2, 4 * MIB, stream=second)
    assert library.vramkit_free_on(pool.c_handle, block, handle(second)) == OK
    assert library.vramkit_malloc(pool.c_handle, 4 * MIB, handle(second)) == block
    device.fill(block, 3, 4 * MIB, stream=second)
    assert library.vramkit_free(pool.c_handle, block) == OK
    for stream in (first, second):
        stream.close()
    pool.close()
