"""User objects: who keeps them alive, and that the callback comes once, when nobody does.

The callback may come later than the call that dropped the last reference, in another thread.
"""

from __future__ import annotations

import ctypes
import threading

import pytest

from .support import INVALID_VALUE, in_thread, name, ok
from .user_objects import CALLBACK, MOVE, Witness, graph_of

TOO_MANY = 1 << 31


@pytest.fixture
def stream(scope):
    return scope.stream()


@pytest.fixture
def graph(cu, stream):
    """An empty graph; the test destroys it."""
    return graph_of(cu, stream)


# References of the program


def test_callback_comes_with_the_release_of_the_only_reference(cu):
    witness = Witness(cu)
    assert witness.alive
    witness.release()
    assert witness.is_gone()


def test_callback_waits_for_the_last_of_several(cu):
    witness = Witness(cu, references=3)
    witness.release(2)
    assert witness.alive
    witness.release()
    assert witness.is_gone()


def test_retained_references_count_too(cu):
    witness = Witness(cu)
    ok(cu.cuUserObjectRetain(witness.handle, 2))
    witness.release(2)
    assert witness.alive
    witness.release()
    assert witness.is_gone()


def test_reference_may_be_released_by_another_thread(cu):
    witness = Witness(cu)
    in_thread(witness.release)
    assert witness.is_gone()


# Bad arguments


def test_object_needs_its_flag(cu):
    function = CALLBACK(lambda _: None)
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert name(cu.cuUserObjectCreate(1, cu.CUhostFn(address), 1, 0)) == INVALID_VALUE


CREATIONS = {
    "no references": "(1, function, 0, 1)",
    "too many references": "(1, function, 1 << 31, 1)",
    "another flag": "(1, function, 1, 2)",
    "both flags": "(1, function, 1, 3)",
    "no callback": "(1, cu.CUhostFn(0), 1, 1)",
    "no data": "(0, function, 1, 1)",
}


@pytest.mark.parametrize("case", CREATIONS)
def test_creation(isolated, observe, case):
    outcome = isolated(
        f"""
        kept = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: None)
        function = cu.CUhostFn(ctypes.cast(kept, ctypes.c_void_p).value)
        note("create", name(cu.cuUserObjectCreate{CREATIONS[case]}))
        """
    )
    observe(f"user object: created with {case}", outcome)


def test_creation_without_a_place_for_the_handle(isolated, observe):
    outcome = isolated(
        """
        kept = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: None)
        note("create", Raw(cu).cuUserObjectCreate(
            None, None, kept, ctypes.c_uint(1), ctypes.c_uint(1)))
        """
    )
    observe("user object: created without a place for the handle", outcome)


def test_creation_without_a_context(isolated, observe):
    outcome = isolated(
        """
        seen = []
        kept = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(seen.append)
        function = cu.CUhostFn(ctypes.cast(kept, ctypes.c_void_p).value)
        note("before cuInit", name(cu.cuUserObjectCreate(1, function, 1, 1)))
        ok(cu.cuInit(0))
        note("after it", name(cu.cuUserObjectCreate(1, function, 1, 1)))
        """,
        start="uninitialised",
    )
    observe("user object: created without a context", outcome)


@pytest.mark.parametrize("count", [0, TOO_MANY])
def test_count_must_be_one_that_can_be(cu, graph, count):
    witness = Witness(cu)
    assert name(cu.cuUserObjectRetain(witness.handle, count)) == INVALID_VALUE
    assert name(cu.cuUserObjectRelease(witness.handle, count)) == INVALID_VALUE
    assert name(cu.cuGraphRetainUserObject(graph, witness.handle, count, 0)) == INVALID_VALUE
    witness.into(graph)
    assert name(cu.cuGraphReleaseUserObject(graph, witness.handle, count)) == INVALID_VALUE
    assert witness.alive
    ok(cu.cuGraphDestroy(graph))
    assert witness.is_gone()


MISUSES = {
    "retain a null object": "cu.cuUserObjectRetain(null, 1)",
    "release a null object": "cu.cuUserObjectRelease(null, 1)",
    "retain for a null graph": "cu.cuGraphRetainUserObject(cu.CUgraph(0), it, 1, 0)",
    "retain a null object for a graph": "cu.cuGraphRetainUserObject(graph, null, 1, 0)",
    "retain for a graph with flag 2": "cu.cuGraphRetainUserObject(graph, it, 1, 2)",
    "release from a graph without it": "cu.cuGraphReleaseUserObject(graph, it, 1)",
    "release more from a graph than it has": "more_from_the_graph()",
}


@pytest.mark.parametrize("use", MISUSES)
def test_misuse(isolated, observe, use):
    outcome = isolated(
        f"""
        kept = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: None)
        function = cu.CUhostFn(ctypes.cast(kept, ctypes.c_void_p).value)
        it, stream = ok(cu.cuUserObjectCreate(1, function, 1, 1)), scope.stream()
        null = cu.CUuserObject(0)
        ok(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode(0)))
        graph = ok(cu.cuStreamEndCapture(stream))

        def more_from_the_graph():
            ok(cu.cuGraphRetainUserObject(graph, it, 1, 0))
            return cu.cuGraphReleaseUserObject(graph, it, 2)

        note("use", name({MISUSES[use]}))
        """
    )
    observe(f"user object: {use}", outcome)


# References of graphs


