"""Streams: flags, priorities, identity, completion, and the handles with a fixed meaning."""

from __future__ import annotations

import pytest

from .support import INVALID_VALUE, NOT_READY, SUCCESS, in_thread, name, ok

LEGACY = 1
PER_THREAD = 2


@pytest.mark.parametrize("flags", [0, 1])
def test_stream_keeps_its_flags(cu, scope, flags):
    assert ok(cu.cuStreamGetFlags(scope.stream(flags))) == flags


@pytest.mark.parametrize("flags", [2, 0x100])
def test_unknown_flags_are_refused(cu, flags):
    assert name(cu.cuStreamCreate(flags)) == INVALID_VALUE
    assert name(cu.cuStreamCreateWithPriority(flags, 0)) == INVALID_VALUE


def test_priority_range(cu, observe):
    least, greatest = ok(cu.cuCtxGetStreamPriorityRange())
    assert greatest <= least
    observe("range of stream priorities", [least, greatest])


def test_plain_stream_has_default_priority(cu, scope):
    assert ok(cu.cuStreamGetPriority(scope.stream())) == 0


@pytest.mark.parametrize("step", [0, -1, -2])
def test_priority_within_the_range_is_kept(cu, scope, step):
    stream = ok(cu.cuStreamCreateWithPriority(1, step))
    scope.undo(cu.cuStreamDestroy, stream)
    assert ok(cu.cuStreamGetPriority(stream)) == step


@pytest.mark.parametrize(("asked", "end"), [(1000, 0), (-1000, 1)], ids=["too low", "too high"])
def test_priority_outside_the_range_is_clamped(cu, scope, asked, end):
    stream = ok(cu.cuStreamCreateWithPriority(1, asked))
    scope.undo(cu.cuStreamDestroy, stream)
    assert ok(cu.cuStreamGetPriority(stream)) == ok(cu.cuCtxGetStreamPriorityRange())[end]


def test_streams_alive_together_differ_in_handle_and_id(cu, scope):
    streams = [scope.stream() for _ in range(8)]
    assert len({int(stream) for stream in streams}) == 8
    assert len({ok(cu.cuStreamGetId(stream)) for stream in streams}) == 8


def test_id_of_a_stream_is_stable(cu, scope):
    stream = scope.stream()
    assert ok(cu.cuStreamGetId(stream)) == ok(cu.cuStreamGetId(stream))


def test_id_is_never_reused_though_the_handle_may_be(cu, scope, observe):
    first = ok(cu.cuStreamCreate(1))
    first_id = ok(cu.cuStreamGetId(first))
    ok(cu.cuStreamDestroy(first))
    second = scope.stream()
    assert ok(cu.cuStreamGetId(second)) != first_id
    observe("handle of a destroyed stream comes back", int(second) == int(first))


def test_id_of_the_null_stream_is_that_of_the_legacy_stream(cu, scope):
    legacy = ok(cu.cuStreamGetId(LEGACY))
    assert ok(cu.cuStreamGetId(0)) == legacy
    assert ok(cu.cuStreamGetId(PER_THREAD)) != legacy


def test_per_thread_stream_differs_between_threads(cu):
    def other() -> int:
        ok(cu.cuCtxSetCurrent(cu.primary))
        return int(ok(cu.cuStreamGetId(PER_THREAD)))

    assert in_thread(other) != ok(cu.cuStreamGetId(PER_THREAD))


@pytest.mark.parametrize("handle", [0, LEGACY, PER_THREAD])
def test_default_stream_answers(cu, observe, handle):
    assert int(ok(cu.cuStreamGetCtx(handle))) == int(cu.primary)
    assert name(cu.cuStreamSynchronize(handle)) == SUCCESS
    assert name(cu.cuStreamQuery(handle)) == SUCCESS
    observe(
        f"flags and priority of default stream {handle}",
        [ok(cu.cuStreamGetFlags(handle)), ok(cu.cuStreamGetPriority(handle))],
    )


def test_default_streams_cannot_be_destroyed(isolated, observe):
    outcome = isolated(
        """
        for handle in (0, 1, 2):
            note(f"stream {handle}", name(cu.cuStreamDestroy(handle)))
        """
    )
    observe("cuStreamDestroy of the default streams", outcome)


def test_context_and_device_of_a_stream(cu, scope):
    stream = scope.stream()
    assert int(ok(cu.cuStreamGetCtx(stream))) == int(cu.primary)
    context = scope.context()
    ok(cu.cuCtxPushCurrent(context))
    other = ok(cu.cuStreamCreate(0))
    assert int(ok(cu.cuStreamGetCtx(other))) == int(context)
    assert int(ok(cu.cuStreamGetCtx(stream))) == int(cu.primary)
    ok(cu.cuStreamDestroy(other))
    ok(cu.cuCtxPopCurrent())


def test_empty_stream_is_done(cu, scope):
    stream = scope.stream()
    assert name(cu.cuStreamQuery(stream)) == SUCCESS
    assert name(cu.cuStreamSynchronize(stream)) == SUCCESS


def test_query_while_and_after_a_kernel_runs(cu, scope, kernels):
    stream = scope.stream()
    kernels.spin(stream)
    assert name(cu.cuStreamQuery(stream)) == NOT_READY
    ok(cu.cuStreamSynchronize(stream))
    assert name(cu.cuStreamQuery(stream)) == SUCCESS


def test_context_synchronize_waits_for_every_stream(cu, scope, kernels):
    streams = [scope.stream(), scope.stream(0)]
    for stream in streams:
        kernels.spin(stream, 20_000_000)
    ok(cu.cuCtxSynchronize())
    assert [name(cu.cuStreamQuery(stream)) for stream in streams] == [SUCCESS, SUCCESS]


def test_synchronize_waits_for_its_own_stream_only(cu, scope, kernels):
    long, short = scope.stream(), scope.stream()
    kernels.spin(long)
    kernels.spin(short, 1000)
    ok(cu.cuStreamSynchronize(short))
    assert name(cu.cuStreamQuery(long)) == NOT_READY


def test_work_in_one_stream_runs_in_order(cu, scope, kernels):
    stream, words = scope.stream(), scope.alloc(4096)
    kernels.spin(stream, 5_000_000)
    for value in range(1, 9):
        kernels.run("vk_fill", words, 1024, value, stream=stream)
    ok(cu.cuStreamSynchronize(stream))
    assert scope.read(words, 4) == (8).to_bytes(4, "little")


def test_destroying_a_stream_with_work_in_flight_lets_the_work_finish(cu, scope, kernels):
    stream, words = ok(cu.cuStreamCreate(1)), scope.alloc(4096)
    ok(cu.cuMemsetD8(words, 0, 4096))
    ok(cu.cuStreamSynchronize(0))
    kernels.spin(stream)
    kernels.run("vk_fill", words, 1024, 7, stream=stream)
    event = scope.recorded(stream)
    assert name(cu.cuStreamDestroy(stream)) == SUCCESS
    assert name(cu.cuEventQuery(event)) == NOT_READY
    ok(cu.cuEventSynchronize(event))
    assert scope.read(words, 4096) == (7).to_bytes(4, "little") * 1024


def test_stream_can_be_used_from_another_thread(cu, scope, kernels):
    stream = scope.stream()

    def other() -> str:
        ok(cu.cuCtxSetCurrent(cu.primary))
        kernels.spin(stream, 1000)
        return name(cu.cuStreamSynchronize(stream))

    assert in_thread(other) == SUCCESS
