"""What PyTorch is told about memory, by pools on the simulated GPU that serve it."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from ctypes import CDLL
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from capi.support import CPP17, compiler_of

from vramkit import Pool
from vramkit.driver import Driver
from vramkit.integrations import _library, _torch_graph_trees
from vramkit.integrations._torch_memory import Memory

PROGRAMS = Path(__file__).parent / "programs"
MIB = 1 << 20
NAMES = (
    "_cuda_memoryStats",
    "_cuda_resetAccumulatedMemoryStats",
    "_cuda_resetPeakMemoryStats",
    "_cuda_memorySnapshot",
    "_cuda_setMemoryFraction",
    "_cuda_getMemoryFraction",
    "_cuda_record_memory_history",
    "_cuda_record_memory_history_legacy",
    "_cuda_isHistoryEnabled",
    "_accelerator_getDeviceStats",
    "_accelerator_resetAccumulatedStats",
    "_accelerator_resetPeakStats",
)

pytestmark = pytest.mark.sim_only


@pytest.fixture
def library() -> Iterator[CDLL]:
    yield _library.library()
    assert _library.library().vramkit_torch_use(0, None) == 0


@pytest.fixture
def pool(driver: Driver, library: CDLL) -> Iterator[Pool]:
    """Serves device 0, as after install(pool)."""
    with Pool(device=driver.device(), background=False) as made:
        assert library.vramkit_torch_use(0, made.c_handle) == 0
        yield made
        assert library.vramkit_torch_use(0, None) == 0
    assert driver.sim is not None
    driver.sim.reset()  # pools that served PyTorch stay until the process ends


@pytest.fixture
def memory(pool: Pool) -> Memory:
    """For a PyTorch that sees two devices, of which the second was never used."""
    torch = SimpleNamespace(_C=SimpleNamespace(), cuda=SimpleNamespace(device_count=lambda: 2))
    return Memory(torch, {0: pool}.__getitem__)


def test_bytes_in_use_and_held_are_those_of_the_pool(memory: Memory, pool: Pool) -> None:
    kept, freed = pool.malloc(1000), pool.malloc(8 * MIB)
    pool.free(freed)
    stats = memory.stats(0)
    used = {"current": 1000, "peak": 1000 + 8 * MIB, "allocated": 1000 + 8 * MIB, "freed": 8 * MIB}
    for name in ("allocated_bytes", "requested_bytes", "active_bytes"):
        assert stats[name]["all"] == used
    held = pool.stats()
    reserved = stats["reserved_bytes"]["all"]
    assert (reserved["current"], reserved["peak"]) == (held.reserved, held.peak_reserved)
    assert (reserved["allocated"], reserved["freed"]) == (held.reserved, 0)
    assert stats["inactive_split_bytes"]["all"]["current"] == held.cached + held.waiting
    for name in ("allocation", "active"):
        assert stats[name]["all"] == {"current": 1, "peak": 0, "allocated": 2, "freed": 1}
    assert stats["num_device_alloc"] == held.device_growths
    assert stats["segment"]["all"]["current"] == held.pieces
    pool.free(kept)


def test_peaks_count_from_the_last_reset(memory: Memory, pool: Pool) -> None:
    kept, freed = pool.malloc(1000), pool.malloc(8 * MIB)
    pool.free(freed)
    pool.trim()
    assert memory.stats(0)["allocated_bytes"]["all"]["peak"] == 1000 + 8 * MIB
    memory.reset_peaks(0)
    stats = memory.stats(0)
    assert stats["allocated_bytes"]["all"]["peak"] == 1000
    assert stats["reserved_bytes"]["all"]["peak"] == pool.stats().reserved
    assert stats["allocated_bytes"]["all"]["freed"] == 8 * MIB  # sums stay
    pool.free(kept)


def test_sums_count_from_their_own_reset(memory: Memory, pool: Pool) -> None:
    kept, freed = pool.malloc(1000), pool.malloc(8 * MIB)
    pool.free(freed)
    held = pool.stats().reserved
    memory.reset_accumulated(0)
    assert pool.stats().allocation_count == 2  # the pool's own counters go on
    large = pool.malloc(64 * MIB)
    stats = memory.stats(0)
    usage, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
    assert (usage["allocated"], usage["freed"]) == (64 * MIB, 0)
    assert usage["current"] == usage["peak"] == 1000 + 64 * MIB
    assert stats["allocation"]["all"] == {"current": 2, "peak": 0, "allocated": 1, "freed": 0}
    grown = pool.stats().reserved - held
    assert (reserved["allocated"], reserved["freed"]) == (grown, 0)
    assert grown >= 48 * MIB
    pool.free(large)
    pool.trim()
    reserved = memory.stats(0)["reserved_bytes"]["all"]
    assert reserved["freed"] == pool.stats().released_bytes >= 48 * MIB
    pool.reset_stats()
    assert memory.stats(0)["allocated_bytes"]["all"]["allocated"] == 0
    pool.free(kept)


def test_a_device_that_was_never_used_has_nothing(memory: Memory, pool: Pool) -> None:
    stats = memory.stats(1)
    memory.reset_peaks(1)
    memory.reset_accumulated(1)
    assert stats["reserved_bytes"]["all"]["current"] == 0
    assert stats.keys() == memory.stats(0).keys()
    assert {segment["device"] for segment in memory.snapshot()["segments"]} <= {0}


@pytest.mark.parametrize("device", [-1, 2])
def test_an_unknown_device_is_the_error_of_pytorch(memory: Memory, device: int) -> None:
    calls: list[Callable[[], object]] = [
        lambda: memory.stats(device),
        lambda: memory.reset_peaks(device),
        lambda: memory.reset_accumulated(device),
        lambda: memory.set_fraction(0.5, device),
        lambda: memory.fraction(device),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match=rf"^Invalid device argument {device}: did you"):
            call()


def test_the_fraction_is_the_limit(memory: Memory, pool: Pool) -> None:
    total = pool.device.memory_info().total
    assert memory.fraction(0) == 1.0
    memory.set_fraction(0.25, 0)
    assert (pool.config.limit, memory.fraction(0)) == (total // 4, 0.25)
    with pytest.raises(MemoryError):
        pool.malloc(total // 4 + 1)
    memory.set_fraction(0.0, 0)
    assert pool.config.limit == 2 * MIB  # one page: the least that a pool has
    memory.set_fraction(1.0, 0)
    assert pool.config.limit is None


def test_a_snapshot_tells_every_byte(memory: Memory, pool: Pool) -> None:
    with pool.device.stream() as stream:
        kept = [pool.malloc(size, stream) for size in (1000, 3000, 8 * MIB)]
        for address in [pool.malloc(2000, stream), pool.malloc(32 * MIB, stream)]:
            pool.free(address)
        taken = memory.snapshot()
        segments = taken["segments"]
        assert sum(segment["total_size"] for segment in segments) == pool.stats().reserved
        for segment in segments:
            at = segment["address"]
            for block in segment["blocks"]:
                assert block["address"] == at
                at += block["size"]
            assert at == segment["address"] + segment["total_size"]
        live = {
            block["address"]: block["requested_size"]
            for segment in segments
            for block in segment["blocks"]
            if block["state"] == "active_allocated"
        }
        assert live == dict(zip(kept, (1000, 3000, 8 * MIB), strict=True))
        assert sum(segment["requested_size"] for segment in segments) == 4000 + 8 * MIB
        assert taken["device_traces"] == [[], []]
        assert memory.snapshot((0, 0, True))["segments"] == segments
        assert memory.snapshot((0, 7, True))["segments"] == []  # of a MemPool
        for address in kept:
            pool.free(address)


def test_only_names_that_pytorch_has_are_replaced(pool: Pool) -> None:
    torch = SimpleNamespace(
        _C=SimpleNamespace(_cuda_memoryStats=None), cuda=SimpleNamespace(device_count=lambda: 1)
    )
    Memory(torch, lambda device: pool).replace()
    assert vars(torch._C).keys() == {"_cuda_memoryStats"}
    assert torch._C._cuda_memoryStats(0)["num_ooms"] >= 0


# With PyTorch itself, whose CPU build has the Python half of torch.cuda.


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch, pool: Pool) -> ModuleType:
    """As on a card after install(pool)."""
    torch: Any = pytest.importorskip("torch")
    for name in NAMES:
        monkeypatch.setattr(torch._C, name, None, raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    for name, stand_in in (("is_initialized", lambda: True), ("_lazy_init", lambda: None)):
        monkeypatch.setattr(torch.cuda.memory, name, stand_in)
    monkeypatch.setattr(
        torch.cuda.memory, "_get_device_index", lambda device, optional=False: device or 0
    )
    Memory(torch, lambda device: pool).replace()
    assert not [name for name in NAMES if getattr(torch._C, name) is None]
    return sys.modules["torch"]


def test_torch_cuda_answers_from_the_pool(torch: Any, pool: Pool) -> None:
    kept, freed = pool.malloc(1000), pool.malloc(8 * MIB)
    pool.free(freed)
    held = pool.stats()
    assert torch.cuda.memory_allocated() == 1000
    assert torch.cuda.max_memory_allocated(0) == 1000 + 8 * MIB
    assert torch.cuda.memory_reserved() == held.reserved
    assert torch.cuda.max_memory_reserved() == held.peak_reserved
    with pytest.warns(FutureWarning):
        assert torch.cuda.memory_cached() == held.reserved
    with pytest.warns(FutureWarning):
        assert torch.cuda.max_memory_cached() == held.peak_reserved
    stats = torch.cuda.memory_stats()
    assert stats["allocation.all.current"] == 1
    assert all(isinstance(value, int) for value in stats.values())
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    assert torch.cuda.max_memory_allocated() == 1000
    assert torch.cuda.memory_stats()["allocated_bytes.all.allocated"] == 0
    pool.free(kept)


@pytest.mark.parametrize("abbreviated", [False, True])
def test_torch_memory_summary_prints(torch: Any, pool: Pool, abbreviated: bool) -> None:
    kept = pool.malloc(10 * MIB)
    shown = torch.cuda.memory_summary(abbreviated=abbreviated)
    assert "Allocated memory      |  10240 KiB |  10240 KiB |" in shown
    assert "CUDA OOMs: " in shown
    pool.free(kept)


def test_torch_viewers_read_the_snapshot(torch: Any, pool: Pool) -> None:
    from torch.cuda import _memory_viz

    kept, freed = pool.malloc(30 * MIB), pool.malloc(50 * MIB)
    pool.free(freed)
    taken = torch.cuda.memory._snapshot()
    assert taken["segments"] == torch.cuda.memory_snapshot()
    summary = _memory_viz.segsum(taken)
    assert "total_allocated: 30.0MiB" in summary
    assert f"segments: {len(taken['segments'])}" in summary
    lines = _memory_viz.segments(taken, format_flamegraph=str)
    assert f"active_allocated;<non-python> {30 * MIB}" in lines
    assert _memory_viz.trace(taken) == ""
    assert "<!DOCTYPE html>" in _memory_viz.segment_plot(taken)
    pool.free(kept)


def test_torch_fraction_is_checked_by_pytorch(torch: Any, pool: Pool) -> None:
    torch.cuda.set_per_process_memory_fraction(0.5)
    assert pool.config.limit == pool.device.memory_info().total // 2
    assert torch.cuda.get_per_process_memory_fraction() == 0.5
    for wrong, error in ((1, TypeError), (1.5, ValueError), (-0.1, ValueError)):
        with pytest.raises(error):
            torch.cuda.set_per_process_memory_fraction(wrong)
    assert pool.config.limit == pool.device.memory_info().total // 2


def test_torch_history_is_refused_with_what_to_do(torch: Any) -> None:
    for enabled in ("all", True):
        with pytest.raises(RuntimeError, match=r"records no history .*memory_snapshot\(\)"):
            torch.cuda.memory._record_memory_history(enabled)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # when inductor is imported
def test_torch_compile_goes_without_graph_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    torch: Any = pytest.importorskip("torch")
    compiler = torch._TorchCompileInductorWrapper
    monkeypatch.setattr(compiler, "apply_options", compiler.apply_options)
    _torch_graph_trees.leave_out(torch)
    for mode in ("reduce-overhead", "max-autotune"):
        with pytest.warns(UserWarning, match="without CUDA graphs") as warned:
            compiled = torch.compile(lambda data: data, mode=mode)
        assert warned[0].filename == __file__
        assert callable(compiled)
    without = compiler("max-autotune-no-cudagraphs", None, None)
    assert "triton.cudagraphs" not in without.config


# A lack of memory. PyTorch's functions are in C++: one like them calls the pool.


@pytest.fixture
def allocate(torch: Any, pool: Pool, library: CDLL, tmp_path: Path) -> Callable[[int], int | None]:
    source, built = PROGRAMS / "calls_as_torch.cpp", tmp_path / "calls_as_torch.so"
    folder = Path(torch.__file__).parent / "lib"
    link = [f"-L{folder}", "-ltorch_python", f"-Wl,-rpath,{folder}"]
    command = [compiler_of(source), *CPP17, "-shared", "-fPIC", str(source), *link]
    subprocess.run([*command, "-o", str(built)], check=True, timeout=120)
    call = ctypes.PyDLL(str(built)).allocate
    call.restype, call.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_ssize_t]
    malloc = _library.address("vramkit_torch_malloc")
    pool.configure(limit=64 * MIB)
    return lambda size: call(malloc, size)  # type: ignore[no-any-return]


@pytest.mark.parametrize("size", [256 << 10, MIB, 20 * MIB, 1 << 39])
def test_torch_raises_its_own_error_for_a_lack_of_memory(
    torch: Any, pool: Pool, allocate: Callable[[int], int], size: int
) -> None:
    blocks, before = [], torch.cuda.memory_stats()["num_ooms"]
    with pytest.raises(torch.OutOfMemoryError, match=f"asked for {size} bytes") as caught:
        while True:
            blocks.append(allocate(size))
    assert str(caught.value).startswith("CUDA out of memory. out of device memory: ")
    assert len(blocks) == pool.stats().current_usage // size
    assert torch.cuda.memory_stats()["num_ooms"] == before + 1
    for address in blocks:
        pool.free(address)
    block = allocate(4 * MIB)  # and goes on
    pool.free(block)


def test_torch_raises_it_on_another_thread(torch: Any, allocate: Callable[[int], int]) -> None:
    with ThreadPoolExecutor(1) as threads:
        error = threads.submit(allocate, 1 << 39).exception()
    assert type(error) is torch.OutOfMemoryError


def test_torch_raises_a_runtime_error_for_anything_else(
    torch: Any, allocate: Callable[[int], int]
) -> None:
    with pytest.raises(RuntimeError, match=r"^size is -1; it may be 0 or more$") as caught:
        allocate(-1)
    assert type(caught.value) is RuntimeError
