"""cuGetProcAddress: versions, variants, and what it says about names it does not know."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from .support import NOT_READY, SUCCESS, Raw, name, ok

DEFAULT, LEGACY, PER_THREAD = 0, 1, 2
FOUND, NOT_FOUND, VERSION_TOO_LOW = 0, 1, 2


def look_up(raw: Any, symbol: bytes, version: int, flags: int = 0) -> tuple[str, int, int]:
    """Error name, address and status; -1 where the driver wrote no status."""
    address, status = ctypes.c_void_p(0), ctypes.c_int(-1)
    answer = raw.cuGetProcAddress(
        symbol,
        ctypes.byref(address),
        ctypes.c_int(version),
        ctypes.c_uint64(flags),
        ctypes.byref(status),
    )
    return answer, address.value or 0, status.value


CALLS = """
cuInit cuDriverGetVersion cuDeviceGet cuDeviceGetCount cuDeviceGetName cuDeviceGetAttribute
cuDeviceTotalMem cuDevicePrimaryCtxRetain cuCtxGetCurrent cuCtxSetCurrent cuCtxSynchronize
cuStreamCreate cuStreamCreateWithPriority cuStreamDestroy cuStreamQuery cuStreamSynchronize
cuStreamWaitEvent cuStreamGetId cuStreamIsCapturing cuEventCreate cuEventRecord cuEventQuery
cuEventSynchronize cuEventElapsedTime cuEventDestroy cuMemAlloc cuMemFree cuMemGetInfo
cuMemHostAlloc cuMemFreeHost cuMemHostRegister cuMemHostUnregister cuMemcpyHtoDAsync
cuMemcpyDtoHAsync cuMemcpyDtoDAsync cuMemcpyAsync cuMemsetD8Async cuMemsetD32Async
cuMemAddressReserve cuMemCreate cuMemMap cuMemSetAccess cuMemUnmap cuMemRelease cuMemAddressFree
cuLaunchHostFunc cuLaunchKernel cuModuleLoadData cuModuleGetFunction cuStreamWriteValue32
cuStreamWaitValue32 cuStreamWriteValue64 cuStreamWaitValue64 cuPointerGetAttribute
cuPointerGetAttributes cuGetErrorName cuGetErrorString cuGetProcAddress
"""


@pytest.mark.parametrize("call", CALLS.split())
def test_call_is_found(raw, call):
    answer, address, status = look_up(raw, call.encode(), 13000)
    assert (answer, status) == (SUCCESS, FOUND)
    assert address


def test_unknown_name(raw, observe):
    answer, address, status = look_up(raw, b"cuNoSuchCall", 13000)
    assert address == 0
    observe("entry point of an unknown name", [answer, status])


def test_versioned_name(raw, observe):
    answer, address, status = look_up(raw, b"cuMemAlloc_v2", 13000)
    observe("entry point of a name with its version", [answer, bool(address), status])


def test_empty_name(raw, observe):
    answer, address, status = look_up(raw, b"", 13000)
    observe("entry point of an empty name", [answer, bool(address), status])


@pytest.mark.parametrize(
    ("call", "version"),
    [
        ("cuMemAddressReserve", 10010),
        ("cuLaunchHostFunc", 9000),
        ("cuStreamGetId", 11080),
    ],
)
def test_version_before_the_call_existed(raw, observe, call, version):
    answer, address, status = look_up(raw, call.encode(), version)
    assert address == 0
    assert status == VERSION_TOO_LOW
    observe(f"{call} asked for in version {version}", answer)


@pytest.mark.parametrize(
    ("call", "version"),
    [("cuMemAddressReserve", 10020), ("cuLaunchHostFunc", 10000), ("cuStreamGetId", 12000)],
)
def test_first_version_of_a_call(raw, call, version):
    answer, address, status = look_up(raw, call.encode(), version)
    assert (answer, status) == (SUCCESS, FOUND)
    assert address


def test_version_far_beyond_the_driver(raw, observe):
    answer, address, status = look_up(raw, b"cuMemAlloc", 99000)
    observe("entry point in a version beyond the driver", [answer, bool(address), status])


def test_default_search_is_the_legacy_one(raw):
    for call in (b"cuMemcpyHtoDAsync", b"cuLaunchKernel", b"cuMemAlloc"):
        assert look_up(raw, call, 13000, DEFAULT) == look_up(raw, call, 13000, LEGACY)


@pytest.mark.parametrize(
    "call", ["cuMemcpyHtoDAsync", "cuMemsetD8", "cuLaunchKernel", "cuEventRecord", "cuStreamQuery"]
)
def test_calls_with_a_per_thread_variant(raw, call):
    plain = look_up(raw, call.encode(), 13000, LEGACY)
    variant = look_up(raw, call.encode(), 13000, PER_THREAD)
    assert variant[0] == SUCCESS
    assert variant[1] not in (0, plain[1])


@pytest.mark.parametrize("call", ["cuMemAlloc", "cuStreamCreate", "cuEventQuery", "cuMemMap"])
def test_calls_without_a_per_thread_variant(raw, call):
    plain = look_up(raw, call.encode(), 13000, LEGACY)
    assert look_up(raw, call.encode(), 13000, PER_THREAD) == plain


def test_unknown_search_flags(raw, observe):
    answer, address, _ = look_up(raw, b"cuMemAlloc", 13000, 1 << 8)
    observe("entry point with unknown search flags", [answer, bool(address)])


def test_both_search_flags(raw, observe):
    answer, address, _ = look_up(raw, b"cuMemAlloc", 13000, LEGACY | PER_THREAD)
    observe("entry point with both search flags", [answer, bool(address)])


def test_status_may_be_left_out(raw):
    address = ctypes.c_void_p(0)
    answer = raw.cuGetProcAddress(
        b"cuMemAlloc", ctypes.byref(address), ctypes.c_int(13000), ctypes.c_uint64(0), None
    )
    assert answer == SUCCESS
    assert address.value


def test_null_stream_of_a_per_thread_variant_is_the_per_thread_stream(cu, scope, kernels):
    per_thread = Raw(cu.module, per_thread=True)
    blocking = scope.stream(0)
    kernels.spin(blocking)
    event = scope.recorded(blocking)
    memory = ctypes.c_uint64(scope.alloc(4096))
    assert (
        per_thread.cuMemsetD8Async(memory, ctypes.c_ubyte(5), ctypes.c_size_t(4096), None)
        == SUCCESS
    )
    # In the legacy stream it would wait for the blocking one.
    assert per_thread.cuStreamSynchronize(None) == SUCCESS
    assert name(cu.cuEventQuery(event)) == NOT_READY
    ok(cu.cuEventSynchronize(event))
