"""The players, native and in Python: order, times, held memory, and what a failure leaves."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.support import MIB, Noted, Plain, handed_over, interrupt_when, pairs
from vramkit import Pool
from vramkit.driver import ClosedError, Device, Driver, DriverError, OutOfMemoryError
from vramkit.driver.opening import sim_folder
from vramkit.lab.played import Played
from vramkit.lab.player import play
from vramkit.lab.program import Program, ProgramBuilder
from vramkit.resources import AsyncResource, DirectResource

each_player = pytest.mark.parametrize("native", [True, False], ids=["native", "python"])


@pytest.fixture
def device(driver: Driver) -> Device:
    return driver.device()


@pytest.fixture
def free_contexts(driver: Driver, tmp_path: Path) -> None:
    """The Python player asks before each call which context is current, and the native one once:
    here that costs nothing, so that their times can be compared."""
    text = (sim_folder() / "profiles" / "h200.toml").read_text("utf-8")
    lines = [
        f"{line.partition('=')[0]}= 0" if line.startswith("cuCtxGetCurrent") else line
        for line in text.splitlines()
    ]
    (tmp_path / "free.toml").write_text("\n".join(lines), "utf-8")
    assert driver.sim is not None
    driver.sim.reset(tmp_path / "free.toml")


def mixed(*, in_turns: bool = False, threads: int = 1) -> Program:
    """Every kind of step, in two sections."""
    builder = ProgramBuilder("mixed", ("first", "second"), in_turns=in_turns)
    for section in ("first", "second"):
        builder.section(section, threads=threads)
        for number in range(30):
            thread = number % threads
            block = builder.allocate((number % 7 + 1) * 100_000, thread, thread=thread)
            builder.touch(block, thread, thread=thread)
            builder.lock(thread=thread)
            builder.kernel(5000 + number, thread, thread=thread)
            builder.unlock(thread=thread)
            builder.record(thread, thread, thread=thread)
            builder.wait(thread, threads + thread, thread=thread)
            if number % 3 == 0:
                builder.wait_for_event(thread, thread=thread)
            builder.free(block, threads + thread, thread=thread)
            if number % 5 == 0:
                builder.wait_for_stream(thread, thread=thread)
        builder.wait_for_device()
    return builder.build()


# Times


@each_player
@pytest.mark.sim_only
def test_times_are_split_by_what_the_host_did(device: Device, native: bool) -> None:
    with Pool(device=device, background=False) as pool:
        played = play(mixed(), Plain(pool, native=native), device)
    assert played.native is native
    assert [section.name for section in played.sections] == ["first", "second"]
    for part in played.sections:
        assert (part.allocations, part.frees, part.launches) == (30, 30, 60)
        assert min(part.launch_ns, part.wait_ns) > 0
        timed = part.allocate_ns + part.free_ns + part.launch_ns + part.wait_ns
        assert part.wall_ns == pytest.approx(timed + part.host_ns)
    # The pool grows in the first one.
    assert played.section("first").allocate_ns > played.section("second").allocate_ns
    assert played.total.wall_ns == sum(part.wall_ns for part in played.sections)
    with pytest.raises(KeyError):
        played.section("third")


@pytest.mark.sim_only
@pytest.mark.parametrize("raw_streams", [False, True], ids=["own", "raw"])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    "make",
    [
        lambda device: Pool(device=device, background=False),
        lambda device: AsyncResource(device=device),
        lambda device: DirectResource(device=device),
    ],
    ids=["pool", "async", "direct"],
)
def test_both_players_make_the_same_calls_in_the_same_time(
    free_contexts: None,
    device: Device,
    make: Callable[[Device], Pool],
    threads: int,
    raw_streams: bool,
) -> None:
    """Threads in turns: their order is given, and so are the times."""
    sim = device.driver.sim
    assert sim is not None
    program = mixed(in_turns=True, threads=threads)

    def measured(native: bool) -> tuple[Played, dict[str, int]]:
        device.kernels.function("vk_spin")  # loaded before calls are counted
        device.synchronize()
        with make(device) as resource:
            sim.reset_call_counts()
            allocator = Plain(resource, native=native)
            played = play(program, allocator, device, measure="memory", raw_streams=raw_streams)
            assert played.native is native
            counts = sim.call_counts()
        if raw_streams and not native:  # the Python player makes a Stream of each handle
            counts["cuStreamGetId"] -= program.stream_count
        for name in ("cuCtxGetCurrent", "cuCtxSetCurrent", "cuCtxGetStreamPriorityRange"):
            counts.pop(name, None)
        return played, counts

    native, native_calls = measured(True)
    python, python_calls = measured(False)
    assert native_calls == python_calls
    for ours, theirs in zip(native.sections, python.sections, strict=True):
        assert ours.wall_ns > 0
        for field in type(ours).__struct_fields__[1:]:
            assert getattr(ours, field) == pytest.approx(getattr(theirs, field), abs=0.01), field
    for field in ("peak_in_use", "peak_held", "end_held"):
        assert getattr(native, field) == getattr(python, field)
    assert native.average_held == pytest.approx(python.average_held)


@each_player
@pytest.mark.sim_only
def test_a_thread_that_waits_for_another_takes_over_its_time(device: Device, native: bool) -> None:
    """One thread waits a millisecond for the card, and then another one does: it takes two."""
    builder = ProgramBuilder("one after the other", in_turns=True)
    for thread in range(2):
        builder.kernel(1_000_000, thread, thread=thread)
        builder.wait_for_stream(thread, thread=thread)
    with Pool(device=device, background=False) as pool:
        played = play(builder.build(), Plain(pool, native=native), device)
    assert played.total.wall_ns > 2_000_000
    assert played.total.wait_ns > 1_990_000
    assert played.total.host_ns == pytest.approx(played.total.wall_ns, rel=0.01)


# Memory


@each_player
@pytest.mark.sim_only
def test_held_memory_is_peak_average_and_end(
    free_contexts: None, device: Device, native: bool
) -> None:
    """Blocks of the plain driver are held for as long as they are in use."""
    builder = ProgramBuilder("steps")
    first = builder.allocate(3 * MIB)
    second = builder.allocate(MIB)
    builder.kernel(1_000_000)
    builder.free(second)  # waits for the kernel
    builder.free(first)
    with DirectResource(device=device) as resource:
        played = play(builder.build(), Plain(resource, native=native), device, measure="memory")
    assert (played.peak_in_use, played.peak_held, played.end_held) == (4 * MIB, 4 * MIB, 0)
    assert played.average_held is not None
    assert 0.5 < played.average_held / (4 * MIB) < 1


@each_player
@pytest.mark.sim_only
def test_time_is_measured_without_a_look_at_the_memory(device: Device, native: bool) -> None:
    sim = device.driver.sim
    assert sim is not None
    looks = {}
    for measure in ("time", "memory"):
        with AsyncResource(device=device) as resource:
            sim.reset_call_counts()
            played = play(pairs(10), Plain(resource, native=native), device, measure=measure)
            looks[measure] = sim.call_counts().get("cuMemPoolGetAttribute", 0)
    assert looks == {"time": 0, "memory": 22}  # at the start, after each of 20, and at the end
    assert played.peak_in_use == MIB


@pytest.mark.sim_only
@pytest.mark.parametrize(("every", "looks"), [(1, 22), (3, 8), (64, 2)])
def test_a_library_that_tells_slowly_is_asked_less_often(
    device: Device, every: int, looks: int
) -> None:
    """At the start, after each `every`-th of 20 calls, and at the end."""
    sim = device.driver.sim
    assert sim is not None
    with AsyncResource(device=device) as resource:
        sim.reset_call_counts()
        allocator = Plain(resource, native=False)
        played = play(pairs(10), allocator, device, measure="memory", read_every=every)
        assert sim.call_counts().get("cuMemPoolGetAttribute", 0) == looks
    assert played.peak_in_use == MIB


# Order


@each_player
@pytest.mark.parametrize("in_turns", [True, False], ids=["turns", "free"])
@pytest.mark.parametrize("raw_streams", [False, True], ids=["own", "raw"])
def test_threads_hand_blocks_over(
    device: Device, in_turns: bool, raw_streams: bool, native: bool
) -> None:
    """The checker has nothing to report: each write comes before the next owner's."""
    with Pool(device=device, background=False) as pool:
        program = handed_over(60, in_turns=in_turns, threads=3)
        played = play(program, Plain(pool, native=native), device, raw_streams=raw_streams)
        assert pool.stats().current_usage == 0
    assert played.total.allocations == played.total.frees == played.total.launches == 60


