"""The checker on stream-ordered memory and graphs: wrong programs beside their correct twins.

A program is a function of a bench and of `right`: which twin to be. The wrong one makes one report,
of the kind and between the two accesses that stand above it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from vramkit.driver import Driver

from .checker_bench import SIZE, WORDS, Bench, Side
from .raw_calls import RawCalls

pytestmark = [pytest.mark.sim_only, pytest.mark.sim(stacks="python")]

SET, KERNEL = "cuMemsetD8Async", "cuLaunchKernel"
ALLOC, FREE, LAUNCH = "cuMemAllocAsync", "cuMemFreeAsync", "cuGraphLaunch"

Body = Callable[[Bench, RawCalls, bool], None]


@dataclass(frozen=True)
class Program:
    body: Body
    kind: str
    first: Side
    second: Side


PROGRAMS: dict[str, Program] = {}


def program(kind: str, first: Side, second: Side) -> Callable[[Body], Body]:
    def add(body: Body) -> Body:
        PROGRAMS[body.__name__] = Program(body, kind, first, second)
        return body

    return add


# Stream-ordered memory


@program("free_in_use", (KERNEL, "read"), (FREE, "free"))
def freed_while_another_stream_reads(bench: Bench, raw: RawCalls, right: bool) -> None:
    owner, reader, out = bench.stream(), bench.stream(), bench.memory()
    block = raw.alloc(SIZE, owner)
    bench.device.fill(block, 1, SIZE, stream=owner)
    reader.wait(owner)
    bench.device.kernels.checksum(block, WORDS, out, stream=reader)
    if right:
        owner.wait(reader)
    raw.free(block, owner)


@program("free_in_use", (SET, "write"), (FREE, "free"))
def freed_on_a_stream_that_does_not_follow_the_use(
    bench: Bench, raw: RawCalls, right: bool
) -> None:
    owner, other = bench.stream(), bench.stream()
    block = raw.alloc(SIZE, owner)
    bench.device.fill(block, 1, SIZE, stream=owner)
    if right:
        other.wait(owner)
    raw.free(block, other)


@program("free_in_use", (SET, "write"), ("cuMemFree_v2", "free"))
def freed_by_the_host_while_in_use(bench: Bench, raw: RawCalls, right: bool) -> None:
    stream = bench.stream()
    block = raw.alloc(SIZE, stream)
    bench.device.fill(block, 1, SIZE, stream=stream)
    if right:
        stream.synchronize()
    raw.free(block, None)


@program("free_in_use", (SET, "write"), (FREE, "free"))
def block_of_cumemalloc_freed_on_a_stream_that_does_not_follow_the_use(
    bench: Bench, raw: RawCalls, right: bool
) -> None:
    user, other = bench.stream(), bench.stream()
    block = raw.alloc(SIZE, None)
    bench.device.fill(block, 1, SIZE, stream=user)
    bench.device.kernels.spin(1_000_000, stream=other)  # the use is over long before the free
    if right:
        other.wait(user)
    raw.free(block, other)


@program("use_after_free", (FREE, "free"), (SET, "write"))
def used_on_its_stream_after_the_free(bench: Bench, raw: RawCalls, right: bool) -> None:
    stream = bench.stream()
    block = raw.alloc(SIZE, stream)
    if right:
        bench.device.fill(block, 1, SIZE, stream=stream)
    raw.free(block, stream)
    if not right:
        bench.device.fill(block, 1, SIZE, stream=stream)


@program("use_after_free", (FREE, "free"), (KERNEL, "write"))
def used_on_another_stream_after_the_free(bench: Bench, raw: RawCalls, right: bool) -> None:
    stream, other = bench.stream(), bench.stream()
    block = raw.alloc(SIZE, stream)
    other.wait(stream)
    if right:
        bench.device.kernels.fill(block, WORDS, 1, stream=other)
        stream.wait(other)
    raw.free(block, stream)
    if not right:
        other.wait(stream)
        bench.device.kernels.fill(block, WORDS, 1, stream=other)


@program("use_after_free", (FREE, "free"), (SET, "write"))
def part_of_a_freed_block_used_beside_its_successor(
    bench: Bench, raw: RawCalls, right: bool
) -> None:
    stream = bench.stream()
    block = raw.alloc(SIZE, stream)
    raw.free(block, stream)
    smaller = raw.alloc(SIZE // 2, stream)
    assert smaller == block
    past_its_end = 0 if right else SIZE // 2
    bench.device.fill(smaller + past_its_end, 1, SIZE // 2, stream=stream)
    raw.free(smaller, stream)


@program("race", (ALLOC, "alloc"), (SET, "write"))
def used_on_a_stream_that_does_not_follow_the_allocation(
    bench: Bench, raw: RawCalls, right: bool
) -> None:
    owner, other = bench.stream(), bench.stream()
    block = raw.alloc(SIZE, owner)
    if right:
        other.wait(owner)
    bench.device.fill(block, 1, SIZE, stream=other)
    owner.wait(other)
    raw.free(block, owner)


# Graphs


@program("race", (LAUNCH, "write"), (KERNEL, "read"))
def replay_beside_a_reader(bench: Bench, raw: RawCalls, right: bool) -> None:
    stream, reader, memory, out = bench.stream(), bench.stream(), bench.memory(), bench.memory()
    raw.begin(stream)
    bench.device.fill(memory, 1, stream=stream)
    graph = raw.end(stream)
    raw.launch(graph, stream)
    if right:
        reader.wait(stream)
    bench.device.kernels.checksum(memory, WORDS, out, stream=reader)
    raw.destroy(graph)


@program("race", (SET, "write"), (LAUNCH, "read"))
def replay_on_a_stream_that_does_not_follow_the_writer(
    bench: Bench, raw: RawCalls, right: bool
) -> None:
    writer, stream, memory, out = bench.stream(), bench.stream(), bench.memory(), bench.memory()
    raw.begin(stream)
    bench.device.kernels.checksum(memory, WORDS, out, stream=stream)
    graph = raw.end(stream)
    bench.device.fill(memory, 1, stream=writer)
    if right:
        stream.wait(writer)
    raw.launch(graph, stream)
    raw.destroy(graph)


@program("use_after_free", (FREE, "free"), (LAUNCH, "write"))
def replay_with_a_block_that_is_freed(bench: Bench, raw: RawCalls, right: bool) -> None:
    stream = bench.stream()
    block = raw.alloc(SIZE, stream)
    raw.begin(stream)
    bench.device.fill(block, 1, SIZE, stream=stream)
    graph = raw.end(stream)
    if right:
        raw.launch(graph, stream)
    raw.free(block, stream)
    if not right:
        raw.launch(graph, stream)
    raw.destroy(graph)


@program("use_after_free", ("cuMemFree_v2", "free"), (LAUNCH, "write"))
def replay_with_memory_that_was_freed(bench: Bench, raw: RawCalls, right: bool) -> None:
    stream, memory = bench.stream(), raw.alloc(SIZE, None)
    raw.begin(stream)
    bench.device.fill(memory, 1, SIZE, stream=stream)
    graph = raw.end(stream)
    if not right:
        raw.free(memory, None)
        # Somebody else has it now, so that no fault tells of the mistake.
        assert raw.alloc(SIZE, None) == memory
    raw.launch(graph, stream)
    stream.synchronize()
    raw.free(memory, None)
    raw.destroy(graph)


@program("use_after_free", ("cuMemUnmap", "free"), (LAUNCH, "write"))
def replay_with_memory_that_was_unmapped(bench: Bench, raw: RawCalls, right: bool) -> None:
    """Memory that is mapped there again is the graph's to use."""
    stream, nbytes = bench.stream(), bench.device.granularity
    physical = bench.keep(bench.device.create(nbytes))
    addresses = bench.keep(bench.device.reserve(nbytes))
    addresses.map(physical)
    addresses.set_access()
    raw.begin(stream)
    bench.device.fill(addresses, 1, stream=stream)
    graph = raw.end(stream)
    addresses.unmap()
    if not right:
        raw.launch(graph, stream)
    addresses.map(physical)
    addresses.set_access()
    if right:
        raw.launch(graph, stream)
    stream.synchronize()
    raw.destroy(graph)


