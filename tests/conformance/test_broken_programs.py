"""Programs that use what is gone or never was, each in a process of its own: it may die."""

from __future__ import annotations

import textwrap

import pytest

from .support import ILLEGAL_ADDRESS


@pytest.mark.parametrize("case", ["nobody's address", "reserved address"])
def test_kernel_on_memory_that_is_not_there_breaks_the_context(isolated, observe, case):
    outcome = isolated(
        f"""
        loaded, stream, host, other = kernels(), scope.stream(), scope.pinned(64), scope.event()
        address = {{
            "nobody's address": lambda: 0x0123_4560_0000,
            "reserved address": lambda: scope.reserve(2 * MIB),
        }}["{case}"]()
        memory = scope.alloc(4096)
        note("launch", name(loaded.launch("vk_fill", address, 1024, 1, stream=stream)))
        note("synchronize", name(cu.cuStreamSynchronize(stream)))
        note("context", name(cu.cuCtxSynchronize()))
        note("alloc", name(cu.cuMemAlloc(256)))
        note("free", name(cu.cuMemFree(memory)))
        note("copy", name(cu.cuMemcpyDtoH(host, memory, 64)))
        note("create stream", name(cu.cuStreamCreate(0)))
        note("query event", name(cu.cuEventQuery(other)))
        note("next launch", name(loaded.launch("vk_spin", 1, stream=stream)))
        note("memory information", name(cu.cuMemGetInfo()))
        note("driver version", name(cu.cuDriverGetVersion()))
        note("current context", name(cu.cuCtxGetCurrent()))
        note("destroy stream", name(cu.cuStreamDestroy(stream)))
        note("release", name(cu.cuDevicePrimaryCtxRelease(0)))
        note("retain", name(cu.cuDevicePrimaryCtxRetain(0)))
        note("alloc in the new context", name(cu.cuMemAlloc(256)))
        """
    )
    assert outcome["synchronize"] == ILLEGAL_ADDRESS
    assert outcome["context"] == ILLEGAL_ADDRESS
    observe(f"kernel on {case}", outcome)


# What a program may still ask after that; named by the call, with a word where one is not enough.
CALLS_AFTERWARDS = {
    "cuCtxGetCurrent": "cu.cuCtxGetCurrent()",
    "cuCtxSetCurrent": "cu.cuCtxSetCurrent(primary)",
    "cuCtxPushCurrent": "cu.cuCtxPushCurrent(primary)",
    "cuCtxPopCurrent": "cu.cuCtxPopCurrent()",
    "cuCtxGetDevice": "cu.cuCtxGetDevice()",
    "cuDeviceGetAttribute": "cu.cuDeviceGetAttribute(cu.CUdevice_attribute(16), 0)",
    "cuDeviceTotalMem": "cu.cuDeviceTotalMem(0)",
    "cuThreadExchangeStreamCaptureMode": "cu.cuThreadExchangeStreamCaptureMode(relaxed)",
    "cuMemGetAllocationGranularity": "cu.cuMemGetAllocationGranularity(plain, smallest)",
    "cuMemCreate": "cu.cuMemCreate(2 * MIB, plain, 0)",
    "cuMemAddressReserve": "cu.cuMemAddressReserve(2 * MIB, 0, 0, 0)",
    "cuMemMap": "cu.cuMemMap(spare, 2 * MIB, 0, unmapped, 0)",
    "cuMemSetAccess": "cu.cuMemSetAccess(mapped, 2 * MIB, [scope.access()], 1)",
    "cuMemUnmap": "cu.cuMemUnmap(mapped, 2 * MIB)",
    "cuMemRelease": "cu.cuMemRelease(handle)",
    "cuMemAddressFree": "cu.cuMemAddressFree(mapped, 2 * MIB)",
    "cuMemHostAlloc": "cu.cuMemHostAlloc(4096, 0)",
    "cuMemFreeHost": "cu.cuMemFreeHost(host)",
    "cuMemHostRegister": "cu.cuMemHostRegister(pages, 4096, 0)",
    "cuMemAllocAsync": "cu.cuMemAllocAsync(4096, stream)",
    "cuMemFreeAsync": "cu.cuMemFreeAsync(ordered, stream)",
    "cuMemPoolTrimTo": "cu.cuMemPoolTrimTo(pool, 0)",
    "cuPointerGetAttribute": "cu.cuPointerGetAttribute(cu.CUpointer_attribute(2), memory)",
    "cuStreamGetId": "cu.cuStreamGetId(stream)",
    "cuStreamGetId of the legacy stream": "cu.cuStreamGetId(0)",
    "cuStreamIsCapturing": "cu.cuStreamIsCapturing(stream)",
    "cuStreamIsCapturing of the legacy stream": "cu.cuStreamIsCapturing(0)",
    "cuStreamGetCaptureInfo": "cu.cuStreamGetCaptureInfo(stream)",
    "cuStreamGetCtx": "cu.cuStreamGetCtx(stream)",
    "cuStreamQuery": "cu.cuStreamQuery(other)",
    "cuStreamSynchronize": "cu.cuStreamSynchronize(other)",
    "cuStreamWaitEvent": "cu.cuStreamWaitEvent(other, recorded, 0)",
    "cuLaunchHostFunc": "cu.cuLaunchHostFunc(other, function, 0)",
    "cuEventCreate": "cu.cuEventCreate(2)",
    "cuEventRecord": "cu.cuEventRecord(fresh, other)",
    "cuEventQuery": "cu.cuEventQuery(recorded)",
    "cuEventQuery of a fresh one": "cu.cuEventQuery(fresh)",
    "cuEventSynchronize": "cu.cuEventSynchronize(recorded)",
    "cuEventElapsedTime": "cu.cuEventElapsedTime(recorded, recorded)",
    "cuEventDestroy": "cu.cuEventDestroy(recorded)",
    "cuStreamBeginCapture": "cu.cuStreamBeginCapture(other, relaxed)",
    "cuStreamDestroy": "cu.cuStreamDestroy(other)",
    "cuModuleUnload": "cu.cuModuleUnload(loaded.module)",
}


