"""Primary and created contexts, the stack of each thread, and life without a current context."""

from __future__ import annotations

import ctypes

import pytest

from .kernels import image
from .support import INVALID_CONTEXT, INVALID_DEVICE, SUCCESS, create_context, in_thread, name, ok


def test_retaining_again_gives_the_same_primary_context(cu, scope):
    again = ok(cu.cuDevicePrimaryCtxRetain(cu.device))
    scope.undo(cu.cuDevicePrimaryCtxRelease, cu.device)
    assert int(again) == int(cu.primary)


def test_retained_primary_context_is_active(cu):
    _, active = ok(cu.cuDevicePrimaryCtxGetState(cu.device))
    assert active == 1


def test_primary_context_from_first_retain_to_last_release(isolated, observe):
    outcome = isolated(
        """
        note("init", name(cu.cuInit(0)))
        note("release of nothing", name(cu.cuDevicePrimaryCtxRelease(0)))
        note("state before", list(ok(cu.cuDevicePrimaryCtxGetState(0))))
        context = ok(cu.cuDevicePrimaryCtxRetain(0))
        note("state retained", list(ok(cu.cuDevicePrimaryCtxGetState(0))))
        note("retaining makes it current", int(ok(cu.cuCtxGetCurrent())) != 0)
        ok(cu.cuDevicePrimaryCtxRetain(0))
        note("first release", name(cu.cuDevicePrimaryCtxRelease(0)))
        note("state retained once", list(ok(cu.cuDevicePrimaryCtxGetState(0))))
        note("second release", name(cu.cuDevicePrimaryCtxRelease(0)))
        note("state after", list(ok(cu.cuDevicePrimaryCtxGetState(0))))
        note("one release too many", name(cu.cuDevicePrimaryCtxRelease(0)))
        blocking = int(cu.CUctx_flags.CU_CTX_SCHED_BLOCKING_SYNC)
        note("set flags", name(cu.cuDevicePrimaryCtxSetFlags(0, blocking)))
        note("state with flags", list(ok(cu.cuDevicePrimaryCtxGetState(0))))
        note("set bad flags", name(cu.cuDevicePrimaryCtxSetFlags(0, 0x4000)))
        ok(cu.cuCtxSetCurrent(ok(cu.cuDevicePrimaryCtxRetain(0))))
        note("flags of the context", ok(cu.cuCtxGetFlags()))
        note("set flags while active", name(cu.cuDevicePrimaryCtxSetFlags(0, 0)))
        """,
        start="uninitialised",
    )
    assert outcome["ended"] == "normally"
    assert [outcome[key][1] for key in ("state before", "state retained", "state after")] == [
        0,
        1,
        0,
    ]
    assert outcome["state retained once"][1] == 1
    assert outcome["retaining makes it current"] is False
    assert outcome["set flags"] == SUCCESS
    observe("life of the primary context", outcome)


def test_created_context_is_current_and_another_one(cu, scope):
    context = ok(create_context(cu.module, cu.device))
    scope.undo(cu.cuCtxDestroy, context)
    assert int(ok(cu.cuCtxGetCurrent())) == int(context) != int(cu.primary)


def test_destroying_the_current_context_pops_it(cu):
    context = ok(create_context(cu.module, cu.device))
    assert name(cu.cuCtxDestroy(context)) == SUCCESS
    assert int(ok(cu.cuCtxGetCurrent())) == int(cu.primary)


def test_destroying_a_context_that_is_not_current_leaves_the_current_one(cu):
    context = ok(create_context(cu.module, cu.device))
    ok(cu.cuCtxPopCurrent())
    assert name(cu.cuCtxDestroy(context)) == SUCCESS
    assert int(ok(cu.cuCtxGetCurrent())) == int(cu.primary)


