"""What cuStreamGetCaptureInfo tells of a capture, and user objects retained while it goes on."""

from __future__ import annotations

import ctypes

import pytest

from .capturing import INVALIDATED, MODES, capturing
from .support import SUCCESS, ok
from .user_objects import Witness, capture_info

VERSION_OF_V2 = 11030


def spoil(cu, stream) -> None:
    """Waiting for a capturing stream is refused, and invalidates its capture."""
    assert int(cu.cuStreamSynchronize(stream)[0]) != 0


# What is told


def test_stream_that_does_not_capture(cu, scope):
    assert capture_info(cu, scope.stream())[0] == "none"


def test_active_capture_tells_its_graph(cu, scope, kernels):
    stream = scope.stream()
    with capturing(cu, scope, stream) as capture:
        kernels.spin(stream, 1000)
        word, identity, graph, _ = capture_info(cu, stream)
        assert (word, identity > 0) == ("active", True)
    assert capture.ended == SUCCESS
    assert int(graph) == int(capture.graph)
    assert capture_info(cu, stream)[0] == "none"


def test_joined_stream_tells_the_same(cu, scope, kernels):
    one, two = scope.stream(), scope.stream()
    with capturing(cu, scope, one) as capture:
        kernels.spin(one, 1000)
        ok(cu.cuStreamWaitEvent(two, scope.recorded(one), 0))
        of_one, of_two = capture_info(cu, one), capture_info(cu, two)
        assert of_one[0] == of_two[0] == "active"
        assert of_one[1] == of_two[1]
        assert int(of_one[2]) == int(of_two[2])
    assert capture.ended == SUCCESS


def test_captures_side_by_side_have_graphs_of_their_own(cu, scope):
    one, two = scope.stream(), scope.stream()
    with capturing(cu, scope, one, MODES["relaxed"]), capturing(cu, scope, two, MODES["relaxed"]):
        of_one, of_two = capture_info(cu, one), capture_info(cu, two)
        assert of_one[1] != of_two[1]
        assert int(of_one[2]) != int(of_two[2])


def test_dependencies_of_the_next_node(cu, scope, kernels):
    one, two = scope.stream(), scope.stream()

    def dependencies(stream) -> set[int]:
        return {int(node) for node in capture_info(cu, stream)[3]}

    with capturing(cu, scope, one) as capture:
        assert dependencies(one) == set()
        kernels.spin(one, 1000)
        first = dependencies(one)
        ok(cu.cuStreamWaitEvent(two, scope.recorded(one), 0))
        assert dependencies(two) == first
        kernels.spin(two, 1000)
        second = dependencies(two)
        assert (len(first), len(second), first & second) == (1, 1, set())
        kernels.spin(one, 1000)
        third = dependencies(one)
        ok(cu.cuStreamWaitEvent(one, scope.recorded(two), 0))
        assert dependencies(one) == second | third
    assert {int(node) for node in ok(cu.cuGraphGetNodes(capture.graph, 3))[0]} == (
        first | second | third
    )


def test_nodes_of_a_graph_being_captured(cu, scope, kernels):
    stream = scope.stream()
    with capturing(cu, scope, stream):
        graph = capture_info(cu, stream)[2]
        for count in range(3):
            assert ok(cu.cuGraphGetNodes(graph))[1] == count
            kernels.spin(stream, 1000)


def test_second_version_of_the_call(cu, scope, kernels):
    # The call as vramkit makes it, on any driver for CUDA 11.3 or newer.
    address, _ = ok(cu.cuGetProcAddress(b"cuStreamGetCaptureInfo", VERSION_OF_V2, 0))
    call = ctypes.CFUNCTYPE(ctypes.c_int)(int(address))
    call.argtypes = None
    stream = scope.stream()
    status, identity, graph = ctypes.c_int(-1), ctypes.c_uint64(0), ctypes.c_void_p(None)

    def ask() -> int:
        outputs = (ctypes.byref(each) for each in (status, identity, graph))
        return int(call(ctypes.c_void_p(int(stream)), *outputs, None, None))

    assert (ask(), status.value) == (0, 0)
    with capturing(cu, scope, stream):
        kernels.spin(stream, 1000)
        assert (ask(), status.value) == (0, 1)
        _, expected_identity, expected_graph, _ = capture_info(cu, stream)
        assert (identity.value, graph.value) == (expected_identity, int(expected_graph))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "question",
    ["cuStreamGetId", "cuStreamGetCtx", "cuStreamGetFlags", "cuStreamGetPriority"],
)
def test_question_about_a_capturing_stream(cu, scope, observe, question, mode):
    stream = scope.stream()
    with capturing(cu, scope, stream, MODES[mode]) as capture:
        answer = getattr(cu, question)(stream)[0].name
    observe(f"capture info: {question} of a capturing stream, {mode}", [answer, capture.ended])


def test_invalidated_capture(cu, scope, observe):
    stream = scope.stream()
    with capturing(cu, scope, stream) as capture:
        _, identity, graph, _ = capture_info(cu, stream)
        spoil(cu, stream)
        word, told, named, dependencies = capture_info(cu, stream)
        assert word == "invalidated"
    assert capture.ended == INVALIDATED
    assert capture_info(cu, stream)[0] == "none"
    observe(
        "capture info: of an invalidated capture",
        {
            "id": "told" if told == identity else "not told",
            "graph": "told" if int(named) == int(graph) else "not told",
            "dependencies": len(dependencies),
        },
    )