def test_graph_takes_over_the_reference_of_the_program(cu, graph):
    witness = Witness(cu).into(graph, flags=MOVE)
    assert witness.alive
    ok(cu.cuGraphDestroy(graph))
    assert witness.is_gone()


def test_graph_adds_a_reference_of_its_own(cu, graph):
    witness = Witness(cu).into(graph, flags=0)
    ok(cu.cuGraphDestroy(graph))
    assert witness.alive
    witness.release()
    assert witness.is_gone()


def test_program_may_let_go_before_the_graph(cu, graph):
    witness = Witness(cu).into(graph, flags=0)
    witness.release()
    assert witness.alive
    ok(cu.cuGraphDestroy(graph))
    assert witness.is_gone()


def test_graph_gives_references_back_one_by_one(cu, graph):
    witness = Witness(cu, references=2).into(graph, count=2)
    ok(cu.cuGraphReleaseUserObject(graph, witness.handle, 1))
    assert witness.alive
    ok(cu.cuGraphReleaseUserObject(graph, witness.handle, 1))
    assert witness.is_gone()
    ok(cu.cuGraphDestroy(graph))


def test_object_of_two_graphs_goes_with_the_second(cu, stream):
    graphs = [graph_of(cu, stream) for _ in range(2)]
    witness = Witness(cu).into(graphs[0], flags=0).into(graphs[1])
    ok(cu.cuGraphDestroy(graphs[0]))
    assert witness.alive
    ok(cu.cuGraphDestroy(graphs[1]))
    assert witness.is_gone()


def test_graph_may_have_many_objects(cu, graph):
    witnesses = [Witness(cu).into(graph) for _ in range(20)]
    ok(cu.cuGraphDestroy(graph))
    assert all(witness.is_gone() for witness in witnesses)


# References of executables


def test_executable_keeps_what_its_graph_had(cu, graph):
    witness = Witness(cu).into(graph)
    executable = ok(cu.cuGraphInstantiate(graph, 0))
    ok(cu.cuGraphDestroy(graph))
    assert witness.alive
    ok(cu.cuGraphExecDestroy(executable))
    assert witness.is_gone()


def test_every_executable_has_its_own(cu, graph):
    witness = Witness(cu).into(graph)
    executables = [ok(cu.cuGraphInstantiate(graph, 0)) for _ in range(2)]
    ok(cu.cuGraphDestroy(graph))
    ok(cu.cuGraphExecDestroy(executables[0]))
    assert witness.alive
    ok(cu.cuGraphExecDestroy(executables[1]))
    assert witness.is_gone()


def test_executable_keeps_what_its_graph_gave_back_later(cu, graph):
    witness = Witness(cu).into(graph)
    executable = ok(cu.cuGraphInstantiate(graph, 0))
    ok(cu.cuGraphReleaseUserObject(graph, witness.handle, 1))
    assert witness.alive
    ok(cu.cuGraphExecDestroy(executable))
    assert witness.is_gone()
    ok(cu.cuGraphDestroy(graph))


def test_executable_has_no_part_in_what_its_graph_got_later(cu, graph):
    executable = ok(cu.cuGraphInstantiate(graph, 0))
    witness = Witness(cu).into(graph)
    ok(cu.cuGraphDestroy(graph))
    assert witness.is_gone()
    ok(cu.cuGraphExecDestroy(executable))


def test_launches_leave_the_object_alone(cu, stream, kernels):
    graph = graph_of(cu, stream, lambda on: kernels.spin(on, 1000))
    witness = Witness(cu).into(graph)
    executable = ok(cu.cuGraphInstantiate(graph, 0))
    ok(cu.cuGraphDestroy(graph))
    for _ in range(3):
        ok(cu.cuGraphLaunch(executable, stream))
        ok(cu.cuStreamSynchronize(stream))
        assert witness.alive
    ok(cu.cuGraphExecDestroy(executable))
    assert witness.is_gone()


def test_launch_under_way_keeps_the_object_of_a_destroyed_executable(cu, stream, kernels):
    graph = graph_of(cu, stream, kernels.spin, kernels.spin)
    witness = Witness(cu).into(graph)
    executable = ok(cu.cuGraphInstantiate(graph, 0))
    ok(cu.cuGraphDestroy(graph))
    ok(cu.cuGraphLaunch(executable, stream))
    ok(cu.cuGraphExecDestroy(executable))
    assert witness.alive
    ok(cu.cuStreamSynchronize(stream))
    assert witness.is_gone()


def test_callback_after_a_launch_comes_without_another_call(cu, stream, kernels, observe):
    graph = graph_of(cu, stream, kernels.spin)
    witness = Witness(cu).into(graph)
    executable = ok(cu.cuGraphInstantiate(graph, 0))
    ok(cu.cuGraphDestroy(graph))
    ok(cu.cuGraphLaunch(executable, stream))
    ok(cu.cuGraphExecDestroy(executable))
    came = witness.is_gone()
    ok(cu.cuStreamSynchronize(stream))
    assert witness.is_gone()
    observe("user object: callback after a launch comes without another call", came)


def test_thread_of_the_callback(cu, graph, observe):
    threads = {}
    released, of_graph = Witness(cu), Witness(cu).into(graph)
    released.release()
    ok(cu.cuGraphDestroy(graph))
    for how, witness in {"release": released, "graph destroyed": of_graph}.items():
        assert witness.is_gone()
        own = witness.threads == [threading.get_ident()]
        threads[how] = "of the caller" if own else "of the driver"
    observe("user object: thread of the callback", threads)
