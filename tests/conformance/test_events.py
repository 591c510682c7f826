"""Events: what they capture, when they complete, and the times between them."""

from __future__ import annotations

import pytest

from .support import INVALID_HANDLE, INVALID_VALUE, NOT_READY, SUCCESS, name, ok

BLOCKING_SYNC = 1
DISABLE_TIMING = 2
INTERPROCESS = 4


@pytest.mark.parametrize(
    "flags", [0, BLOCKING_SYNC, DISABLE_TIMING, BLOCKING_SYNC | DISABLE_TIMING]
)
def test_event_of_each_kind_completes(cu, scope, flags):
    event, stream = scope.event(flags), scope.stream()
    ok(cu.cuEventRecord(event, stream))
    assert name(cu.cuEventSynchronize(event)) == SUCCESS
    assert name(cu.cuEventQuery(event)) == SUCCESS


def test_unknown_flags_are_refused(cu):
    assert name(cu.cuEventCreate(0x100)) == INVALID_VALUE


def test_interprocess_event_without_disabled_timing_is_refused(cu):
    assert name(cu.cuEventCreate(INTERPROCESS)) == INVALID_VALUE


def test_event_never_recorded_counts_as_complete(cu, scope):
    event = scope.event()
    assert name(cu.cuEventQuery(event)) == SUCCESS
    assert name(cu.cuEventSynchronize(event)) == SUCCESS


def test_waiting_for_an_event_never_recorded_holds_nothing(cu, scope):
    stream = scope.stream()
    assert name(cu.cuStreamWaitEvent(stream, scope.event(), 0)) == SUCCESS
    assert name(cu.cuStreamSynchronize(stream)) == SUCCESS


def test_event_is_pending_while_the_work_before_it_runs(cu, scope, kernels):
    stream = scope.stream()
    kernels.spin(stream)
    event = scope.recorded(stream)
    assert name(cu.cuEventQuery(event)) == NOT_READY
    ok(cu.cuEventSynchronize(event))
    assert name(cu.cuEventQuery(event)) == SUCCESS


def test_event_does_not_cover_work_added_later(cu, scope, kernels):
    stream = scope.stream()
    event = scope.recorded(stream)
    kernels.spin(stream)
    ok(cu.cuEventSynchronize(event))
    assert name(cu.cuStreamQuery(stream)) == NOT_READY


def test_recording_again_replaces_what_is_captured(cu, scope, kernels):
    stream = scope.stream()
    event = scope.recorded(stream)
    ok(cu.cuEventSynchronize(event))
    kernels.spin(stream)
    ok(cu.cuEventRecord(event, stream))
    assert name(cu.cuEventQuery(event)) == NOT_READY


def test_wait_uses_the_recording_at_the_time_of_the_call(cu, scope, kernels):
    first, second = scope.stream(), scope.stream()
    event = scope.recorded(first)
    ok(cu.cuEventSynchronize(event))
    ok(cu.cuStreamWaitEvent(second, event, 0))
    kernels.spin(first)
    ok(cu.cuEventRecord(event, first))
    ok(cu.cuStreamSynchronize(second))
    assert name(cu.cuEventQuery(event)) == NOT_READY


def test_wait_holds_the_other_stream(cu, scope, kernels):
    first, second = scope.stream(), scope.stream()
    kernels.spin(first)
    ok(cu.cuStreamWaitEvent(second, scope.recorded(first), 0))
    after = scope.recorded(second)
    assert name(cu.cuEventQuery(after)) == NOT_READY
    ok(cu.cuEventSynchronize(after))
    assert name(cu.cuStreamQuery(first)) == SUCCESS


def test_wait_carries_data_across_streams(cu, scope, kernels):
    first, second = scope.stream(), scope.stream()
    source, target = scope.alloc(4096), scope.alloc(4096)
    kernels.spin(first, 10_000_000)
    kernels.run("vk_fill", source, 1024, 0x01020304, stream=first)
    ok(cu.cuStreamWaitEvent(second, scope.recorded(first), 0))
    ok(cu.cuMemcpyDtoDAsync(target, source, 4096, second))
    ok(cu.cuStreamSynchronize(second))
    assert scope.read(target, 4096) == (0x01020304).to_bytes(4, "little") * 1024


def test_wait_with_unknown_flags(cu, scope):
    assert name(cu.cuStreamWaitEvent(scope.stream(), scope.event(), 0x100)) == INVALID_VALUE


def test_wait_in_the_stream_of_the_event_itself(cu, scope, kernels):
    stream = scope.stream()
    kernels.spin(stream, 1_000_000)
    ok(cu.cuStreamWaitEvent(stream, scope.recorded(stream), 0))
    assert name(cu.cuStreamSynchronize(stream)) == SUCCESS


def test_elapsed_time_of_a_kernel(cu, scope, kernels):
    stream = scope.stream()
    before = scope.recorded(stream)
    kernels.spin(stream, 20_000_000)
    after = scope.recorded(stream)
    ok(cu.cuEventSynchronize(after))
    milliseconds = ok(cu.cuEventElapsedTime(before, after))
    assert 19.9 <= milliseconds < 30


def test_elapsed_time_backwards_is_negative(cu, scope, kernels):
    stream = scope.stream()
    before = scope.recorded(stream)
    kernels.spin(stream, 2_000_000)
    after = scope.recorded(stream)
    ok(cu.cuEventSynchronize(after))
    forwards = ok(cu.cuEventElapsedTime(before, after))
    assert ok(cu.cuEventElapsedTime(after, before)) == pytest.approx(-forwards)