@each_player
@pytest.mark.sim_only
@pytest.mark.expects_reports
def test_a_write_that_is_not_ordered_is_reported(device: Device, native: bool) -> None:
    builder = ProgramBuilder("a race")
    block = builder.allocate(MIB, 0)
    builder.touch(block, 0)
    builder.touch(block, 1)
    builder.wait_for_device()
    builder.free(block, 0)
    with Pool(device=device, background=False) as pool:
        play(builder.build(), Plain(pool, native=native), device)
    sim = device.driver.sim
    assert sim is not None
    assert len(sim.reports()) == 1


def test_threads_in_turns_keep_the_order_of_the_steps(device: Device) -> None:
    builder = ProgramBuilder("turns", in_turns=True)
    blocks = [builder.allocate(size, thread=size % 3) for size in range(1, 40)]
    for block in blocks:
        builder.free(block, thread=block % 4)
    noted = Noted(device)
    play(builder.build(), noted, device)
    sizes = list(range(1, 40))
    assert noted.calls == [("allocate", n) for n in sizes] + [("free", n) for n in sizes]


def kernels(device: Device, program: Program, native: bool) -> list[int]:
    """The lengths of the kernels that ran, in whole 10 us, in the order of their start."""
    with device.timeline() as timeline, Pool(device=device, background=False) as pool:
        play(program, Plain(pool, native=native), device)
    spans = sorted(timeline.spans, key=lambda span: span.start)
    return [round((span.end - span.start) * 1e5) for span in spans if span.name == "vk_spin"]


