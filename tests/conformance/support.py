"""Opens the driver under test and turns the result tuples of cuda.bindings into values or names."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

SIMULATOR_SETTINGS = "profile={profile},clock=virtual,checker=on,data=on"

SUCCESS = "CUDA_SUCCESS"
INVALID_VALUE = "CUDA_ERROR_INVALID_VALUE"
INVALID_HANDLE = "CUDA_ERROR_INVALID_HANDLE"
INVALID_CONTEXT = "CUDA_ERROR_INVALID_CONTEXT"
INVALID_DEVICE = "CUDA_ERROR_INVALID_DEVICE"
NOT_READY = "CUDA_ERROR_NOT_READY"
NOT_FOUND = "CUDA_ERROR_NOT_FOUND"
NOT_SUPPORTED = "CUDA_ERROR_NOT_SUPPORTED"
NOT_INITIALIZED = "CUDA_ERROR_NOT_INITIALIZED"
OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"
ILLEGAL_ADDRESS = "CUDA_ERROR_ILLEGAL_ADDRESS"
ALREADY_REGISTERED = "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"
NOT_REGISTERED = "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

# Long enough that no host call made right after the launch can find the kernel finished.
SPIN_NANOSECONDS = 100_000_000

_opened: list[ctypes.CDLL] = []


def simulator_path() -> Path:
    import vramkit._core

    return Path(vramkit._core.__file__).parent / "_lib" / "sim" / "libcuda.so.1"


def open_driver(spec: str) -> ModuleType:
    """cuda.bindings.driver bound to "cuda", "sim" or "sim:PROFILE". Comes before its first call.

    A library that is already loaded under the name libcuda.so.1 is what cuda.bindings' own
    dlopen finds, so opening the simulated GPU by its path is all the selection there is.
    """
    # With the default of 8 queues, independent streams may share one and hold each other up.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    kind, _, profile = spec.partition(":")
    if kind == "sim" and not _opened:
        os.environ["VRAMKIT_SIM"] = SIMULATOR_SETTINGS.format(profile=profile or "h200")
        library = ctypes.CDLL(str(simulator_path()))
        _opened.append(library)
        # Where another suite of this process has used it before, its settings must not stay.
        assert library.simReset(os.environ["VRAMKIT_SIM"].encode(), None, ctypes.c_size_t(0)) == 0
    import cuda.bindings.driver as driver

    return driver


def name(result: tuple[Any, ...]) -> str:
    """The error name of a result tuple, e.g. "CUDA_ERROR_INVALID_VALUE"."""
    return str(result[0].name)


def code(result: tuple[Any, ...]) -> Any:
    """The CUresult of a result tuple."""
    return result[0]


def ok(result: tuple[Any, ...]) -> Any:
    """The value (or tuple of values) of a call that must succeed."""
    if int(result[0]) != 0:
        raise AssertionError(f"call failed: {name(result)} ({int(result[0])})")
    values = result[1:]
    return None if not values else values[0] if len(values) == 1 else values


class RawEnum(int):
    """A number where cuda.bindings wants a member of an enumeration: for values that are none."""

    @property
    def value(self) -> int:
        return int(self)


class Raw:
    """Driver calls through the pointers of cuGetProcAddress: null outputs, raw outputs, variants.

    Arguments are ctypes objects; the answer is the error name. Each pointer is asked for by base
    name, in the version of the driver itself or in the one given.
    """

    def __init__(
        self, driver: ModuleType, *, per_thread: bool = False, version: int | None = None
    ) -> None:
        self._driver = driver
        self._version = version or int(ok(driver.cuDriverGetVersion()))
        search = driver.CUdriverProcAddress_flags
        self._flags = int(
            search.CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
            if per_thread
            else search.CU_GET_PROC_ADDRESS_LEGACY_STREAM
        )

    def __getattr__(self, base_name: str) -> Callable[..., str]:
        address, _ = ok(
            self._driver.cuGetProcAddress(base_name.encode(), self._version, self._flags)
        )
        assert address, f"{base_name} has no entry point"
        function = ctypes.CFUNCTYPE(ctypes.c_int)(int(address))
        function.argtypes = None

        def call(*arguments: Any) -> str:
            return str(self._driver.CUresult(function(*arguments)).name)

        return call


def create_context(driver: ModuleType, device: Any, flags: int = 0) -> Any:
    """The raw result of cuCtxCreate, whose Python signature grew a first parameter."""
    if "ctxCreateParams" in (driver.cuCtxCreate.__doc__ or ""):
        return driver.cuCtxCreate(None, flags, device)
    return driver.cuCtxCreate(flags, device)


def in_thread(body: Callable[[], Any]) -> Any:
    """Runs `body` in a new thread, which starts without a current context."""
    answers: list[Any] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(body())
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return answers[0]
