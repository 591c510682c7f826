"""PyTorch's memory from a vramkit pool: all of it (install), or what a MemPool serves (mem_pool).

PyTorch calls C functions of libvramkit.so; no Python runs when a tensor is made.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from vramkit import get_library
from vramkit.integrations import _library, _torch_graph_trees
from vramkit.integrations._frameworks import imported, refuse_simulated
from vramkit.integrations._torch_memory import Memory

if TYPE_CHECKING:
    from vramkit import Pool
    from vramkit.driver import Device

# What PyTorch is told beside malloc and free: its setter -> our function.
HOOKS = {
    "set_record_stream_fn": "vramkit_torch_record_stream",
    "set_reset_fn": "vramkit_torch_empty_cache",
}

_installed: Any = None
_given: dict[int, Pool] = {}  # pools that callers chose, by device; the others are process-wide


def install(pool: Pool | None = None, *, device: Device | int | None = None) -> Pool:
    """Make PyTorch allocate all CUDA memory from vramkit. Returns the pool that serves the device.

    Must be called before PyTorch's first use of CUDA, and lasts until the process ends. A pool
    serves its own device; every other device uses Pool.instance(device). A second call changes the
    pool: memory of existing tensors goes back to the pool it came from.

    PyTorch's own questions about memory (torch.cuda.memory_allocated, memory_stats,
    memory_snapshot, ...) are answered by the pools from here on.
    """
    global _installed
    torch = _usable_torch()
    chosen = _choose(pool, device)
    if _installed is None:
        allocator = _pluggable(torch, "vramkit_torch_malloc")
        hooks = allocator.allocator()
        for setter, function in HOOKS.items():
            getattr(hooks, setter)(_library.address(function))
        try:
            torch.cuda.memory.change_current_allocator(allocator)
        except RuntimeError as error:
            raise RuntimeError(
                "PyTorch has used CUDA with its own allocator already, which it cannot change "
                "then; call vramkit.integrations.torch.install() before the first CUDA tensor, or "
                "use mem_pool() for a part of the program"
            ) from error
        _installed = allocator
        Memory(torch, _pool_of).replace()
        _torch_graph_trees.leave_out(torch)
    _serve(pool, chosen)
    return chosen


def serving(device: int = 0) -> Pool | None:
    """The pool that install() made serve the device; None before install()."""
    return None if _installed is None else _pool_of(device)


def mem_pool(pool: Pool | None = None, *, device: Device | int | None = None) -> Any:
    """A torch.cuda.MemPool with vramkit's memory, for `with torch.cuda.use_mem_pool(...)`.

    May be used at any time, beside PyTorch's own allocator, which splits the blocks it gets from
    the pool and keeps them until the MemPool is deleted.
    """
    torch = _usable_torch()
    _serve(pool, _choose(pool, device))
    torch.cuda.init()  # a MemPool of an allocator that PyTorch has not set up yet is a crash
    return torch.cuda.MemPool(_pluggable(torch, "vramkit_torch_segment").allocator())


def _usable_torch() -> Any:
    torch = imported("torch", "torch with CUDA, see pytorch.org")
    if not torch.backends.cuda.is_built():
        raise RuntimeError(
            f"this PyTorch ({torch.__version__}) was built without CUDA; install one with CUDA"
        )
    return torch


def _choose(pool: Pool | None, device: Device | int | None) -> Pool:
    import vramkit

    if pool is None:
        driver = device.driver if isinstance(device, vramkit.driver.Device) else None
        refuse_simulated(driver or vramkit.driver.open(), "PyTorch")
        return vramkit.Pool.instance(device)
    refuse_simulated(_library.usable_pool(pool).device.driver, "PyTorch")
    ordinal = device.ordinal if isinstance(device, vramkit.driver.Device) else device
    if ordinal not in (None, pool.device.ordinal):
        raise ValueError(
            f"device is {ordinal}, and the pool is of device {pool.device.ordinal}; give one"
        )
    return pool


def _serve(pool: Pool | None, chosen: Pool) -> None:
    ordinal = chosen.device.ordinal
    if _library.library().vramkit_torch_use(ordinal, _library.handle(pool)) != 0:
        raise RuntimeError(_library.last_error())
    if pool is None:
        _given.pop(ordinal, None)
    else:
        _given[ordinal] = pool


def _pool_of(device: int) -> Pool:
    import vramkit

    given = _given.get(device)
    return vramkit.Pool.instance(device) if given is None else given


def _pluggable(torch: Any, malloc: str) -> Any:
    made = torch.cuda.memory.CUDAPluggableAllocator(get_library(), malloc, "vramkit_torch_free")
    # PyTorch keeps bare pointers to it and uses them until the process has ended: it must outlive
    # Python's own shutdown.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))
    return made