@program("use_after_free", ("simBlockFree", "free"), (LAUNCH, "write"))
def replay_with_a_block_that_has_another_owner(bench: Bench, raw: RawCalls, right: bool) -> None:
    stream, memory = bench.stream(), bench.memory()
    bench.sim.block_alloc(memory.address, 4096, stream)
    raw.begin(stream)
    bench.device.fill(memory.at(0, 4096), 1, stream=stream)
    graph = raw.end(stream)
    if right:
        raw.launch(graph, stream)
    bench.sim.block_free(memory.address, 4096, stream)
    bench.sim.block_alloc(memory.address, 4096, stream)
    if not right:
        raw.launch(graph, stream)
    raw.destroy(graph)


# The tests


each_program = pytest.mark.parametrize("name", PROGRAMS)


@each_program
@pytest.mark.expects_reports
def test_wrong_program_is_reported(driver: Driver, name: str) -> None:
    assert driver.sim is not None
    wrong = PROGRAMS[name]
    with Bench(driver) as bench:
        wrong.body(bench, RawCalls(driver), False)
    (report,) = driver.sim.reports()
    assert (report.kind, report.severity) == (wrong.kind, "error")
    assert (report.first.call, report.first.access) == wrong.first
    assert (report.second.call, report.second.access) == wrong.second
    for site in (report.first, report.second):
        assert any(wrong.body.__name__ in frame for frame in site.frames), site.frames


@each_program
def test_correct_twin_is_not_reported(driver: Driver, name: str) -> None:
    assert driver.sim is not None
    with Bench(driver) as bench:
        PROGRAMS[name].body(bench, RawCalls(driver), True)
    assert driver.sim.reports() == []


