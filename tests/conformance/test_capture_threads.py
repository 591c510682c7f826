"""What another thread may do while a stream is captured: each call, by the modes of both threads.

A call that the driver takes for unsafe is refused, and spoils the capture of the first thread. So
everything a library does in the background has its row here.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from .capturing import INVALIDATED, MODES, UNSUPPORTED
from .support import SUCCESS

# Made before the capture begins, as expressions; `it` in the call.
CALLS: dict[str, tuple[str, str]] = {
    "cuMemAlloc": ("None", "cu.cuMemAlloc(4096)"),
    "cuMemFree": ("ok(cu.cuMemAlloc(4096))", "cu.cuMemFree(it)"),
    "cuMemHostAlloc": ("None", "cu.cuMemHostAlloc(4096, 0)"),
    "cuMemFreeHost": ("ok(cu.cuMemHostAlloc(4096, 0))", "cu.cuMemFreeHost(it)"),
    "cuMemHostRegister": ("scope.pages(4096)", "cu.cuMemHostRegister(it, 4096, 0)"),
    "cuMemHostUnregister": ("registered()", "cu.cuMemHostUnregister(it)"),
    "cuMemGetInfo": ("None", "cu.cuMemGetInfo()"),
    "cuMemAllocAsync": ("None", "cu.cuMemAllocAsync(4096, other)"),
    "cuMemFreeAsync": ("ok(cu.cuMemAllocAsync(4096, other))", "cu.cuMemFreeAsync(it, other)"),
    "cuMemPoolTrimTo": ("ok(cu.cuDeviceGetDefaultMemPool(0))", "cu.cuMemPoolTrimTo(it, 0)"),
    "cuMemPoolGetAttribute": (
        "ok(cu.cuDeviceGetDefaultMemPool(0))",
        "cu.cuMemPoolGetAttribute(it, cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_USED_MEM_CURRENT)",
    ),
    "cuMemAddressReserve": ("None", "cu.cuMemAddressReserve(2 * MIB, 0, 0, 0)"),
    "cuMemAddressFree": (
        "ok(cu.cuMemAddressReserve(2 * MIB, 0, 0, 0))",
        "cu.cuMemAddressFree(it, 2 * MIB)",
    ),
    "cuMemCreate": ("None", "cu.cuMemCreate(2 * MIB, scope.properties(), 0)"),
    "cuMemRelease": ("ok(cu.cuMemCreate(2 * MIB, scope.properties(), 0))", "cu.cuMemRelease(it)"),
    "cuMemMap": (
        "(scope.reserve(2 * MIB), scope.create(2 * MIB))",
        "cu.cuMemMap(it[0], 2 * MIB, 0, it[1], 0)",
    ),
    "cuMemSetAccess": ("scope.mapped(2 * MIB)", "cu.cuMemSetAccess(it, 2 * MIB, [access], 1)"),
    "cuMemUnmap": ("scope.mapped(2 * MIB)", "cu.cuMemUnmap(it, 2 * MIB)"),
    "cuEventCreate": ("None", "cu.cuEventCreate(0)"),
    "cuEventDestroy": ("ok(cu.cuEventCreate(0))", "cu.cuEventDestroy(it)"),
    "cuEventRecord": ("scope.event()", "cu.cuEventRecord(it, other)"),
    "cuEventQuery": ("scope.recorded(other)", "cu.cuEventQuery(it)"),
    "cuEventSynchronize": ("scope.recorded(other)", "cu.cuEventSynchronize(it)"),
    "cuEventElapsedTime": ("scope.recorded(other)", "cu.cuEventElapsedTime(it, it)"),
    "cuStreamCreate": ("None", "cu.cuStreamCreate(1)"),
    "cuStreamDestroy": ("ok(cu.cuStreamCreate(1))", "cu.cuStreamDestroy(it)"),
    "cuStreamQuery": ("None", "cu.cuStreamQuery(other)"),
    "cuStreamSynchronize": ("None", "cu.cuStreamSynchronize(other)"),
    "cuStreamWaitEvent": ("scope.recorded(other)", "cu.cuStreamWaitEvent(other, it, 0)"),
    "cuStreamGetId": ("None", "cu.cuStreamGetId(other)"),
    "cuStreamIsCapturing": ("None", "cu.cuStreamIsCapturing(other)"),
    "cuStreamGetCaptureInfo": ("None", "cu.cuStreamGetCaptureInfo(capturing)"),
    "cuUserObjectCreate": ("None", "cu.cuUserObjectCreate(1, nothing, 1, 1)"),
    "cuUserObjectRelease": (
        "ok(cu.cuUserObjectCreate(1, nothing, 1, 1))",
        "cu.cuUserObjectRelease(it, 1)",
    ),
    "cuGraphRetainUserObject": (
        "ok(cu.cuUserObjectCreate(1, nothing, 1, 1))",
        "cu.cuGraphRetainUserObject(ok(cu.cuStreamGetCaptureInfo(capturing))[2], it, 1, 1)",
    ),
    "cuStreamWriteValue32": ("scope.alloc(4096)", "cu.cuStreamWriteValue32(other, it, 1, 0)"),
    "cuCtxSynchronize": ("None", "cu.cuCtxSynchronize()"),
    "cuMemcpyHtoD": ("scope.alloc(4096)", "cu.cuMemcpyHtoD(it, pinned, 4096)"),
    "cuMemcpyDtoH": ("scope.alloc(4096)", "cu.cuMemcpyDtoH(pinned, it, 4096)"),
    "cuMemcpyHtoDAsync": ("scope.alloc(4096)", "cu.cuMemcpyHtoDAsync(it, pinned, 4096, other)"),
    "cuMemsetD8": ("scope.alloc(4096)", "cu.cuMemsetD8(it, 0, 4096)"),
    "cuLaunchKernel": ("None", "loaded.launch('vk_spin', 1, stream=other)"),
    "cuGraphLaunch": ("graph()", "cu.cuGraphLaunch(it, other)"),
    "cuPointerGetAttribute": (
        "scope.alloc(4096)",
        "cu.cuPointerGetAttribute(cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, it)",
    ),
    "cuModuleLoadData": ("None", "cu.cuModuleLoadData(image)"),
    "cuModuleUnload": ("ok(cu.cuModuleLoadData(image))", "cu.cuModuleUnload(it)"),
}

# Each call with the capture global and its own thread in the default mode.
PROGRAM = """
from concurrent.futures import ThreadPoolExecutor
from conformance.kernels import image as read_image

