"""What each framework is told by its integration, seen by stand-ins for framework and library."""

from __future__ import annotations

import gc
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from vramkit import get_library
from vramkit.integrations import _library, cupy, rmm, torch

from .stand_ins import STREAM, Library, Pool, add_module, capsule

SIGNATURE = b"intptr_t (void)"


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library()
    monkeypatch.setattr(_library, "library", lambda: made)
    return made


# PyTorch


class FakeCompiler:
    """What torch.compile makes of its options."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.config: dict[str, Any] = {}
        self.apply_options(options)

    def apply_options(self, options: dict[str, Any]) -> None:
        self.config |= options


class FakeTorch:
    """Notes the allocators that are made and the functions that they are told."""

    def __init__(self, patch: pytest.MonkeyPatch, *, used: bool = False) -> None:
        self.used = used
        self.hooks: dict[str, int] = {}
        self.made: list[tuple[str, str, str]] = []
        self.current: Any = None
        memory = SimpleNamespace(
            CUDAPluggableAllocator=self.make, change_current_allocator=self.change
        )
        add_module(
            patch,
            "torch",
            backends=SimpleNamespace(cuda=SimpleNamespace(is_built=lambda: True)),
            cuda=SimpleNamespace(
                memory=memory,
                init=self.start,
                MemPool=self.make_mem_pool,
                device_count=lambda: 4,
            ),
            _C=SimpleNamespace(
                _cuda_resetPeakMemoryStats=None,
                _cuda_getCheckpointState=None,
            ),
            _TorchCompileInductorWrapper=type("Compiler", (FakeCompiler,), {}),
        )
        patch.setattr(torch, "_installed", None)
        patch.setattr(torch, "_given", {})

    def start(self) -> None:
        self.used = True

    def make_mem_pool(self, allocator: object) -> tuple[str, object]:
        assert self.used, "PyTorch crashes without"
        return "MemPool", allocator

    def make(self, *names: str) -> Any:
        self.made.append(names)  # type: ignore[arg-type]
        setters = {name: self.setter(name) for name in torch.HOOKS}
        return SimpleNamespace(allocator=lambda: SimpleNamespace(**setters))

    def setter(self, name: str) -> Any:
        return lambda address: self.hooks.update({name: address})

    def change(self, allocator: object) -> None:
        if self.used:
            raise RuntimeError("Can't swap an already initialized allocator")
        self.current = allocator


def test_torch_is_told_of_every_function(monkeypatch: pytest.MonkeyPatch, library: Library) -> None:
    fake, pool = FakeTorch(monkeypatch), Pool(ordinal=3)
    assert torch.install(pool) is pool
    assert fake.made == [(get_library(), "vramkit_torch_malloc", "vramkit_torch_free")]
    assert fake.hooks == {setter: library.address(name) for setter, name in torch.HOOKS.items()}
    assert fake.current is not None
    assert library.calls == [("torch_use", 3, Pool.c_handle)]


def test_torch_installed_twice_changes_the_pool_alone(
    monkeypatch: pytest.MonkeyPatch, library: Library
) -> None:
    fake, first, second = FakeTorch(monkeypatch), Pool(), Pool()
    torch.install(first)
    fake.used = True  # PyTorch refuses a second allocator, and is not asked
    assert torch.install(second, device=0) is second
    assert len(fake.made) == 1
    assert len(library.calls) == 2


def test_torch_asks_the_pool_that_serves_the_device(
    monkeypatch: pytest.MonkeyPatch, library: Library
) -> None:
    FakeTorch(monkeypatch)
    shared = {device: Pool(device) for device in range(4)}
    monkeypatch.setattr("vramkit.Pool.instance", lambda device: shared[device])
    ask, first, second = sys.modules["torch"]._C, Pool(ordinal=1), Pool(ordinal=1)
    asked = [first, second, shared[1]]
    torch.install(first)
    ask._cuda_resetPeakMemoryStats(1)
    torch.install(second)
    ask._cuda_resetPeakMemoryStats(1)
    torch._serve(None, second)  # type: ignore[arg-type]  # as install() without a pool
    ask._cuda_resetPeakMemoryStats(1)
    ask._cuda_resetPeakMemoryStats(3)
    assert [pool.calls for pool in (*asked, shared[3])] == [[("reset_peaks",)]] * 4


def test_torch_compiles_without_graph_trees(
    monkeypatch: pytest.MonkeyPatch, library: Library
) -> None:
    FakeTorch(monkeypatch)
    trees = SimpleNamespace(cudagraph_trees=True)
    add_module(monkeypatch, "torch._inductor.config", triton=trees)
    torch.install(Pool())
    compiler = sys.modules["torch"]._TorchCompileInductorWrapper
    wanted = {"triton.cudagraphs": True}
    with pytest.warns(UserWarning, match=r"without CUDA graphs: .*cudagraph_trees = False before"):
        assert compiler(wanted).config == {"triton.cudagraphs": False}
    for kept in ({}, {"max_autotune": True}, {**wanted, "triton.cudagraph_trees": False}):
        assert compiler(kept).config == kept
    trees.cudagraph_trees = False
    assert compiler(wanted).config == wanted
    with pytest.raises(RuntimeError, match=r"install\(\) before torch\.compile.*default mode"):
        sys.modules["torch"]._C._cuda_getCheckpointState(0, (0, 1))


def test_torch_that_has_used_cuda_is_refused(
    monkeypatch: pytest.MonkeyPatch, library: Library
) -> None:
    FakeTorch(monkeypatch, used=True)
    with pytest.raises(RuntimeError, match=r"before the first CUDA tensor, or use mem_pool\(\)"):
        torch.install(Pool())
    assert library.calls == []


def test_torch_pool_of_another_device_is_refused(
    monkeypatch: pytest.MonkeyPatch, library: Library
) -> None:
    FakeTorch(monkeypatch)
    with pytest.raises(ValueError, match="device is 1, and the pool is of device 0"):
        torch.install(Pool(), device=1)


def test_torch_mem_pool_has_an_allocator_that_may_fail(
    monkeypatch: pytest.MonkeyPatch, library: Library
) -> None:
    fake = FakeTorch(monkeypatch)
    kind, _ = torch.mem_pool(Pool(ordinal=2))
    assert kind == "MemPool"
    assert fake.made == [(get_library(), "vramkit_torch_segment", "vramkit_torch_free")]
    assert fake.current is None
    assert library.calls == [("torch_use", 2, Pool.c_handle)]


def test_torch_tells_what_the_library_refuses(
    monkeypatch: pytest.MonkeyPatch, library: Library
) -> None:
    FakeTorch(monkeypatch)
    library.status, library.error = 1, "device is 99"
    with pytest.raises(RuntimeError, match="device is 99"):
        torch.install(Pool())


# CuPy


class FakeCupy:
    """One allocator at a time, and blocks at the address that is set."""

    class OutOfMemoryError(MemoryError):
        def __init__(self, size: int, total: int) -> None:
            super().__init__(f"{size} of {total}")

    def __init__(self, patch: pytest.MonkeyPatch, **functions: object) -> None:
        self.allocator: Any = "CuPy's own"
        self.made: list[tuple[Any, ...]] = []
        self.address = 0x2000
        add_module(patch, "cupy")
        add_module(
            patch, "cupy.cuda", get_allocator=lambda: self.allocator, set_allocator=self.change
        )
        add_module(
            patch,
            "cupy.cuda.memory",
            CFunctionAllocator=self.make,
            OutOfMemoryError=self.OutOfMemoryError,
        )
        add_module(patch, "cupy_backends")
        add_module(patch, "cupy_backends.cuda")
        add_module(patch, "cupy_backends.cuda.stream", __pyx_capi__=functions)
        patch.setattr(cupy, "_replaced", None)
        patch.setattr(cupy, "_params", {})

    def change(self, allocator: object) -> None:
        self.allocator = allocator

    def make(self, *arguments: object) -> Any:
        self.made.append(arguments)
        return SimpleNamespace(malloc=lambda size: SimpleNamespace(ptr=self.address))


@pytest.fixture
def fake_cupy(monkeypatch: pytest.MonkeyPatch) -> FakeCupy:
    return FakeCupy(monkeypatch, get_current_stream_ptr=capsule(SIGNATURE))


def test_cupy_is_given_c_functions(fake_cupy: FakeCupy, library: Library) -> None:
    pool = Pool()
    assert cupy.install(pool) is pool
    assert library.calls == [("cupy_create", Pool.c_handle, STREAM)]
    param, malloc, free, owner = fake_cupy.made[0]
    assert (param, owner) == (0xABC, pool)
    assert malloc == library.address("vramkit_cupy_malloc")
    assert free == library.address("vramkit_cupy_free")
    assert fake_cupy.allocator(100).ptr == 0x2000


def test_cupy_uninstall_restores_what_was_there(fake_cupy: FakeCupy, library: Library) -> None:
    cupy.install(Pool())
    cupy.install(Pool())
    cupy.uninstall()
    assert fake_cupy.allocator == "CuPy's own"
    with pytest.raises(RuntimeError, match=r"call install\(\) first"):
        cupy.uninstall()


def test_cupy_param_outlives_its_allocator(fake_cupy: FakeCupy, library: Library) -> None:
    first, second = Pool(), Pool()
    second.c_handle = 0xBEEF
    for pool in (first, first, second, first):
        cupy.allocator(pool)
        gc.collect()
    created = [handle for _, handle, _ in library.calls]
    assert created == [Pool.c_handle, 0xBEEF]  # once each, and nothing is destroyed


def test_cupy_gets_no_null_pointer(fake_cupy: FakeCupy, library: Library) -> None:
    malloc = cupy.allocator(Pool())
    fake_cupy.address = 0
    assert malloc(0).ptr == 0
    library.status, library.error = _library.OUT_OF_MEMORY, "asked for 5 bytes"
    with pytest.raises(FakeCupy.OutOfMemoryError, match=r"^asked for 5 bytes$"):
        malloc(5)
    library.status, library.error = 1, "the pool is of device 0"
    with pytest.raises(RuntimeError, match="the pool is of device 0"):
        malloc(5)


def test_cupy_allocates_without_python_code(
    monkeypatch: pytest.MonkeyPatch, fake_cupy: FakeCupy, library: Library
) -> None:
    block = SimpleNamespace(ptr=0x3000)
    made = SimpleNamespace(malloc={100: block}.__getitem__)  # a function of C, as CuPy's own
    monkeypatch.setattr(sys.modules["cupy.cuda.memory"], "CFunctionAllocator", lambda *_: made)
    malloc, run = cupy.allocator(Pool()), []
    sys.setprofile(lambda frame, event, _: run.append(frame) if event == "call" else None)
    try:
        assert malloc(100) is block
    finally:
        sys.setprofile(None)
    assert run == []
    with pytest.raises(KeyError):
        malloc(200)  # what CuPy's own function raises


def test_cupy_that_tells_no_stream_is_refused(
    monkeypatch: pytest.MonkeyPatch, library: Library
) -> None:
    FakeCupy(monkeypatch)
    with pytest.raises(RuntimeError, match=r"get_current_stream_ptr in .* is not there"):
        cupy.allocator(Pool())
    other = b"void (int)"
    FakeCupy(monkeypatch, get_current_stream_ptr=capsule(other))
    with pytest.raises(RuntimeError, match=r"should be 'intptr_t \(void\)' and is 'void \(int\)'"):
        cupy.allocator(Pool())
    assert library.calls == []


# RMM


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[int, Any]:
    """The two functions of RMM's resource of each device."""
    made: dict[int, Any] = {}
    resources = SimpleNamespace(
        CallbackMemoryResource=lambda *functions: functions,
        set_per_device_resource=made.__setitem__,
    )
    add_module(monkeypatch, "rmm", mr=resources)
    return made