def test_memory_that_the_driver_hands_on_is_no_race(driver: Driver) -> None:
    """A free that was reached may serve any stream, without any order the program made."""
    assert driver.sim is not None
    raw = RawCalls(driver)
    with Bench(driver) as bench:
        one, two = bench.stream(), bench.stream()
        first = raw.alloc(SIZE, one)
        bench.device.fill(first, 1, SIZE, stream=one)
        raw.free(first, one)
        driver.sim.advance(1.0)
        second = raw.alloc(SIZE, two)
        assert second == first
        bench.device.fill(second, 2, SIZE, stream=two)
        raw.free(second, two)
    assert driver.sim.reports() == []


@pytest.mark.expects_reports
def test_memory_handed_on_orders_nothing_else(driver: Driver) -> None:
    assert driver.sim is not None
    raw = RawCalls(driver)
    with Bench(driver) as bench:
        one, two, memory = bench.stream(), bench.stream(), bench.memory()
        bench.device.fill(memory, 1, stream=one)
        raw.free(raw.alloc(SIZE, one), one)
        driver.sim.advance(1.0)
        raw.free(raw.alloc(SIZE, two), two)
        bench.device.fill(memory, 2, stream=two)
    (report,) = driver.sim.reports()
    assert (report.kind, report.first.call, report.second.call) == ("race", SET, SET)


def test_captured_work_is_no_access_before_its_launch(driver: Driver) -> None:
    assert driver.sim is not None
    raw = RawCalls(driver)
    with Bench(driver) as bench:
        writer, stream, memory = bench.stream(), bench.stream(), bench.memory()
        bench.device.fill(memory, 1, stream=writer)
        raw.begin(stream)
        bench.device.fill(memory, 2, stream=stream)
        raw.destroy(raw.end(stream))
    assert driver.sim.reports() == []


def test_blocks_allocated_in_a_capture_may_share_memory_in_it(driver: Driver) -> None:
    """One is given back inside the capture, and a smaller one takes its place."""
    assert driver.sim is not None
    raw = RawCalls(driver)
    with Bench(driver) as bench:
        stream, memory = bench.stream(), bench.memory()
        raw.begin(stream)
        for nbytes in (4096, 2048):
            driver.sim.block_alloc(memory.address, nbytes, stream)
            bench.device.fill(memory.at(0, nbytes), 1, stream=stream)
            driver.sim.block_free(memory.address, nbytes, stream)
        graph = raw.end(stream)
        raw.launch(graph, stream)
        raw.launch(graph, stream)
        raw.destroy(graph)
    assert driver.sim.reports() == []


@pytest.mark.expects_reports
def test_captured_access_beyond_its_block_is_reported_at_the_capture(driver: Driver) -> None:
    assert driver.sim is not None
    raw = RawCalls(driver)
    with Bench(driver) as bench:
        stream, memory = bench.stream(), bench.memory()
        driver.sim.block_alloc(memory.address, 4096, stream)
        raw.begin(stream)
        bench.device.fill(memory.at(0, 8192), 1, stream=stream)
        graph = raw.end(stream)
        raw.launch(graph, stream)
        raw.destroy(graph)
    (report,) = driver.sim.reports()
    assert (report.kind, report.second.call, report.count) == ("out_of_bounds", SET, 1)


@pytest.mark.expects_reports
def test_host_function_of_a_graph_is_judged_at_its_launch(driver: Driver) -> None:
    assert driver.sim is not None
    raw = RawCalls(driver)
    with Bench(driver) as bench:
        writer, stream, result = bench.stream(), bench.stream(), bench.pinned()
        # By the driver's own call: a graph runs its function again and again.
        look = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: result.read(0, 4))
        raw.begin(stream)
        raw.call("cuLaunchHostFunc", ctypes.c_void_p(stream.handle), look, None)
        graph = raw.end(stream)
        raw.launch(graph, stream)
        stream.synchronize()
        assert driver.sim.reports() == []
        bench.device.copy(result, bench.memory(), stream=writer)
        raw.launch(graph, stream)
        stream.synchronize()
        raw.destroy(graph)
        (report,) = driver.sim.reports()
        assert (report.kind, report.first.stream) == ("race", writer.id)
        assert (report.second.call, report.second.stream) == ("simHostAccess", stream.id)


def test_launches_of_one_graph_on_two_streams_are_ordered(driver: Driver) -> None:
    assert driver.sim is not None
    raw = RawCalls(driver)
    with Bench(driver) as bench:
        one, two, memory = bench.stream(), bench.stream(), bench.memory()
        raw.begin(one)
        bench.device.fill(memory, 1, stream=one)
        graph = raw.end(one)
        raw.launch(graph, one)
        raw.launch(graph, two)
        raw.destroy(graph)
    assert driver.sim.reports() == []