# User objects retained while the capture goes on


@pytest.mark.parametrize("mode", MODES)
def test_object_retained_during_the_capture_lives_with_its_graph(cu, scope, kernels, mode):
    stream = scope.stream()
    with capturing(cu, scope, stream, MODES[mode]) as capture:
        kernels.spin(stream, 1000)
        witness = Witness(cu).into(capture_info(cu, stream)[2])
        kernels.spin(stream, 1000)
        assert witness.alive
        assert capture.end() == SUCCESS
        assert witness.alive
    executable = ok(cu.cuGraphInstantiate(capture.graph, 0))
    ok(cu.cuGraphLaunch(executable, stream))
    ok(cu.cuStreamSynchronize(stream))
    ok(cu.cuGraphReleaseUserObject(capture.graph, witness.handle, 1))
    assert witness.alive
    ok(cu.cuGraphExecDestroy(executable))
    assert witness.is_gone()


def test_object_retained_by_the_end_of_the_capture_goes_with_the_graph(cu, scope):
    stream = scope.stream()
    ok(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode(0)))
    witness = Witness(cu).into(capture_info(cu, stream)[2])
    graph = ok(cu.cuStreamEndCapture(stream))
    assert witness.alive
    ok(cu.cuGraphDestroy(graph))
    assert witness.is_gone()


def test_object_of_a_capture_that_comes_to_nothing(cu, scope, observe):
    stream, event = scope.stream(), scope.event()
    with capturing(cu, scope, stream) as capture:
        witness = Witness(cu).into(capture_info(cu, stream)[2])
        ok(cu.cuEventRecord(event, stream))  # the event remembers the capture, and keeps nothing
        spoil(cu, stream)
        alive = witness.alive
    assert capture.ended == INVALIDATED
    assert witness.is_gone()
    observe("user object: lives while its capture is invalidated", alive)


def test_object_of_a_capture_whose_stream_is_destroyed(isolated, observe):
    outcome = isolated(
        """
        import threading
        called = threading.Event()
        kept = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: called.set())
        function = cu.CUhostFn(ctypes.cast(kept, ctypes.c_void_p).value)
        it, stream = ok(cu.cuUserObjectCreate(1, function, 1, 1)), ok(cu.cuStreamCreate(1))
        ok(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode(0)))
        graph = ok(cu.cuStreamGetCaptureInfo(stream))[2]
        note("retain", name(cu.cuGraphRetainUserObject(graph, it, 1, 1)))
        note("destroy", name(cu.cuStreamDestroy(stream)))
        note("callback", called.wait(5))
        """
    )
    observe("user object: of a capture whose stream is destroyed", outcome)


def test_graph_being_captured_cannot_be_destroyed(isolated, observe):
    outcome = isolated(
        """
        stream = scope.stream()
        ok(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode(0)))
        graph = ok(cu.cuStreamGetCaptureInfo(stream))[2]
        note("destroy", name(cu.cuGraphDestroy(graph)))
        note("end", name(cu.cuStreamEndCapture(stream)))
        """
    )
    observe("capture info: graph destroyed while it is captured", outcome)


# Streams that leave a capture by being destroyed


def test_joined_stream_may_be_destroyed_before_the_end(cu, scope, kernels):
    one, two = scope.stream(), ok(cu.cuStreamCreate(1))
    with capturing(cu, scope, one) as capture:
        kernels.spin(one, 1000)
        ok(cu.cuStreamWaitEvent(two, scope.recorded(one), 0))
        kernels.spin(two, 1000)
        ok(cu.cuStreamWaitEvent(one, scope.recorded(two), 0))
        ok(cu.cuStreamDestroy(two))
        assert capture_info(cu, one)[0] == "active"
    assert capture.ended == SUCCESS
    assert capture.nodes() == 2


def test_stream_destroyed_before_it_was_joined(isolated, observe):
    outcome = isolated(
        """
        loaded, one, two = kernels(), scope.stream(), ok(cu.cuStreamCreate(1))
        ok(cu.cuStreamBeginCapture(one, cu.CUstreamCaptureMode(0)))
        loaded.spin(one, 1000)
        event = scope.recorded(one)
        ok(cu.cuStreamWaitEvent(two, event, 0))
        loaded.spin(two, 1000)
        note("destroy", name(cu.cuStreamDestroy(two)))
        note("status", int(ok(cu.cuStreamIsCapturing(one))))
        note("end", name(cu.cuStreamEndCapture(one)))
        """
    )
    observe("capture info: stream destroyed before it was joined", outcome)


def test_end_without_a_place_for_the_graph(isolated, observe):
    outcome = isolated(
        """
        stream = scope.stream()
        ok(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode(0)))
        note("end", Raw(cu).cuStreamEndCapture(ctypes.c_void_p(int(stream)), None))
        note("status", int(ok(cu.cuStreamIsCapturing(stream))))
        """
    )
    observe("capture info: end without a place for the graph", outcome)
