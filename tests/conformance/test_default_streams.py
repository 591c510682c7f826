"""What the legacy and the per-thread default stream hold up, and what they leave alone."""

from __future__ import annotations

import pytest

from .support import NOT_READY, SUCCESS, in_thread, name, ok

BLOCKING, NON_BLOCKING = 0, 1
LEGACY_HANDLES = [0, 1]
PER_THREAD = 2


@pytest.mark.parametrize("legacy", LEGACY_HANDLES)
def test_legacy_stream_waits_for_blocking_streams(cu, scope, kernels, legacy):
    blocking, memory = scope.stream(BLOCKING), scope.alloc(4096)
    kernels.spin(blocking)
    ok(cu.cuMemsetD8Async(memory, 1, 4096, legacy))
    event = scope.recorded(legacy)
    assert name(cu.cuEventQuery(event)) == NOT_READY
    ok(cu.cuEventSynchronize(event))
    assert name(cu.cuStreamQuery(blocking)) == SUCCESS


@pytest.mark.parametrize("legacy", LEGACY_HANDLES)
def test_legacy_stream_does_not_wait_for_non_blocking_streams(cu, scope, kernels, legacy):
    free, memory = scope.stream(NON_BLOCKING), scope.alloc(4096)
    kernels.spin(free)
    ok(cu.cuMemsetD8Async(memory, 1, 4096, legacy))
    ok(cu.cuStreamSynchronize(legacy))
    assert name(cu.cuStreamQuery(free)) == NOT_READY


@pytest.mark.parametrize("legacy", LEGACY_HANDLES)
def test_blocking_streams_wait_for_the_legacy_stream(cu, scope, kernels, legacy):
    blocking, memory = scope.stream(BLOCKING), scope.alloc(4096)
    kernels.spin(legacy)
    before = scope.recorded(legacy)
    ok(cu.cuMemsetD8Async(memory, 1, 4096, blocking))
    assert name(cu.cuStreamQuery(blocking)) == NOT_READY
    ok(cu.cuStreamSynchronize(blocking))
    assert name(cu.cuEventQuery(before)) == SUCCESS


@pytest.mark.parametrize("legacy", LEGACY_HANDLES)
def test_non_blocking_streams_do_not_wait_for_the_legacy_stream(cu, scope, kernels, legacy):
    free, memory = scope.stream(NON_BLOCKING), scope.alloc(4096)
    kernels.spin(legacy)
    event = scope.recorded(legacy)
    ok(cu.cuMemsetD8Async(memory, 1, 4096, free))
    ok(cu.cuStreamSynchronize(free))
    assert name(cu.cuEventQuery(event)) == NOT_READY


def test_legacy_stream_is_a_barrier_between_blocking_streams(cu, scope, kernels):
    first, second = scope.stream(BLOCKING), scope.stream(BLOCKING)
    memory = scope.alloc(4096)
    kernels.spin(first)
    ok(cu.cuMemsetD8Async(memory, 1, 4096, 0))
    ok(cu.cuMemsetD8Async(memory, 2, 4096, second))
    assert name(cu.cuStreamQuery(second)) == NOT_READY
    ok(cu.cuStreamSynchronize(second))
    assert name(cu.cuStreamQuery(first)) == SUCCESS


def test_blocking_streams_do_not_wait_for_each_other(cu, scope, kernels):
    first, second = scope.stream(BLOCKING), scope.stream(BLOCKING)
    memory = scope.alloc(4096)
    kernels.spin(first)
    ok(cu.cuMemsetD8Async(memory, 1, 4096, second))
    ok(cu.cuStreamSynchronize(second))
    assert name(cu.cuStreamQuery(first)) == NOT_READY


def test_per_thread_stream_waits_for_the_legacy_stream(cu, scope, kernels):
    memory = scope.alloc(4096)
    kernels.spin(0)
    ok(cu.cuMemsetD8Async(memory, 1, 4096, PER_THREAD))
    assert name(cu.cuStreamQuery(PER_THREAD)) == NOT_READY
    ok(cu.cuStreamSynchronize(PER_THREAD))


