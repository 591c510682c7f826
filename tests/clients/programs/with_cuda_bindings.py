"""Plain driver calls through cuda-bindings; nothing here knows of a simulated GPU."""

import ctypes
from typing import Any

import numpy as np
from cuda.bindings import driver

PAGE = 2 << 20


def _ok(answer: tuple[Any, ...]) -> Any:
    """The results of a call that must succeed."""
    code, *results = answer
    assert code == driver.CUresult.CUDA_SUCCESS, driver.cuGetErrorName(code)
    if not results:
        return None
    return results[0] if len(results) == 1 else tuple(results)


def _use_device() -> Any:
    _ok(driver.cuInit(0))
    device = _ok(driver.cuDeviceGet(0))
    _ok(driver.cuCtxSetCurrent(_ok(driver.cuDevicePrimaryCtxRetain(device))))
    return device


def devices_and_contexts() -> None:
    device = _use_device()
    assert _ok(driver.cuDriverGetVersion()) >= 12000
    assert _ok(driver.cuDeviceGetCount()) == 2
    assert _ok(driver.cuDeviceGetName(64, device)).rstrip(b"\0").startswith(b"NVIDIA H200")
    count = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
    assert _ok(driver.cuDeviceGetAttribute(count, device)) == 132
    context = _ok(driver.cuCtxGetCurrent())
    _ok(driver.cuCtxPushCurrent(context))
    assert int(_ok(driver.cuCtxPopCurrent())) == int(context)
    assert int(_ok(driver.cuCtxGetDevice())) == 0
    _ok(driver.cuCtxSynchronize())
    _ok(driver.cuDevicePrimaryCtxRelease(device))


