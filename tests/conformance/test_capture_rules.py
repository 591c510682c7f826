"""What stream capture forbids: the error of the call, and what becomes of the capture."""

from __future__ import annotations

import ctypes

import pytest

from .capturing import (
    CAPTURED_EVENT,
    GLOBAL,
    IMPLICIT,
    INVALIDATED,
    ISOLATION,
    MERGE,
    MODES,
    RELAXED,
    UNMATCHED,
    UNSUPPORTED,
    WRONG_THREAD,
    Capture,
    capturing,
    exchange,
    status,
)
from .support import SUCCESS, in_thread, name, ok


@pytest.fixture
def relaxed(cu):
    """This thread's own capture mode is relaxed: what is still refused conflicts by nature."""
    before = exchange(cu, RELAXED)
    yield
    exchange(cu, before)


# Beginning and ending


def test_legacy_stream_cannot_be_captured(cu, observe):
    answers = [
        name(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode(0))) for stream in (0, 1)
    ]
    assert SUCCESS not in answers
    observe("capture: begin on the legacy stream", answers)


def test_unknown_mode(raw, scope, observe):
    stream, graph = ctypes.c_void_p(int(scope.stream())), ctypes.c_void_p()
    answer = raw.cuStreamBeginCapture(stream, ctypes.c_int(7))
    if answer == SUCCESS:
        raw.cuStreamEndCapture(stream, ctypes.byref(graph))
    observe("capture: begin with mode 7", answer)


def test_second_begin(cu, scope, observe):
    stream = scope.stream()
    with capturing(cu, scope, stream) as capture:
        answer = name(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode(0)))
    assert answer != SUCCESS
    observe("capture: second begin", [answer, capture.ended])


def test_end_without_a_begin(cu, scope, observe):
    observe("capture: end without a begin", name(cu.cuStreamEndCapture(scope.stream())))


def test_end_on_another_stream_of_the_capture(cu, scope, kernels, observe):
    one, two = scope.stream(), scope.stream()
    with capturing(cu, scope, one) as capture:
        kernels.spin(one, 1000)
        ok(cu.cuStreamWaitEvent(two, scope.recorded(one), 0))
        assert name(cu.cuStreamEndCapture(two)) == UNMATCHED
        seen = [status(cu, one), status(cu, two)]
    observe("capture: end on the wrong stream, then the right one", [*seen, capture.ended])


@pytest.mark.parametrize("mode", ["global", "thread local"])
def test_end_by_another_thread(cu, scope, kernels, observe, mode):
    stream = scope.stream()
    with capturing(cu, scope, stream, MODES[mode]) as capture:
        kernels.spin(stream, 1000)

        def other() -> str:
            ok(cu.cuCtxSetCurrent(cu.primary))
            return name(cu.cuStreamEndCapture(stream))

        assert in_thread(other) == WRONG_THREAD
        seen = status(cu, stream)
    observe(f"capture: {mode}, after an end by the wrong thread", [seen, capture.ended])


def test_relaxed_capture_may_be_ended_by_any_thread(cu, scope):
    stream = scope.stream()
    capture = Capture(cu, scope, stream, RELAXED)

    def other() -> str:
        ok(cu.cuCtxSetCurrent(cu.primary))
        return capture.end()

    assert in_thread(other) == SUCCESS


def test_other_thread_may_issue_to_the_capture(cu, scope, kernels):
    stream = scope.stream()
    with capturing(cu, scope, stream) as capture:

        def other() -> None:
            ok(cu.cuCtxSetCurrent(cu.primary))
            kernels.spin(stream, 1000)

        in_thread(other)
    assert capture.nodes() == 1


# Waiting for what has not run


WAITS = {
    "cuStreamSynchronize": lambda cu, stream: cu.cuStreamSynchronize(stream),
    "cuStreamQuery": lambda cu, stream: cu.cuStreamQuery(stream),
}


@pytest.mark.parametrize("call", WAITS)
@pytest.mark.parametrize("mode", MODES)
def test_waiting_for_a_capturing_stream_invalidates(cu, scope, call, mode):
    stream = scope.stream()
    with capturing(cu, scope, stream, MODES[mode]) as capture:
        assert name(WAITS[call](cu, stream)) == UNSUPPORTED
        assert status(cu, stream) == "invalidated"
    assert capture.ended == INVALIDATED


