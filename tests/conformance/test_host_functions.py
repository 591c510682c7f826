"""Host functions in streams: when they run, in which order, and what they may not do."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest

from .support import NOT_READY, SUCCESS, name, ok

HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def enqueue(cu, scope, stream, body: Callable[[int], None], data: int = 0):
    """The result of cuLaunchHostFunc; the function lives as long as the scope."""
    function = HOST_FUNCTION(lambda value: body(value or 0))
    scope.callback(lambda: function)
    address = ctypes.cast(function, ctypes.c_void_p).value
    return cu.cuLaunchHostFunc(stream, cu.CUhostFn(address), data)


@pytest.mark.parametrize("stream", [0, 1, 2, None], ids=["0", "1", "2", "created"])
def test_runs_in_every_kind_of_stream(cu, scope, stream):
    seen: list[int] = []
    handle = scope.stream() if stream is None else stream
    ok(enqueue(cu, scope, handle, seen.append, 4711))
    ok(cu.cuStreamSynchronize(handle))
    assert seen == [4711]


def test_run_in_the_order_of_the_stream(cu, scope):
    seen: list[int] = []
    stream = scope.stream()
    for value in range(1, 21):
        ok(enqueue(cu, scope, stream, seen.append, value))
    ok(cu.cuStreamSynchronize(stream))
    assert seen == list(range(1, 21))


def test_has_run_when_an_event_after_it_completes(cu, scope):
    seen: list[int] = []
    stream = scope.stream()
    ok(enqueue(cu, scope, stream, seen.append, 1))
    event = scope.recorded(stream)
    ok(cu.cuEventSynchronize(event))
    assert seen == [1]


def test_does_not_run_while_the_work_before_it_runs(cu, scope, kernels):
    seen: list[int] = []
    stream = scope.stream()
    kernels.spin(stream)
    event = scope.recorded(stream)
    ok(enqueue(cu, scope, stream, seen.append, 1))
    before = list(seen)
    assert name(cu.cuEventQuery(event)) == NOT_READY
    assert before == []
    ok(cu.cuStreamSynchronize(stream))
    assert seen == [1]


def test_sees_the_data_of_a_copy_before_it(cu, scope):
    seen: list[bytes] = []
    stream, memory, host = scope.stream(), scope.alloc(4096), scope.pinned(4096)
    ok(cu.cuMemsetD8Async(memory, 0x21, 4096, stream))
    ok(cu.cuMemcpyDtoHAsync(host, memory, 4096, stream))
    ok(enqueue(cu, scope, stream, lambda _: seen.append(ctypes.string_at(host, 4096))))
    ok(cu.cuStreamSynchronize(stream))
    assert seen == [b"\x21" * 4096]


def test_what_it_writes_is_seen_by_a_copy_after_it(cu, scope):
    stream, memory, host = scope.stream(), scope.alloc(4096), scope.pinned(4096)

    def write(_: int) -> None:
        ctypes.memset(host, 0x31, 4096)

    ok(enqueue(cu, scope, stream, write))
    ok(cu.cuMemcpyHtoDAsync(memory, host, 4096, stream))
    ok(cu.cuStreamSynchronize(stream))
    assert scope.read(memory, 4096) == b"\x31" * 4096


def test_two_streams_by_an_event(cu, scope, kernels):
    seen: list[int] = []
    first, second = scope.stream(), scope.stream()
    kernels.spin(first, 10_000_000)
    ok(enqueue(cu, scope, first, seen.append, 1))
    ok(cu.cuStreamWaitEvent(second, scope.recorded(first), 0))
    ok(enqueue(cu, scope, second, seen.append, 2))
    ok(cu.cuStreamSynchronize(second))
    assert seen == [1, 2]


def test_null_function_does_not_pass_for_one(isolated, undefined):
    outcome = isolated(
        """
        stream = scope.stream()
        note("launch", name(cu.cuLaunchHostFunc(stream, cu.CUhostFn(0), 0)))
        note("synchronize", name(cu.cuStreamSynchronize(stream)))
        """
    )
    undefined(outcome)


def test_runs_though_the_stream_is_destroyed_first(cu, scope):
    seen: list[int] = []
    stream = ok(cu.cuStreamCreate(1))
    ok(enqueue(cu, scope, stream, seen.append, 6))
    event = scope.recorded(stream)
    assert name(cu.cuStreamDestroy(stream)) == SUCCESS
    ok(cu.cuEventSynchronize(event))
    assert seen == [6]


def test_driver_calls_inside_are_not_permitted(isolated, observe):
    outcome = isolated(
        """
        stream, event, host = scope.stream(), scope.event(), scope.pinned(4096)
        memory = scope.alloc(4096)
        seen = {}

        def inside(_):
            seen["cuMemAlloc"] = name(cu.cuMemAlloc(256))
            seen["cuMemGetInfo"] = name(cu.cuMemGetInfo())
            seen["cuStreamQuery"] = name(cu.cuStreamQuery(stream))
            seen["cuEventQuery"] = name(cu.cuEventQuery(event))
            seen["cuEventRecord"] = name(cu.cuEventRecord(event, stream))
            seen["cuMemsetD8Async"] = name(cu.cuMemsetD8Async(memory, 1, 4096, stream))
            seen["cuCtxSetCurrent"] = name(cu.cuCtxSetCurrent(primary))
            seen["cuDriverGetVersion"] = name(cu.cuDriverGetVersion())
            seen["cuDeviceGetCount"] = name(cu.cuDeviceGetCount())

        function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(inside)
        address = ctypes.cast(function, ctypes.c_void_p).value
        ok(cu.cuLaunchHostFunc(stream, cu.CUhostFn(address), 0))
        ok(cu.cuStreamSynchronize(stream))
        for call, answer in seen.items():
            note(call, answer)
        note("health", name(cu.cuCtxSynchronize()))
        """
    )
    observe("driver calls inside a host function", outcome)