def test_created_context_keeps_its_flags(cu, scope, observe):
    blocking = int(cu.CUctx_flags.CU_CTX_SCHED_BLOCKING_SYNC)
    context = ok(create_context(cu.module, cu.device, blocking))
    scope.undo(cu.cuCtxDestroy, context)
    flags = ok(cu.cuCtxGetFlags())
    assert flags & int(cu.CUctx_flags.CU_CTX_SCHED_MASK) == blocking
    observe("flags of a context created with blocking waits", flags)


def test_context_with_unknown_flags(cu, observe):
    result = create_context(cu.module, cu.device, 1 << 20)
    if name(result) == SUCCESS:
        ok(cu.cuCtxDestroy(ok(result)))
    observe("context created with unknown flags", name(result))


def test_context_on_a_device_that_is_not_there(cu):
    assert name(create_context(cu.module, 99)) == INVALID_DEVICE


def test_contexts_have_different_ids(cu, scope):
    context = scope.context()
    assert ok(cu.cuCtxGetId(context)) != ok(cu.cuCtxGetId(cu.primary))
    assert ok(cu.cuCtxGetId(None)) == ok(cu.cuCtxGetId(cu.primary))


def test_device_of_the_current_context(cu):
    assert int(ok(cu.cuCtxGetDevice())) == int(cu.device)


def test_push_and_pop_are_a_stack(cu, scope):
    context = scope.context()
    ok(cu.cuCtxPushCurrent(context))
    ok(cu.cuCtxPushCurrent(context))
    ok(cu.cuCtxPushCurrent(cu.primary))
    popped = [int(ok(cu.cuCtxPopCurrent())) for _ in range(3)]
    assert popped == [int(cu.primary), int(context), int(context)]
    assert int(ok(cu.cuCtxGetCurrent())) == int(cu.primary)


def test_set_current_replaces_the_top(cu, scope):
    context = scope.context()
    ok(cu.cuCtxPushCurrent(cu.primary))
    ok(cu.cuCtxSetCurrent(context))
    assert int(ok(cu.cuCtxPopCurrent())) == int(context)
    assert int(ok(cu.cuCtxGetCurrent())) == int(cu.primary)


def test_set_current_null_pops_the_top(cu, scope):
    context = scope.context()
    ok(cu.cuCtxPushCurrent(context))
    ok(cu.cuCtxSetCurrent(0))
    assert int(ok(cu.cuCtxGetCurrent())) == int(cu.primary)


def test_push_of_null(cu, observe):
    observe("push of a null context", in_thread(lambda: name(cu.cuCtxPushCurrent(0))))


def test_set_current_null_on_an_empty_stack(cu):
    assert in_thread(lambda: name(cu.cuCtxSetCurrent(0))) == SUCCESS


def test_current_context_belongs_to_the_thread(cu):
    def other() -> list[int]:
        before = int(ok(cu.cuCtxGetCurrent()))
        ok(cu.cuCtxSetCurrent(cu.primary))
        return [before, int(ok(cu.cuCtxGetCurrent()))]

    assert in_thread(other) == [0, int(cu.primary)]
    assert int(ok(cu.cuCtxGetCurrent())) == int(cu.primary)


def test_pop_from_an_empty_stack(cu):
    assert in_thread(lambda: name(cu.cuCtxPopCurrent())) == INVALID_CONTEXT


@pytest.mark.parametrize(
    "call",
    [
        lambda cu: cu.cuMemAlloc(256),
        lambda cu: cu.cuMemGetInfo(),
        lambda cu: cu.cuMemHostAlloc(256, 0),
        lambda cu: cu.cuStreamCreate(0),
        lambda cu: cu.cuEventCreate(0),
        lambda cu: cu.cuCtxSynchronize(),
        lambda cu: cu.cuCtxGetDevice(),
        lambda cu: cu.cuCtxGetFlags(),
        lambda cu: cu.cuStreamSynchronize(0),
        lambda cu: cu.cuModuleLoadData(image()),
    ],
    ids=[
        "cuMemAlloc",
        "cuMemGetInfo",
        "cuMemHostAlloc",
        "cuStreamCreate",
        "cuEventCreate",
        "cuCtxSynchronize",
        "cuCtxGetDevice",
        "cuCtxGetFlags",
        "cuStreamSynchronize of the null stream",
        "cuModuleLoadData",
    ],
)
def test_calls_that_need_a_current_context(cu, call):
    assert in_thread(lambda: name(call(cu))) == INVALID_CONTEXT