def test_calls_of_a_broken_context(isolated, observe):
    asked = [f"note({call!r}, name({source}))" for call, source in CALLS_AFTERWARDS.items()]
    before = textwrap.dedent(
        """
        loaded, stream, other = kernels(), scope.stream(), scope.stream()
        host, pages, memory = scope.pinned(4096), scope.pages(4096), scope.alloc(4096)
        mapped, spare = scope.reserve(2 * MIB), scope.reserve(2 * MIB)
        handle, unmapped = scope.create(2 * MIB), scope.create(2 * MIB)
        scope.map(mapped, 2 * MIB, handle)
        plain, smallest = scope.properties(), cu.CUmemAllocationGranularity_flags(0)
        relaxed = cu.CUstreamCaptureMode(2)
        pool, ordered = ok(cu.cuDeviceGetDefaultMemPool(0)), ok(cu.cuMemAllocAsync(4096, stream))
        ok(cu.cuStreamSynchronize(stream))
        called = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: None)
        function = ctypes.cast(called, ctypes.c_void_p).value
        fresh, recorded = scope.event(), scope.recorded(other)
        ok(loaded.launch("vk_fill", 0x0123_4560_0000, 1024, 1, stream=stream))
        note("broken by", name(cu.cuStreamSynchronize(stream)))
        """
    )
    outcome = isolated("\n".join([before, *asked]))
    assert outcome["broken by"] == ILLEGAL_ADDRESS
    observe("calls of a broken context", outcome)


EVENT_USES = {
    "record": "cu.cuEventRecord(event, 0)",
    "destroy": "cu.cuEventDestroy(event)",
}


@pytest.mark.parametrize("use", EVENT_USES)
def test_destroyed_event(isolated, undefined, use):
    outcome = isolated(
        f"""
        event = ok(cu.cuEventCreate(0))
        ok(cu.cuEventDestroy(event))
        note("{use}", name({EVENT_USES[use]}))
        """
    )
    undefined(outcome)


GARBAGE_USES = {
    "event": "cu.cuEventQuery(0xdead_beef_0000)",
    "stream": "cu.cuStreamQuery(0xdead_beef_0000)",
}


@pytest.mark.parametrize("kind", GARBAGE_USES)
def test_handle_that_never_was(isolated, undefined, kind):
    undefined(isolated(f'note("use", name({GARBAGE_USES[kind]}))'))


def test_destroyed_context(isolated, observe):
    outcome = isolated(
        """
        context = ok(create_context())
        memory, raw = int(ok(cu.cuMemAlloc(4096))), Raw(cu)
        value = ctypes.c_uint64(0)
        note("destroy", name(cu.cuCtxDestroy(context)))
        note("current is the one before", int(ok(cu.cuCtxGetCurrent())) == int(primary))
        note("memory type of its memory", raw.cuPointerGetAttribute(
            ctypes.byref(value), ctypes.c_int(2), ctypes.c_uint64(memory)))
        note("free of its memory", name(cu.cuMemFree(memory)))
        note("set current", name(cu.cuCtxSetCurrent(context)))
        note("destroy the primary context", name(cu.cuCtxDestroy(primary)))
        note("alloc afterwards", name(cu.cuMemAlloc(256)))
        note("set current what never was", name(cu.cuCtxSetCurrent(0xdead_beef_0000)))
        """
    )
    observe("destroyed context", outcome)


def test_null_and_released_handles(isolated, observe):
    outcome = isolated(
        """
        handle = ok(cu.cuMemCreate(2 * MIB, scope.properties(), 0))
        note("release", name(cu.cuMemRelease(handle)))
        note("release again", name(cu.cuMemRelease(handle)))
        note("release of null", name(cu.cuMemRelease(0)))
        note("query of a null event", name(cu.cuEventQuery(0)))
        note("record of a null event", name(cu.cuEventRecord(0, 0)))
        note("destruction of a null event", name(cu.cuEventDestroy(0)))
        note("destruction of a null context", name(cu.cuCtxDestroy(0)))
        note("function of a null module", name(cu.cuModuleGetFunction(0, b"vk_spin")))
        """
    )
    observe("null and released handles", outcome)


def test_module_that_is_unloaded(isolated, observe):
    outcome = isolated(
        """
        loaded = kernels()
        loaded.unload()
        note("get function", name(cu.cuModuleGetFunction(loaded.module, b"vk_spin")))
        note("unload again", name(cu.cuModuleUnload(loaded.module)))
        """
    )
    observe("unloaded module", outcome)