def test_rmm_calls_the_pool_in_stream_order(installed: dict[int, Any]) -> None:
    pool, stream = Pool(ordinal=1), object()
    assert rmm.install(pool) is pool
    allocate, deallocate = installed[1]
    assert allocate(4096, stream) == 0x1000
    deallocate(0x1000, 4096, stream)
    assert pool.calls == [("malloc", 4096, stream), ("free", 0x1000, 4096, stream)]


def test_rmm_has_the_null_pointer_for_nothing(installed: dict[int, Any]) -> None:
    pool, stream = Pool(), object()
    rmm.install(pool)
    allocate, deallocate = installed[0]
    assert allocate(0, stream) == 0
    deallocate(0, 0, stream)
    assert pool.calls == []


# What is no pool


@pytest.mark.parametrize("given", [5, "pool", Pool])
def test_what_is_no_pool_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    fake_cupy: FakeCupy,
    installed: dict[int, Any],
    library: Library,
    given: Any,
) -> None:
    FakeTorch(monkeypatch)
    for install in (torch.install, torch.mem_pool, cupy.install, cupy.allocator):
        with pytest.raises(TypeError, match=r"pool is .*; it must be a vramkit\.Pool"):
            install(given)
    for use in (rmm.install, rmm.memory_resource):
        with pytest.raises(TypeError, match="is no resource of vramkit, such as a Pool"):
            use(given)
    assert (installed, library.calls) == ({}, [])


def test_a_resource_that_c_cannot_use_is_refused(
    monkeypatch: pytest.MonkeyPatch, library: Library
) -> None:
    FakeTorch(monkeypatch)
    adaptor: Any = SimpleNamespace(device=Pool().device, malloc=None, free=None)
    with pytest.raises(TypeError, match=r"it must be a vramkit\.Pool"):
        torch.install(adaptor)