image = read_image()
loaded, capturing, other = kernels(), scope.stream(), scope.stream()
pinned, access = scope.pinned(4096), scope.access()
worker = ThreadPoolExecutor(1)
worker.submit(lambda: ok(cu.cuCtxSetCurrent(primary))).result()
Mode = cu.CUstreamCaptureMode
callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: None)
nothing = cu.CUhostFn(ctypes.cast(callback, ctypes.c_void_p).value)

def registered():
    address = scope.pages(4096)
    ok(cu.cuMemHostRegister(address, 4096, 0))
    return address

def graph():
    ok(cu.cuStreamBeginCapture(other, Mode(2)))
    ok(loaded.launch('vk_spin', 1, stream=other))
    return ok(cu.cuGraphInstantiate(ok(cu.cuStreamEndCapture(other)), 0))

def attempt(make, call, of_capture, of_thread):
    it = eval(make)
    ok(cu.cuStreamSynchronize(other))
    worker.submit(lambda: cu.cuThreadExchangeStreamCaptureMode(Mode(of_thread))).result()
    ok(cu.cuStreamBeginCapture(capturing, Mode(of_capture)))
    here = dict(globals(), it=it)
    answer = worker.submit(lambda: name(eval(call, here))).result()
    ended = cu.cuStreamEndCapture(capturing)
    if int(ended[0]) == 0:
        ok(cu.cuGraphDestroy(ended[1]))
    return [answer, name(ended)]

for label, (make, call, of_capture, of_thread) in json.loads(TABLE).items():
    note(label, attempt(make, call, of_capture, of_thread))
"""


def run(isolated: Any, table: dict[str, tuple[str, str, int, int]]) -> dict[str, Any]:
    source = f"import json\nTABLE = {json.dumps(table)!r}\n{PROGRAM}"
    outcome = isolated(source)
    assert outcome.pop("ended") == "normally", outcome
    return dict(outcome)


@pytest.fixture(scope="module")
def beside_a_global_capture(isolated):
    return run(isolated, {call: (*how, 0, 0) for call, how in CALLS.items()})


@pytest.mark.parametrize("call", CALLS)
def test_call_beside_a_global_capture(beside_a_global_capture, observe, call):
    observe(f"capture: {call} by another thread", beside_a_global_capture[call])


@pytest.mark.parametrize("call", ["cuEventQuery", "cuMemAlloc"])
def test_unsafe_call_is_refused_and_spoils_the_capture(beside_a_global_capture, call):
    assert beside_a_global_capture[call] == [UNSUPPORTED, INVALIDATED]


@pytest.mark.parametrize("call", ["cuMemMap", "cuMemSetAccess"])
def test_mapping_does_not_disturb_a_capture(beside_a_global_capture, call):
    assert beside_a_global_capture[call] == [SUCCESS, SUCCESS]


@pytest.fixture(scope="module")
def by_modes(isolated):
    table = {
        f"{of_capture} capture, {of_thread} thread": (*CALLS["cuEventQuery"], mode, own)
        for of_capture, mode in MODES.items()
        for of_thread, own in MODES.items()
    }
    return run(isolated, table)


@pytest.mark.parametrize("of_thread", MODES)
@pytest.mark.parametrize("of_capture", MODES)
def test_only_a_global_capture_and_a_global_thread_clash(by_modes, of_capture, of_thread):
    clash = of_capture == of_thread == "global"
    expected = [UNSUPPORTED, INVALIDATED] if clash else [SUCCESS, SUCCESS]
    assert by_modes[f"{of_capture} capture, {of_thread} thread"] == expected


@pytest.fixture(scope="module")
def by_relaxed_threads(isolated):
    return run(isolated, {call: (*how, 0, MODES["relaxed"]) for call, how in CALLS.items()})


@pytest.mark.parametrize("call", CALLS)
def test_call_of_a_relaxed_thread_beside_a_global_capture(by_relaxed_threads, observe, call):
    observe(f"capture: {call} by another thread that is relaxed", by_relaxed_threads[call])