def test_elapsed_time_from_an_event_to_itself_is_zero(cu, scope):
    event = scope.recorded(scope.stream())
    ok(cu.cuEventSynchronize(event))
    assert ok(cu.cuEventElapsedTime(event, event)) == 0


def test_elapsed_time_between_streams(cu, scope, kernels):
    first, second = scope.stream(), scope.stream()
    before = scope.recorded(first)
    ok(cu.cuEventSynchronize(before))
    kernels.spin(second, 10_000_000)
    after = scope.recorded(second)
    ok(cu.cuEventSynchronize(after))
    assert ok(cu.cuEventElapsedTime(before, after)) >= 9.9


@pytest.mark.parametrize("untimed", [0, 1])
def test_elapsed_time_needs_timing(cu, scope, untimed):
    stream = scope.stream()
    events = [scope.event(), scope.event()]
    events[untimed] = scope.event(DISABLE_TIMING)
    for event in events:
        ok(cu.cuEventRecord(event, stream))
    ok(cu.cuStreamSynchronize(stream))
    assert name(cu.cuEventElapsedTime(*events)) == INVALID_HANDLE


@pytest.mark.parametrize("missing", ["first", "second", "both"])
def test_elapsed_time_of_events_not_recorded(cu, scope, missing):
    stream = scope.stream()
    first = scope.event() if missing != "second" else scope.recorded(stream)
    second = scope.event() if missing != "first" else scope.recorded(stream)
    ok(cu.cuStreamSynchronize(stream))
    assert name(cu.cuEventElapsedTime(first, second)) == INVALID_HANDLE


def test_elapsed_time_before_completion(cu, scope, kernels):
    stream = scope.stream()
    before = scope.recorded(stream)
    kernels.spin(stream)
    after = scope.recorded(stream)
    assert name(cu.cuEventElapsedTime(before, after)) == NOT_READY


def test_event_of_another_context_cannot_be_recorded_here(cu, scope):
    stream, context = scope.stream(), scope.context()
    ok(cu.cuCtxPushCurrent(context))
    event = ok(cu.cuEventCreate(0))
    ok(cu.cuCtxPopCurrent())
    assert name(cu.cuEventRecord(event, stream)) == INVALID_HANDLE
    ok(cu.cuEventDestroy(event))


def test_event_of_another_context_cannot_be_recorded_in_the_null_stream(cu, scope):
    context = scope.context()
    ok(cu.cuCtxPushCurrent(context))
    event = ok(cu.cuEventCreate(0))
    ok(cu.cuCtxPopCurrent())
    assert name(cu.cuEventRecord(event, 0)) == INVALID_HANDLE
    ok(cu.cuEventDestroy(event))


def test_event_of_another_context_can_be_waited_for(cu, scope, kernels):
    stream, context = scope.stream(), scope.context()
    ok(cu.cuCtxPushCurrent(context))
    event, elsewhere = ok(cu.cuEventCreate(0)), ok(cu.cuStreamCreate(1))
    ok(cu.cuEventRecord(event, elsewhere))
    ok(cu.cuCtxPopCurrent())
    assert name(cu.cuStreamWaitEvent(stream, event, 0)) == SUCCESS
    assert name(cu.cuStreamSynchronize(stream)) == SUCCESS
    assert name(cu.cuEventQuery(event)) == SUCCESS
    ok(cu.cuEventDestroy(event))
    ok(cu.cuStreamDestroy(elsewhere))


def test_elapsed_time_between_contexts(cu, scope, observe):
    here = scope.recorded(scope.stream())
    context = scope.context()
    ok(cu.cuCtxPushCurrent(context))
    event, elsewhere = ok(cu.cuEventCreate(0)), ok(cu.cuStreamCreate(1))
    ok(cu.cuEventRecord(event, elsewhere))
    ok(cu.cuCtxSynchronize())
    ok(cu.cuCtxPopCurrent())
    ok(cu.cuCtxSynchronize())
    outcome = name(cu.cuEventElapsedTime(here, event))
    ok(cu.cuEventDestroy(event))
    ok(cu.cuStreamDestroy(elsewhere))
    observe("elapsed time between events of two contexts", outcome)


def test_destroying_a_pending_event_neither_waits_nor_harms(cu, scope, kernels):
    stream = scope.stream()
    kernels.spin(stream)
    event = ok(cu.cuEventCreate(0))
    ok(cu.cuEventRecord(event, stream))
    assert name(cu.cuEventDestroy(event)) == SUCCESS
    assert name(cu.cuStreamQuery(stream)) == NOT_READY
    assert name(cu.cuStreamSynchronize(stream)) == SUCCESS


def test_destroying_an_event_that_a_stream_waits_for(cu, scope, kernels):
    first, second = scope.stream(), scope.stream()
    kernels.spin(first)
    event = ok(cu.cuEventCreate(DISABLE_TIMING))
    ok(cu.cuEventRecord(event, first))
    ok(cu.cuStreamWaitEvent(second, event, 0))
    ok(cu.cuEventDestroy(event))
    assert name(cu.cuStreamQuery(second)) == NOT_READY
    ok(cu.cuStreamSynchronize(second))
    assert name(cu.cuStreamQuery(first)) == SUCCESS