def test_use_of_an_invalidated_stream(cu, scope, kernels, observe):
    stream, other, event = scope.stream(), scope.stream(), scope.event()
    memory = scope.alloc(256)
    with capturing(cu, scope, stream) as capture:
        ok(cu.cuEventRecord(event, stream))
        cu.cuStreamQuery(stream)
        seen = {
            "launch": name(kernels.launch("vk_spin", 1, stream=stream)),
            "set": name(cu.cuMemsetD8Async(memory, 0, 256, stream)),
            "record": name(cu.cuEventRecord(event, stream)),
            "wait": name(cu.cuStreamWaitEvent(other, event, 0)),
            "query": name(cu.cuStreamQuery(stream)),
            "information": name(cu.cuStreamGetCaptureInfo(stream)),
        }
    assert capture.ended == INVALIDATED
    observe("capture: use of an invalidated stream", seen)
    ok(cu.cuStreamSynchronize(stream))


@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "non-blocking"])
@pytest.mark.parametrize("mode", MODES)
def test_context_synchronisation(cu, scope, observe, blocking, mode):
    stream = scope.stream(0 if blocking else 1)
    with capturing(cu, scope, stream, MODES[mode]) as capture:
        answer = name(cu.cuCtxSynchronize())
    kind = "blocking" if blocking else "non-blocking"
    observe(f"capture: cuCtxSynchronize, {kind}, {mode}", [answer, capture.ended])


# The legacy stream


LEGACY_USES = {
    "launch": lambda cu, kernels, memory: kernels.launch("vk_spin", 1, stream=0),
    "set": lambda cu, kernels, memory: cu.cuMemsetD8(memory, 0, 256),
    "set async": lambda cu, kernels, memory: cu.cuMemsetD8Async(memory, 0, 256, 0),
    "copy": lambda cu, kernels, memory: cu.cuMemcpyDtoD(memory, memory + 256, 256),
    "synchronise": lambda cu, kernels, memory: cu.cuStreamSynchronize(0),
    "query": lambda cu, kernels, memory: cu.cuStreamQuery(0),
}


@pytest.mark.parametrize("use", LEGACY_USES)
def test_legacy_stream_beside_a_blocking_capture(cu, scope, kernels, relaxed, observe, use):
    stream, memory = scope.stream(0), scope.alloc(512)
    with capturing(cu, scope, stream, RELAXED) as capture:
        answer = name(LEGACY_USES[use](cu, kernels, memory))
    assert answer == IMPLICIT
    observe(f"capture: end after {use} on the legacy stream", capture.ended)


@pytest.mark.parametrize("use", LEGACY_USES)
def test_legacy_stream_beside_a_non_blocking_capture(cu, scope, kernels, observe, use):
    stream, memory = scope.stream(1), scope.alloc(512)
    with capturing(cu, scope, stream) as capture:
        answer = name(LEGACY_USES[use](cu, kernels, memory))
    observe(f"capture: {use} on the legacy stream, non-blocking", [answer, capture.ended])


def test_asking_the_legacy_stream_does_no_harm(cu, scope):
    stream = scope.stream(0)
    with capturing(cu, scope, stream) as capture:
        assert name(cu.cuStreamIsCapturing(0)) == IMPLICIT
        assert status(cu, stream) == "active"
    assert capture.ended == SUCCESS


def test_other_blocking_stream_works_beside_a_capture(cu, scope, kernels):
    stream, other = scope.stream(0), scope.stream(0)
    with capturing(cu, scope, stream) as capture:
        kernels.spin(other, 1000)
    assert capture.ended == SUCCESS
    ok(cu.cuStreamSynchronize(other))


# Events between captured and other streams


def test_capture_cannot_wait_for_work_outside(cu, scope, kernels):
    stream, other = scope.stream(), scope.stream()
    kernels.spin(other, 1000)
    outside = scope.recorded(other)
    with capturing(cu, scope, stream) as capture:
        assert name(cu.cuStreamWaitEvent(stream, outside, 0)) == ISOLATION
    assert capture.ended == INVALIDATED


def test_capture_waits_for_an_event_never_recorded(cu, scope, observe):
    stream, event = scope.stream(), scope.event()
    with capturing(cu, scope, stream) as capture:
        answer = name(cu.cuStreamWaitEvent(stream, event, 0))
    observe("capture: wait for an event never recorded", [answer, capture.ended])


def test_captures_cannot_be_merged(cu, scope, kernels, observe):
    one, two = scope.stream(), scope.stream()
    captures = [Capture(cu, scope, stream, RELAXED) for stream in (one, two)]
    kernels.spin(one, 1000)
    answer = name(cu.cuStreamWaitEvent(two, scope.recorded(one), 0))
    ends = [capture.end() for capture in captures]
    assert answer == MERGE
    observe("capture: ends after an attempted merge", ends)


EVENT_USES = {
    "query": lambda cu, event: cu.cuEventQuery(event),
    "synchronise": lambda cu, event: cu.cuEventSynchronize(event),
    "elapsed": lambda cu, event: cu.cuEventElapsedTime(event, event),
}


