"""Stream capture: what it records, what a launch replays, and how streams join and leave it."""

from __future__ import annotations

import ctypes

import pytest

from .capturing import GLOBAL, RELAXED, UNJOINED, Capture, capturing, status
from .support import NOT_READY, SPIN_NANOSECONDS, SUCCESS, name, ok


def words(value: int, count: int = 1024) -> bytes:
    return value.to_bytes(4, "little") * count


def launch(cu, executable, stream):
    ok(cu.cuGraphLaunch(executable, stream))
    ok(cu.cuStreamSynchronize(stream))


@pytest.fixture
def memory(cu, scope):
    """4 KiB of zeros."""
    address = scope.alloc(4096)
    ok(cu.cuMemsetD8(address, 0, 4096))
    ok(cu.cuStreamSynchronize(0))
    return address


# Recording and replay


def test_stream_is_active_until_the_capture_ends(cu, scope):
    stream = scope.stream()
    with capturing(cu, scope, stream) as capture:
        assert status(cu, stream) == "active"
    assert capture.ended == SUCCESS
    assert status(cu, stream) == "none"


def test_captured_work_does_not_run_before_the_launch(cu, scope, kernels, memory):
    stream = scope.stream()
    with capturing(cu, scope, stream) as capture:
        kernels.run("vk_fill", memory, 1024, 7, stream=stream)
    ok(cu.cuStreamSynchronize(stream))
    assert scope.read(memory, 4096) == words(0)
    launch(cu, capture.executable(), stream)
    assert scope.read(memory, 4096) == words(7)


def test_each_launch_runs_everything_again(cu, scope, kernels, memory):
    stream, total = scope.stream(), scope.alloc(8)
    ok(cu.cuMemsetD32(memory, 1, 1024))
    ok(cu.cuMemsetD8(total, 0, 8))
    ok(cu.cuStreamSynchronize(0))
    with capturing(cu, scope, stream) as capture:
        kernels.run("vk_checksum", memory, 1024, total, stream=stream)
    executable = capture.executable()
    for launches in range(1, 4):
        launch(cu, executable, stream)
        assert int.from_bytes(scope.read(total, 8), "little") == 1024 * launches


def test_order_of_the_capture_is_the_order_of_the_replay(cu, scope, kernels, memory):
    stream, copied = scope.stream(), scope.alloc(4096)
    with capturing(cu, scope, stream) as capture:
        ok(cu.cuMemsetD32Async(memory, 3, 1024, stream))
        ok(cu.cuMemcpyDtoDAsync(copied, memory, 4096, stream))
        kernels.run("vk_fill", memory, 1024, 4, stream=stream)
    assert capture.nodes() == 3
    launch(cu, capture.executable(), stream)
    assert scope.read(copied, 4096) == words(3)
    assert scope.read(memory, 4096) == words(4)


def test_pinned_source_is_read_at_the_launch(cu, scope, memory):
    stream, host = scope.stream(), scope.pinned(4096)
    with capturing(cu, scope, stream) as capture:
        ok(cu.cuMemcpyHtoDAsync(memory, host, 4096, stream))
    executable = capture.executable()
    for value in (5, 6):
        ctypes.memmove(host, words(value), 4096)
        launch(cu, executable, stream)
        assert scope.read(memory, 4096) == words(value)


def test_copy_to_pinned_memory_lands_at_the_launch(cu, scope, memory):
    stream, host = scope.stream(), scope.pinned(4096)
    ok(cu.cuMemsetD32(memory, 9, 1024))
    ok(cu.cuStreamSynchronize(0))
    with capturing(cu, scope, stream) as capture:
        ok(cu.cuMemcpyDtoHAsync(host, memory, 4096, stream))
    assert ctypes.string_at(host, 4096) == words(0)
    launch(cu, capture.executable(), stream)
    assert ctypes.string_at(host, 4096) == words(9)


def test_pageable_source(cu, scope, memory, observe):
    stream, host = scope.stream(), scope.pages(4096)
    ctypes.memmove(host, words(5), 4096)
    with capturing(cu, scope, stream) as capture:
        answer = name(cu.cuMemcpyHtoDAsync(memory, host, 4096, stream))
    seen = {"copy": answer, "end": capture.ended}
    if capture.ended == SUCCESS:
        ctypes.memmove(host, words(6), 4096)
        launch(cu, capture.executable(), stream)
        seen["read at"] = "launch" if scope.read(memory, 4096) == words(6) else "capture"
    observe("capture: copy from pageable memory", seen)


