"""The library as Python's ctypes sees it, in the process of the tests."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from ctypes import CDLL, POINTER, c_char_p, c_int, c_size_t, c_void_p

import pytest

import vramkit
from vramkit.driver import Device, Driver, Stream

CURRENT_STREAM = ctypes.CFUNCTYPE(c_void_p)

# Result and arguments by function.
SIGNATURES = {
    "vramkit_last_status": (c_int,),
    "vramkit_last_error": (c_char_p,),
    "vramkit_pool_instance": (c_void_p, c_int),
    "vramkit_pool_close": (c_int, c_void_p),
    "vramkit_malloc": (c_void_p, c_void_p, c_size_t, c_void_p),
    "vramkit_free": (c_int, c_void_p, c_void_p),
    "vramkit_free_on": (c_int, c_void_p, c_void_p, c_void_p),
    "vramkit_stream_closing": (c_int, c_void_p),
    "vramkit_torch_malloc": (c_void_p, ctypes.c_ssize_t, c_int, c_void_p),
    "vramkit_torch_free": (None, c_void_p, ctypes.c_ssize_t, c_int, c_void_p),
    "vramkit_torch_use": (c_int, c_int, c_void_p),
    "vramkit_cupy_create": (c_void_p, c_void_p, CURRENT_STREAM),
    "vramkit_cupy_destroy": (None, c_void_p),
    "vramkit_cupy_malloc": (c_void_p, c_void_p, c_size_t, c_int),
    "vramkit_cupy_free": (None, c_void_p, c_void_p, c_int),
    "vramkit_trim": (c_int, c_void_p, POINTER(ctypes.c_uint64)),
}


@pytest.fixture
def device(driver: Driver) -> Device:
    return driver.device()


@pytest.fixture
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> CDLL:
    monkeypatch.setenv("VRAMKIT_DRIVER", request.config.getoption("driver"))
    loaded = CDLL(vramkit.get_library())
    for name, (result, *arguments) in SIGNATURES.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


@pytest.fixture
def own(device: Device) -> Iterator[Stream]:
    with device.stream() as stream:
        yield stream