def test_legacy_stream_waits_for_the_per_thread_stream(cu, scope, kernels):
    memory = scope.alloc(4096)
    kernels.spin(PER_THREAD)
    ok(cu.cuMemsetD8Async(memory, 1, 4096, 0))
    event = scope.recorded(0)
    assert name(cu.cuEventQuery(event)) == NOT_READY
    ok(cu.cuEventSynchronize(event))


def test_per_thread_stream_does_not_wait_for_blocking_streams(cu, scope, kernels):
    blocking, memory = scope.stream(BLOCKING), scope.alloc(4096)
    kernels.spin(blocking)
    ok(cu.cuMemsetD8Async(memory, 1, 4096, PER_THREAD))
    ok(cu.cuStreamSynchronize(PER_THREAD))
    assert name(cu.cuStreamQuery(blocking)) == NOT_READY


def test_per_thread_streams_of_two_threads_are_independent(cu, scope, kernels):
    memory = scope.alloc(4096)
    kernels.spin(PER_THREAD)

    def other() -> str:
        ok(cu.cuCtxSetCurrent(cu.primary))
        ok(cu.cuMemsetD8Async(memory, 1, 4096, PER_THREAD))
        return name(cu.cuStreamSynchronize(PER_THREAD))

    assert in_thread(other) == SUCCESS
    assert name(cu.cuStreamQuery(PER_THREAD)) == NOT_READY


def test_legacy_stream_beside_a_stream_of_another_context(cu, scope, kernels, observe):
    context = scope.context()
    ok(cu.cuCtxPushCurrent(context))
    elsewhere = ok(cu.cuStreamCreate(BLOCKING))
    memory = scope.alloc(4096)
    ok(cu.cuCtxPopCurrent())
    kernels.spin(0)
    event = scope.recorded(0)
    ok(cu.cuCtxPushCurrent(context))
    ok(cu.cuMemsetD8Async(memory, 1, 4096, elsewhere))
    ok(cu.cuStreamSynchronize(elsewhere))
    outcome = name(cu.cuEventQuery(event))
    ok(cu.cuStreamDestroy(elsewhere))
    ok(cu.cuCtxPopCurrent())
    observe("kernel in the legacy stream of one context when another is done", outcome)


def test_query_of_the_empty_legacy_stream_beside_a_busy_blocking_one(cu, scope, kernels, observe):
    kernels.spin(scope.stream(BLOCKING))
    observe("query of the empty legacy stream", name(cu.cuStreamQuery(0)))


def test_synchronizing_the_empty_legacy_stream(cu, scope, kernels, observe):
    blocking = scope.stream(BLOCKING)
    kernels.spin(blocking)
    ok(cu.cuStreamSynchronize(0))
    observe("blocking stream after waiting for the legacy one", name(cu.cuStreamQuery(blocking)))


def test_event_in_the_empty_legacy_stream_beside_a_busy_blocking_one(cu, scope, kernels, observe):
    kernels.spin(scope.stream(BLOCKING))
    observe("event in the empty legacy stream", name(cu.cuEventQuery(scope.recorded(0))))


def test_event_in_a_blocking_stream_after_one_in_the_legacy_stream(cu, scope, kernels, observe):
    first, second = scope.stream(BLOCKING), scope.stream(BLOCKING)
    kernels.spin(first)
    scope.recorded(0)
    observe(
        "event alone in the legacy stream is a barrier",
        name(cu.cuEventQuery(scope.recorded(second))),
    )


def test_query_of_the_legacy_stream_beside_a_busy_non_blocking_one(cu, scope, kernels):
    kernels.spin(scope.stream(NON_BLOCKING))
    assert name(cu.cuStreamQuery(0)) == SUCCESS


def test_plain_copy_waits_for_blocking_streams(cu, scope, kernels):
    blocking, memory = scope.stream(BLOCKING), scope.alloc(4096)
    kernels.spin(blocking)
    event = scope.recorded(blocking)
    scope.read(memory, 64)
    assert name(cu.cuEventQuery(event)) == SUCCESS


def test_plain_copy_does_not_wait_for_non_blocking_streams(cu, scope, kernels):
    free, memory = scope.stream(NON_BLOCKING), scope.alloc(4096)
    kernels.spin(free)
    event = scope.recorded(free)
    scope.read(memory, 64)
    assert name(cu.cuEventQuery(event)) == NOT_READY