def test_host_function_runs_at_every_launch(isolated):
    # By the raw entry point, so that nothing but the driver keeps the function for later launches;
    # the snippet's name for it outlives the last one.
    outcome = isolated(
        """
        stream, seen = scope.stream(), []
        function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda value: seen.append(value))
        ok(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode(0)))
        handle, data = ctypes.c_void_p(int(stream)), ctypes.c_void_p(11)
        note("captured", Raw(cu).cuLaunchHostFunc(handle, function, data))
        executable = ok(cu.cuGraphInstantiate(ok(cu.cuStreamEndCapture(stream)), 0))
        note("before", seen)
        for _ in range(2):
            ok(cu.cuGraphLaunch(executable, stream))
            ok(cu.cuStreamSynchronize(stream))
        note("after", seen)
        """
    )
    assert outcome == {"captured": SUCCESS, "before": [], "after": [11, 11], "ended": "normally"}


def test_value_is_written_at_the_launch(cu, scope, memory, observe):
    stream = scope.stream()
    with capturing(cu, scope, stream) as capture:
        answer = name(cu.cuStreamWriteValue32(stream, memory, 77, 0))
    seen = {"write": answer, "end": capture.ended}
    if capture.ended == SUCCESS:
        seen["nodes"] = capture.nodes()
        launch(cu, capture.executable(), stream)
        seen["value"] = int.from_bytes(scope.read(memory, 4), "little")
    observe("capture: cuStreamWriteValue32", seen)


def test_empty_capture(cu, scope):
    stream = scope.stream()
    with capturing(cu, scope, stream) as capture:
        pass
    assert capture.nodes() == 0
    launch(cu, capture.executable(), stream)


def test_events_inside_make_no_nodes(cu, scope, kernels, observe):
    stream, event = scope.stream(), scope.event()
    with capturing(cu, scope, stream) as capture:
        kernels.spin(stream, 1000)
        ok(cu.cuEventRecord(event, stream))
        ok(cu.cuStreamWaitEvent(stream, event, 0))
        kernels.spin(stream, 1000)
    observe("capture: nodes of two kernels with an event between", capture.nodes())


def test_work_issued_before_the_capture_runs(cu, scope, kernels, memory):
    stream = scope.stream()
    kernels.spin(stream, 5_000_000)
    kernels.run("vk_fill", memory, 1024, 2, stream=stream)
    with capturing(cu, scope, stream) as capture:
        kernels.run("vk_fill", memory, 1024, 3, stream=stream)
    assert capture.ended == SUCCESS
    ok(cu.cuStreamSynchronize(stream))
    assert scope.read(memory, 4096) == words(2)


def test_launch_stands_in_the_order_of_its_stream(cu, scope, kernels, memory):
    stream = scope.stream()
    with capturing(cu, scope, stream) as capture:
        kernels.run("vk_fill", memory, 1024, 3, stream=stream)
    executable = capture.executable()
    kernels.spin(stream)
    ok(cu.cuGraphLaunch(executable, stream))
    assert name(cu.cuStreamQuery(stream)) == NOT_READY
    kernels.run("vk_fill", memory, 1, 4, stream=stream)
    ok(cu.cuStreamSynchronize(stream))
    assert scope.read(memory, 4096) == words(4, 1) + words(3, 1023)


def test_launches_of_one_executable_follow_each_other(cu, scope, kernels):
    one, two = scope.stream(), scope.stream()
    with capturing(cu, scope, one) as capture:
        kernels.spin(one)
    executable = capture.executable()
    ok(cu.cuGraphLaunch(executable, one))
    first = scope.recorded(one)
    ok(cu.cuGraphLaunch(executable, two))
    second = scope.recorded(two)
    ok(cu.cuCtxSynchronize())
    apart = float(ok(cu.cuEventElapsedTime(first, second)))  # in milliseconds
    assert apart > SPIN_NANOSECONDS / 2e6


def test_executable_outlives_its_graph(cu, scope, kernels, memory):
    stream = scope.stream()
    ok(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode(GLOBAL)))
    kernels.run("vk_fill", memory, 1024, 8, stream=stream)
    graph = ok(cu.cuStreamEndCapture(stream))
    executable = ok(cu.cuGraphInstantiate(graph, 0))
    ok(cu.cuGraphDestroy(graph))
    launch(cu, executable, stream)
    ok(cu.cuGraphExecDestroy(executable))
    assert scope.read(memory, 4096) == words(8)


def test_instantiation_with_parameters(cu, scope, kernels, memory):
    stream = scope.stream()
    with capturing(cu, scope, stream) as capture:
        kernels.run("vk_fill", memory, 1024, 8, stream=stream)
    parameters = cu.CUDA_GRAPH_INSTANTIATE_PARAMS()
    executable = ok(cu.cuGraphInstantiateWithParams(capture.graph, parameters))
    scope.undo(cu.cuGraphExecDestroy, executable)
    ok(cu.cuGraphUpload(executable, stream))
    launch(cu, executable, stream)
    assert scope.read(memory, 4096) == words(8)


