"""The functions that PyTorch and CuPy call by address, called as those call them."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import CDLL
from pathlib import Path

import pytest

from vramkit import Pool
from vramkit.driver import Device, Driver

from .conftest import CURRENT_STREAM
from .support import CPP17, PROGRAMS, output_of

OK, BAD_VALUE = 0, 1
MIB = 1 << 20


@pytest.fixture
def pool(device: Device) -> Iterator[Pool]:
    with Pool(device=device) as made:
        yield made


@pytest.fixture
def torch(library: CDLL) -> Iterator[CDLL]:
    yield library
    assert library.vramkit_torch_use(0, None) == OK


def test_torch_takes_from_the_process_wide_pool(torch: CDLL, device: Device) -> None:
    shared = Pool.instance(device)
    block = torch.vramkit_torch_malloc(1000, 0, None)
    assert shared.stats().current_usage == 1000
    torch.vramkit_torch_free(block, 1000, 0, None)
    assert shared.stats().current_usage == 0
    assert torch.vramkit_torch_malloc(0, 0, None) is None
    assert shared.stats().allocation_count == 1
    shared.close()


def test_torch_gives_blocks_back_where_they_came_from(
    torch: CDLL, device: Device, pool: Pool
) -> None:
    shared = Pool.instance(device)
    first = torch.vramkit_torch_malloc(1000, 0, None)
    assert torch.vramkit_torch_use(0, pool.c_handle) == OK
    second = torch.vramkit_torch_malloc(2000, 0, None)
    assert (shared.stats().current_usage, pool.stats().current_usage) == (1000, 2000)
    torch.vramkit_torch_free(first, 1000, 0, None)
    assert torch.vramkit_torch_use(0, None) == OK
    torch.vramkit_torch_free(second, 2000, 0, None)
    assert (shared.stats().current_usage, pool.stats().current_usage) == (0, 0)
    shared.close()


def test_streams_of_torch_are_durable(torch: CDLL, device: Device, pool: Pool) -> None:
    """A raw handle may be destroyed without notice: it gets a fence while given. Torch's do not."""
    pool.configure(thread_cache_max_blocks=0)
    size = pool.config.cache_bytes  # so much without a fence is enough
    raw, theirs = device.stream(), device.stream()
    handle = raw.__cuda_stream__()[1]
    block = torch.vramkit_malloc(pool.c_handle, size, handle)
    assert torch.vramkit_free_on(pool.c_handle, block, handle) == OK
    assert pool.stats().events_recorded == 1
    assert torch.vramkit_torch_use(0, pool.c_handle) == OK
    torch.vramkit_torch_free(
        torch.vramkit_torch_malloc(size, 0, theirs.__cuda_stream__()[1]), size, 0, None
    )
    assert (pool.stats().free_count, pool.stats().events_recorded) == (2, 1)
    for stream in (raw, theirs):
        stream.close()


@pytest.mark.sim_only
def test_a_pool_that_torch_uses_outlives_its_python_object(
    torch: CDLL, driver: Driver, device: Device
) -> None:
    pool = Pool(device=device)
    assert torch.vramkit_torch_use(0, pool.c_handle) == OK
    block = torch.vramkit_torch_malloc(4 * MIB, 0, None)
    del pool
    torch.vramkit_torch_free(block, 4 * MIB, 0, None)
    assert torch.vramkit_torch_malloc(4 * MIB, 0, None) == block
    torch.vramkit_torch_free(block, 4 * MIB, 0, None)
    assert driver.sim is not None
    driver.sim.reset()  # PyTorch's pools stay until the process ends


def test_a_pool_of_another_device_is_refused(torch: CDLL, pool: Pool) -> None:
    assert torch.vramkit_torch_use(1, pool.c_handle) == BAD_VALUE
    assert torch.vramkit_last_error() == b"the pool is of device 0, not of 1"
    assert torch.vramkit_torch_use(-1, None) == BAD_VALUE
    assert torch.vramkit_last_error() == b"device is -1; it may be 0 to 63"


@pytest.mark.sim_only
def test_torch_malloc_throws_what_went_wrong(tmp_path: Path) -> None:
    said = output_of(PROGRAMS / "torch.cpp", *CPP17, folder=tmp_path, VRAMKIT_DRIVER="sim")
    assert len(said) == 2
    words = f"CUDA out of memory. out of device memory: asked for {1 << 40} bytes"
    assert said[0].startswith(words)
    assert said[1] == "size is -1; it may be 0 or more"


@pytest.mark.sim_only
@pytest.mark.parametrize("constructor", ["OWN", "INHERITED"])
def test_torch_malloc_throws_the_error_of_pytorch_where_it_is_loaded(
    tmp_path: Path, constructor: str
) -> None:
    source = PROGRAMS / "torch_out_of_memory.cpp"
    flags = (*CPP17, "-rdynamic", f"-D{constructor}")
    lacking, refused, left = output_of(source, *flags, folder=tmp_path, VRAMKIT_DRIVER="sim")
    assert lacking.startswith("OutOfMemoryError from vramkit_torch_malloc: CUDA out of memory. ")
    assert f"asked for {1 << 40} bytes" in lacking
    assert refused == "std: size is -1; it may be 0 or more"
    assert left == "0 alive, 1 counted"


def test_cupy_allocates_on_its_current_stream(library: CDLL, device: Device, pool: Pool) -> None:
    streams = [device.stream(), device.stream()]
    current = 0

    @CURRENT_STREAM
    def current_stream() -> int:
        return streams[current].__cuda_stream__()[1]

    made = library.vramkit_cupy_create(pool.c_handle, current_stream)
    first = library.vramkit_cupy_malloc(made, 4 * MIB, 0)
    device.fill(first, 1, 4 * MIB, stream=streams[0])
    current = 1
    library.vramkit_cupy_free(made, first, 0)  # still at a point of the first stream
    second = library.vramkit_cupy_malloc(made, 4 * MIB, 0)
    assert second != first
    current = 0
    assert library.vramkit_cupy_malloc(made, 4 * MIB, 0) == first
    for block in (first, second):
        library.vramkit_cupy_free(made, block, 0)
    assert library.vramkit_cupy_malloc(made, 4 * MIB, 1) is None
    assert (
        b"the pool is of device 0, and CuPy's current device is 1" in library.vramkit_last_error()
    )
    library.vramkit_cupy_destroy(made)
    for stream in streams:
        stream.close()


def test_cupy_without_a_pool_takes_the_process_wide_one(library: CDLL, device: Device) -> None:
    shared = Pool.instance(device)
    legacy = CURRENT_STREAM(lambda: None)
    made = library.vramkit_cupy_create(None, legacy)
    block = library.vramkit_cupy_malloc(made, 1000, 0)
    assert shared.stats().current_usage == 1000
    library.vramkit_cupy_free(made, block, 0)
    assert shared.stats().current_usage == 0
    library.vramkit_cupy_destroy(made)
    shared.close()
