"""CuPy's memory from a vramkit pool, in the order of CuPy's current stream.

CuPy calls C functions of libvramkit.so, and those ask CuPy's own C function for the stream.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any

from vramkit import _core
from vramkit.integrations import _library
from vramkit.integrations._frameworks import imported, refuse_simulated

if TYPE_CHECKING:
    from vramkit import Pool

PACKAGES = "cupy-cuda12x or cupy-cuda13x"
STREAM_MODULE = "cupy_backends.cuda.stream"
STREAM_FUNCTION = "get_current_stream_ptr"
STREAM_SIGNATURE = b"intptr_t (void)"

_replaced: Any = None
_lock = Lock()
_params: dict[int | None, tuple[int, Pool | None]] = {}
"""By the handle of the pool; None: the process-wide ones."""


def install(pool: Pool | None = None) -> Pool:
    """Make CuPy allocate from vramkit. Returns the pool; uninstall() undoes it.

    A pool serves only its own device; without one, each device uses Pool.instance(device).
    """
    global _replaced
    cupy = imported("cupy", PACKAGES)
    chosen = _choose(pool)
    made = allocator(pool)
    before = cupy.cuda.get_allocator()
    cupy.cuda.set_allocator(made)
    if _replaced is None:
        _replaced = before
    return chosen


def uninstall() -> None:
    """Restore the allocator from before install(). Existing arrays keep their memory."""
    global _replaced
    if _replaced is None:
        raise RuntimeError("vramkit is not installed in CuPy; call install() first")
    cupy = imported("cupy", PACKAGES)
    cupy.cuda.set_allocator(_replaced)
    _replaced = None


def allocator(pool: Pool | None = None) -> Callable[[int], Any]:
    """For cupy.cuda.set_allocator or `with cupy.cuda.using_allocator(...)`."""
    memory = imported("cupy.cuda.memory", PACKAGES)
    _choose(pool)
    unchecked = memory.CFunctionAllocator(
        _param(pool),
        _library.address("vramkit_cupy_malloc"),
        _library.address("vramkit_cupy_free"),
        pool,
    )
    # CuPy would use the null pointer of a C function that has failed.
    return _core.CheckedAllocator(unchecked.malloc, partial(_failure, memory))


def _failure(memory: Any) -> Exception:
    words = _library.last_error()
    if not _library.was_short_of_memory():
        return RuntimeError(words)
    # CuPy's class makes its message from three numbers; ours says more.
    error: Exception = memory.OutOfMemoryError.__new__(memory.OutOfMemoryError, words)
    return error


def _param(pool: Pool | None) -> int:
    """What the C functions are called with. CuPy's blocks keep its bare address, and nothing that
    would keep it alive: it stays until the process ends, and the pool with it.
    """
    handle = _library.handle(pool)
    with _lock:
        if handle not in _params:
            create = _library.library().vramkit_cupy_create
            made: int | None = create(handle, _current_stream_function())
            if made is None:
                raise RuntimeError(_library.last_error())
            _params[handle] = made, pool
        return _params[handle][0]


def _current_stream_function() -> int:
    """The address of the function by which CuPy's own C code knows its current stream."""
    module = imported(STREAM_MODULE, PACKAGES)
    capsule = getattr(module, "__pyx_capi__", {}).get(STREAM_FUNCTION)
    name = _capsule_name(capsule) if capsule is not None else None
    if name != STREAM_SIGNATURE:
        found = "is not there" if name is None else f"is '{name.decode()}'"
        raise RuntimeError(
            f"this CuPy does not tell its current stream: {STREAM_FUNCTION} in "
            f"{STREAM_MODULE}.__pyx_capi__ should be '{STREAM_SIGNATURE.decode()}' and {found}; "
            "CuPy 13 and 14 are known to work"
        )
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address: int = pointer(capsule, name)
    return address


def _capsule_name(capsule: object) -> bytes | None:
    get_name = ctypes.pythonapi.PyCapsule_GetName
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    name: bytes | None = get_name(capsule)
    return name


def _choose(pool: Pool | None) -> Pool:
    import vramkit

    if pool is None:
        refuse_simulated(vramkit.driver.open(), "CuPy")
        return vramkit.Pool.instance()
    refuse_simulated(_library.usable_pool(pool).device.driver, "CuPy")
    return pool