@pytest.mark.parametrize("flags", [1, 2, 3, 8, 16])
def test_flags_of_instantiation(cu, scope, kernels, observe, flags):
    stream = scope.stream()
    with capturing(cu, scope, stream) as capture:
        kernels.spin(stream, 1000)
    answer = cu.cuGraphInstantiate(capture.graph, flags)
    if int(answer[0]) == 0:
        ok(cu.cuGraphExecDestroy(answer[1]))
    observe(f"capture: instantiation with flags {flags}", name(answer))


# Several streams


def test_stream_that_waits_for_a_captured_event_joins(cu, scope, kernels, memory):
    one, two = scope.stream(), scope.stream()
    half = memory + 2048
    with capturing(cu, scope, one) as capture:
        kernels.run("vk_fill", memory, 1024, 1, stream=one)
        fork, join = scope.recorded(one), scope.event()
        assert status(cu, two) == "none"
        ok(cu.cuStreamWaitEvent(two, fork, 0))
        assert status(cu, two) == "active"
        kernels.run("vk_fill", half, 512, 2, stream=two)
        ok(cu.cuEventRecord(join, two))
        ok(cu.cuStreamWaitEvent(one, join, 0))
        kernels.run("vk_fill", memory, 1, 3, stream=one)
    assert capture.ended == SUCCESS
    assert status(cu, two) == "none"
    assert scope.read(memory, 4096) == words(0)
    launch(cu, capture.executable(), one)
    assert scope.read(memory, 4096) == words(3, 1) + words(1, 511) + words(2, 512)


def test_stream_that_is_not_joined_back(cu, scope, kernels, observe):
    one, two = scope.stream(), scope.stream()
    with capturing(cu, scope, one) as capture:
        kernels.spin(one, 1000)
        ok(cu.cuStreamWaitEvent(two, scope.recorded(one), 0))
        kernels.spin(two, 1000)
        assert capture.end() == UNJOINED
    observe("capture: streams after an unjoined end", [status(cu, one), status(cu, two)])


def test_forked_stream_without_work(cu, scope, kernels, observe):
    one, two = scope.stream(), scope.stream()
    with capturing(cu, scope, one) as capture:
        kernels.spin(one, 1000)
        ok(cu.cuStreamWaitEvent(two, scope.recorded(one), 0))
    observe("capture: end with a forked stream that did nothing", capture.ended)


def test_work_joined_by_an_event_recorded_too_early(cu, scope, kernels):
    one, two = scope.stream(), scope.stream()
    with capturing(cu, scope, one) as capture:
        kernels.spin(one, 1000)
        ok(cu.cuStreamWaitEvent(two, scope.recorded(one), 0))
        kernels.spin(two, 1000)
        ok(cu.cuStreamWaitEvent(one, scope.recorded(two), 0))
        kernels.spin(two, 1000)
    assert capture.ended == UNJOINED


# Identity


def test_capture_has_an_id_that_its_streams_share(cu, scope, kernels):
    def identity(stream) -> int:
        return int(ok(cu.cuStreamGetCaptureInfo(stream))[1])

    one, two = scope.stream(), scope.stream()
    with capturing(cu, scope, one):
        kernels.spin(one, 1000)
        ok(cu.cuStreamWaitEvent(two, scope.recorded(one), 0))
        first = identity(one)
        assert identity(two) == first
        ok(cu.cuStreamWaitEvent(one, scope.recorded(two), 0))
    with capturing(cu, scope, one):
        assert identity(one) != first


def test_captures_side_by_side(cu, scope, kernels, memory):
    one, two = scope.stream(), scope.stream()
    captures = [Capture(cu, scope, stream, RELAXED) for stream in (one, two)]
    kernels.run("vk_fill", memory, 512, 1, stream=one)
    kernels.run("vk_fill", memory + 2048, 512, 2, stream=two)
    assert [capture.end() for capture in captures] == [SUCCESS, SUCCESS]
    for capture in captures:
        launch(cu, capture.executable(), one)
    assert scope.read(memory, 4096) == words(1, 512) + words(2, 512)


def test_per_thread_default_stream_can_be_captured(cu, scope, kernels, memory):
    with capturing(cu, scope, 2) as capture:
        kernels.run("vk_fill", memory, 1024, 6, stream=2)
    assert capture.ended == SUCCESS
    launch(cu, capture.executable(), 2)
    assert scope.read(memory, 4096) == words(6)