@pytest.mark.parametrize("use", EVENT_USES)
def test_event_of_a_capture(cu, scope, relaxed, observe, use):
    stream, event = scope.stream(), scope.event()
    with capturing(cu, scope, stream, RELAXED) as capture:
        ok(cu.cuEventRecord(event, stream))
        answer = name(EVENT_USES[use](cu, event))
    assert answer == CAPTURED_EVENT
    observe(f"capture: end after {use} of its event", capture.ended)


@pytest.mark.parametrize("use", [*EVENT_USES, "wait"])
def test_event_of_a_capture_that_is_over(cu, scope, observe, use):
    stream, other, event = scope.stream(), scope.stream(), scope.event()
    with capturing(cu, scope, stream):
        ok(cu.cuEventRecord(event, stream))
    if use == "wait":
        answer = name(cu.cuStreamWaitEvent(other, event, 0))
    else:
        answer = name(EVENT_USES[use](cu, event))
    observe(f"capture: {use} of an event of a capture that is over", answer)


def test_event_recorded_again_outside_is_an_ordinary_one(cu, scope):
    stream, event = scope.stream(), scope.event()
    with capturing(cu, scope, stream):
        ok(cu.cuEventRecord(event, stream))
    ok(cu.cuEventRecord(event, stream))
    assert name(cu.cuEventSynchronize(event)) == SUCCESS


def test_callback_cannot_be_captured(cu, raw, scope, observe):
    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)(
        lambda stream, status, data: None
    )
    stream = scope.stream()
    with capturing(cu, scope, stream) as capture:
        answer = raw.cuStreamAddCallback(
            ctypes.c_void_p(int(stream)), callback, None, ctypes.c_uint(0)
        )
    observe("capture: cuStreamAddCallback", [answer, capture.ended])


# What is gone


def test_capturing_stream_destroyed(isolated, observe):
    outcome = isolated(
        """
        stream, other = ok(cu.cuStreamCreate(1)), ok(cu.cuStreamCreate(1))
        mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
        ok(cu.cuStreamBeginCapture(stream, mode))
        note("destroy", name(cu.cuStreamDestroy(stream)))
        note("alloc afterwards", name(cu.cuMemAlloc(256)))
        note("begin on another", name(cu.cuStreamBeginCapture(other, mode)))
        note("end of that", name(cu.cuStreamEndCapture(other)))
        """
    )
    observe("capture: capturing stream destroyed", outcome)


GRAPH_USES = {
    "instantiate a null graph": "cu.cuGraphInstantiate(cu.CUgraph(0), 0)",
    "destroy a null graph": "cu.cuGraphDestroy(cu.CUgraph(0))",
    "destroy a null executable": "cu.cuGraphExecDestroy(cu.CUgraphExec(0))",
    "launch a null executable": "cu.cuGraphLaunch(cu.CUgraphExec(0), stream)",
    "instantiate a destroyed graph": "cu.cuGraphInstantiate(graph, 0)",
    "destroy a graph twice": "cu.cuGraphDestroy(graph)",
}


@pytest.mark.parametrize("use", GRAPH_USES)
def test_graph_that_is_not_there(isolated, observe, use):
    outcome = isolated(
        f"""
        stream = scope.stream()
        mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
        ok(cu.cuStreamBeginCapture(stream, mode))
        graph = ok(cu.cuStreamEndCapture(stream))
        ok(cu.cuGraphDestroy(graph))
        note("use", name({GRAPH_USES[use]}))
        """
    )
    observe(f"capture: {use}", outcome)


def test_mode_of_the_thread_rules_its_own_capture(cu, scope, observe):
    seen = {}
    for of_capture, mode in MODES.items():
        for of_thread, own in MODES.items():
            stream = scope.stream()
            before = exchange(cu, own)
            with capturing(cu, scope, stream, mode) as capture:
                answer = cu.cuMemAlloc(256)
            exchange(cu, before)
            if int(answer[0]) == 0:
                ok(cu.cuMemFree(answer[1]))
            seen[f"{of_capture} capture, {of_thread} thread"] = [name(answer), capture.ended]
    assert seen["global capture, relaxed thread"] == [SUCCESS, SUCCESS]
    assert seen["relaxed capture, thread local thread"] == [SUCCESS, SUCCESS]
    observe("capture: cuMemAlloc in the capturing thread", seen)


def test_default_mode_is_what_a_thread_starts_with(cu, scope):
    with capturing(cu, scope, scope.stream(), GLOBAL):
        assert in_thread(lambda: exchange(cu, GLOBAL)) == GLOBAL