@each_player
@pytest.mark.sim_only
def test_kernels_of_threads_in_turns_run_in_the_order_of_the_steps(
    device: Device, native: bool
) -> None:
    builder = ProgramBuilder("turns", in_turns=True)
    lengths = [10_000 * (number % 17 + 1) for number in range(40)]
    for number, length in enumerate(lengths):
        builder.kernel(length, thread=number * number % 5)
    builder.wait_for_device()
    assert kernels(device, builder.build(), native) == [length // 10_000 for length in lengths]


@each_player
@pytest.mark.sim_only
def test_what_is_done_under_the_mutex_stays_together(device: Device, native: bool) -> None:
    builder = ProgramBuilder("mutex")
    for number in range(25 * 4):
        builder.lock(thread=number % 4)
        for length in (10_000, 20_000, 30_000):
            builder.kernel(length, thread=number % 4)
        builder.unlock(thread=number % 4)
    assert kernels(device, builder.build(), native) == 100 * [1, 2, 3]


@each_player
@pytest.mark.sim_only
def test_a_section_begins_when_all_threads_are_there(device: Device, native: bool) -> None:
    """One thread waits a millisecond in the first section, and again when it comes back to it."""
    builder = ProgramBuilder("sections", ("wait", "work", "never"))
    builder.kernel(1_000_000)
    builder.wait_for_stream()
    builder.section("work", threads=3)
    for thread in range(3):
        builder.free(builder.allocate(MIB, thread, thread=thread), thread=thread)
    builder.section("wait", threads=3)
    builder.kernel(1_000_000)
    builder.wait_for_stream()
    with Pool(device=device, background=False) as pool:
        played = play(builder.build(), Plain(pool, native=native), device)
    wait, work, never = played.sections
    assert wait.wall_ns > 2_000_000
    assert (wait.allocations, work.allocations, work.frees) == (0, 3, 3)
    assert work.wait_ns == 0
    assert (never.wall_ns, never.allocations) == (0, 0)


# Failures


def allocations(sizes: list[int]) -> Program:
    builder = ProgramBuilder("sizes")
    for size in sizes:
        builder.touch(builder.allocate(size))
    builder.free_all()
    return builder.build()


@each_player
def test_a_lack_of_memory_frees_everything_and_says_the_step(device: Device, native: bool) -> None:
    with Pool(device=device, limit=8 * MIB, background=False) as pool:
        with pytest.raises(OutOfMemoryError) as raised:
            play(allocations([2 * MIB, 3 * MIB, 64 * MIB]), Plain(pool, native=native), device)
        assert pool.stats().current_usage == 0
    assert "step 4 of 'sizes', thread 0: ALLOCATE 2 (67108864 bytes), stream 0" in str(raised.value)


@each_player
@pytest.mark.parametrize("in_turns", [True, False], ids=["turns", "free"])
def test_one_thread_that_fails_ends_all_of_them(
    device: Device, native: bool, in_turns: bool
) -> None:
    builder = ProgramBuilder("threads", in_turns=in_turns)
    large = builder.allocate(64 * MIB, thread=1)
    for number in range(50):
        builder.free(builder.allocate(MIB, number % 3, thread=number % 3), thread=number % 3)
    builder.touch(large, 2, thread=2)
    builder.free(large, thread=0)
    before = threading.active_count()
    with Pool(device=device, limit=8 * MIB, background=False) as pool:
        with pytest.raises(OutOfMemoryError, match="step 0 of 'threads', thread 1"):
            play(builder.build(), Plain(pool, native=native), device)
        assert pool.stats().current_usage == 0
    assert threading.active_count() == before


@each_player
@pytest.mark.sim_only
@pytest.mark.parametrize("call", ["cuMemsetD8Async", "cuLaunchKernel", "cuEventRecord"])
def test_a_driver_call_that_fails_ends_the_play(device: Device, native: bool, call: str) -> None:
    sim = device.driver.sim
    assert sim is not None
    with Pool(device=device, background=False) as pool:
        device.kernels.spin(1, stream=device.legacy_stream)
        sim.inject(call, nth=3, code=1)
        with pytest.raises(DriverError, match=f"{call} failed") as raised:
            play(mixed(threads=2), Plain(pool, native=native), device)
        assert pool.stats().current_usage == 0
    (note,) = raised.value.__notes__
    assert note.startswith("in step ")


@each_player
@pytest.mark.sim_only
@pytest.mark.sim(clock="wall")
def test_ctrl_c_ends_it(device: Device, native: bool) -> None:
    builder = ProgramBuilder("long")
    for thread in range(2):
        block = builder.allocate(MIB, thread, thread=thread)
        for _ in range(1000):  # 10 s for each
            builder.kernel(10_000_000, thread, thread=thread)
            builder.wait_for_stream(thread, thread=thread)
        builder.free(block, thread=thread)
    sim = device.driver.sim
    assert sim is not None
    with Pool(device=device, background=False) as pool:
        device.kernels.spin(1, stream=device.legacy_stream)
        sim.reset_call_counts()
        with (
            interrupt_when(lambda: sim.call_counts().get("cuStreamSynchronize", 0) > 4),
            pytest.raises(KeyboardInterrupt),
        ):
            play(builder.build(), Plain(pool, native=native), device)
        assert sim.call_counts()["cuLaunchKernel"] < 1000
        assert pool.stats().current_usage == 0


@each_player
def test_a_closed_resource_is_refused(device: Device, native: bool) -> None:
    pool = Pool(device=device, background=False)
    pool.close()
    with pytest.raises(ClosedError, match="closed"):
        play(pairs(1), Plain(pool, native=native), device)


@pytest.mark.sim(devices=2)
@pytest.mark.sim_only
def test_the_resource_of_another_device_is_refused(driver: Driver) -> None:
    with (
        Pool(device=driver.device(1), background=False) as pool,
        pytest.raises(ValueError, match="another device"),
    ):
        play(pairs(1), Plain(pool), driver.device(0))


def test_a_forked_child_is_refused() -> None:
    program = """
import os, sys, vramkit
sys.path.insert(0, "tests")
from lab.support import Plain, pairs
from vramkit.lab.player import play
device = vramkit.driver.open("sim").device()
pool = vramkit.Pool(device=device, background=False)
play(pairs(1), Plain(pool), device)
child = os.fork()
if child == 0:
    for native in (True, False):
        try:
            play(pairs(1), Plain(pool, native=native), device)
        except vramkit.driver.ClosedError:
            continue
        os._exit(1)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", program], cwd=root, check=True, timeout=60)


def test_the_example_of_the_docs_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VRAMKIT_DRIVER", "sim")
    page = (Path(__file__).parents[2] / "docs" / "lab-player.md").read_text("utf-8")
    _, _, rest = page.partition("```python\n")
    exec(rest.partition("```")[0], {})
    assert "allocations=1000, frees=1000, launches=1000" in capsys.readouterr().out