def copies_and_fills() -> None:
    _use_device()
    source = np.arange(1 << 16, dtype=np.uint32)
    target = np.zeros_like(source)
    memory = _ok(driver.cuMemAlloc(source.nbytes))
    _ok(driver.cuMemcpyHtoD(memory, source.ctypes.data, source.nbytes))
    _ok(driver.cuMemcpyDtoH(target.ctypes.data, memory, target.nbytes))
    assert (source == target).all()
    _ok(driver.cuMemsetD32(memory, 0x01020304, len(source) // 2))
    _ok(driver.cuMemcpyDtoH(target.ctypes.data, memory, target.nbytes))
    assert (target[: len(source) // 2] == 0x01020304).all()
    assert (target[len(source) // 2 :] == source[len(source) // 2 :]).all()
    free, total = _ok(driver.cuMemGetInfo())
    assert free < total
    _ok(driver.cuCtxSynchronize())
    _ok(driver.cuMemFree(memory))
    assert _ok(driver.cuMemGetInfo()) == (total, total)


def streams_and_events() -> None:
    _use_device()
    nonblocking = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
    stream = _ok(driver.cuStreamCreateWithPriority(nonblocking, -1))
    other = _ok(driver.cuStreamCreate(nonblocking))
    assert _ok(driver.cuStreamGetPriority(stream)) == -1
    start, end = (_ok(driver.cuEventCreate(0)) for _ in range(2))
    pinned = _ok(driver.cuMemHostAlloc(PAGE, 0))
    memory = _ok(driver.cuMemAlloc(PAGE))
    _ok(driver.cuEventRecord(start, stream))
    _ok(driver.cuMemcpyHtoDAsync(memory, pinned, PAGE, stream))
    _ok(driver.cuEventRecord(end, stream))
    _ok(driver.cuStreamWaitEvent(other, end, 0))
    _ok(driver.cuMemsetD8Async(memory, 1, PAGE, other))
    assert driver.cuEventQuery(end)[0] == driver.CUresult.CUDA_ERROR_NOT_READY
    _ok(driver.cuStreamSynchronize(other))
    _ok(driver.cuEventQuery(end))
    # 2 MiB over a link of 55 GB/s.
    assert 0.035 < _ok(driver.cuEventElapsedTime(start, end)) < 0.055
    for event in (start, end):
        _ok(driver.cuEventDestroy(event))
    for each in (stream, other):
        _ok(driver.cuStreamDestroy(each))
    _ok(driver.cuMemFreeHost(pinned))
    _ok(driver.cuMemFree(memory))


def host_functions_and_values() -> None:
    _use_device()
    stream, other = (_ok(driver.cuStreamCreate(1)) for _ in range(2))
    flag = _ok(driver.cuMemAlloc(64))
    _ok(driver.cuMemsetD32(flag, 0, 16))
    _ok(driver.cuCtxSynchronize())
    calls: list[int] = []
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: calls.append(data))
    address = driver.CUhostFn(_ptr=ctypes.addressof(function))
    _ok(driver.cuLaunchHostFunc(stream, address, 42))
    _ok(driver.cuStreamWriteValue32(stream, flag, 7, 0))
    _ok(driver.cuStreamWaitValue32(other, flag, 7, 0))
    _ok(driver.cuStreamSynchronize(other))
    assert calls == [42]


def virtual_memory() -> None:
    device = _use_device()
    properties = driver.CUmemAllocationProp()
    properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = int(device)
    option = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    assert _ok(driver.cuMemGetAllocationGranularity(properties, option)) == PAGE
    access = driver.CUmemAccessDesc()
    access.location = properties.location
    access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    handle = _ok(driver.cuMemCreate(PAGE, properties, 0))
    first, second = (_ok(driver.cuMemAddressReserve(PAGE, 0, 0, 0)) for _ in range(2))
    for address in (first, second):
        _ok(driver.cuMemMap(address, PAGE, 0, handle, 0))
        _ok(driver.cuMemSetAccess(address, PAGE, [access], 1))
        _ok(driver.cuMemsetD32(int(address) + 64, 5, 1))
        _ok(driver.cuCtxSynchronize())
        seen = np.zeros(1, dtype=np.uint32)
        _ok(driver.cuMemcpyDtoH(seen.ctypes.data, int(first) + 64, 4))
        assert seen[0] == 5
        _ok(driver.cuMemsetD32(int(address) + 64, 6, 1))
        _ok(driver.cuCtxSynchronize())
        _ok(driver.cuMemcpyDtoH(seen.ctypes.data, int(first) + 64, 4))
        assert seen[0] == 6
    for address in (first, second):
        _ok(driver.cuMemUnmap(address, PAGE))
        _ok(driver.cuMemAddressFree(address, PAGE))
    _ok(driver.cuMemRelease(handle))


def errors_have_codes_and_names() -> None:
    _use_device()
    code, _ = driver.cuMemAlloc(1 << 50)
    assert code == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    assert _ok(driver.cuGetErrorName(code)) == b"CUDA_ERROR_OUT_OF_MEMORY"
    assert _ok(driver.cuGetErrorString(code))
    assert driver.cuMemFree(0x1234)[0] == driver.CUresult.CUDA_ERROR_INVALID_VALUE
    assert driver.cuDeviceGet(9)[0] == driver.CUresult.CUDA_ERROR_INVALID_DEVICE


def pointers_tell_what_they_are() -> None:
    _use_device()
    kind = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    memory, pinned = _ok(driver.cuMemAlloc(4096)), _ok(driver.cuMemHostAlloc(4096, 0))
    assert int(_ok(driver.cuPointerGetAttribute(kind, memory))) == 2
    assert int(_ok(driver.cuPointerGetAttribute(kind, pinned))) == 1
    base, size = _ok(driver.cuMemGetAddressRange(int(memory) + 100))
    assert (int(base), size) == (int(memory), 4096)


def calls_that_are_not_simulated_say_so() -> None:
    _use_device()
    try:
        answer = driver.cuGraphCreate(0)
    except RuntimeError as error:
        assert "cuGraphCreate" in str(error)
    else:
        assert answer[0] == driver.CUresult.CUDA_ERROR_NOT_SUPPORTED