def test_calls_on_objects_without_a_current_context(cu, scope, kernels, observe):
    memory, stream, event = scope.alloc(256), scope.stream(), scope.event()
    host = ctypes.create_string_buffer(256)

    def without_context() -> dict[str, str]:
        return {
            "cuStreamQuery": name(cu.cuStreamQuery(stream)),
            "cuStreamSynchronize": name(cu.cuStreamSynchronize(stream)),
            "cuEventRecord": name(cu.cuEventRecord(event, stream)),
            "cuEventSynchronize": name(cu.cuEventSynchronize(event)),
            "cuStreamGetId": name(cu.cuStreamGetId(stream)),
            "cuMemsetD8Async": name(cu.cuMemsetD8Async(memory, 1, 256, stream)),
            "cuMemcpyDtoH": name(cu.cuMemcpyDtoH(ctypes.addressof(host), memory, 256)),
            "cuLaunchKernel": name(kernels.launch("vk_spin", 1, stream=stream)),
            "cuMemGetAddressRange": name(cu.cuMemGetAddressRange(memory)),
            "cuPointerGetAttribute": name(
                cu.cuPointerGetAttribute(
                    cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory
                )
            ),
        }

    outcome = in_thread(without_context)
    ok(cu.cuStreamSynchronize(stream))
    observe("calls on objects without a current context", outcome)


def test_virtual_memory_without_a_current_context(cu, scope, observe):
    def without_context() -> dict[str, str]:
        reserved = cu.cuMemAddressReserve(2 << 20, 0, 0, 0)
        created = cu.cuMemCreate(2 << 20, scope.properties(), 0)
        mapped = cu.cuMemMap(ok(reserved), 2 << 20, 0, ok(created), 0)
        access = cu.cuMemSetAccess(ok(reserved), 2 << 20, [scope.access()], 1)
        ok(cu.cuMemUnmap(ok(reserved), 2 << 20))
        ok(cu.cuMemRelease(ok(created)))
        ok(cu.cuMemAddressFree(ok(reserved), 2 << 20))
        return {"map": name(mapped), "set access": name(access)}

    observe("virtual memory without a current context", in_thread(without_context))


def test_memory_of_another_context_of_the_device_can_be_copied(cu, scope):
    context = scope.context()
    ok(cu.cuCtxPushCurrent(context))
    elsewhere = scope.alloc(4096)
    ok(cu.cuCtxPopCurrent())
    here = scope.alloc(4096)
    scope.write(here, b"\x5a" * 4096)
    ok(cu.cuMemcpyDtoD(elsewhere, here, 4096))
    assert scope.read(elsewhere, 4096) == b"\x5a" * 4096


def test_stream_of_another_context(cu, scope, kernels, observe):
    context = scope.context()
    ok(cu.cuCtxPushCurrent(context))
    stream = ok(cu.cuStreamCreate(1))
    ok(cu.cuCtxPopCurrent())
    memory = scope.alloc(4096)
    outcome = {
        "query": name(cu.cuStreamQuery(stream)),
        "memset": name(cu.cuMemsetD8Async(memory, 1, 4096, stream)),
        "launch of a kernel of this context": name(kernels.launch("vk_spin", 1, stream=stream)),
        "context of the stream": int(ok(cu.cuStreamGetCtx(stream))) == int(context),
        "synchronize": name(cu.cuStreamSynchronize(stream)),
        "destroy": name(cu.cuStreamDestroy(stream)),
    }
    observe("stream of another context", outcome)
