"""The checker's reports as a list: what counts as the same, how they are cleared, what they cost;
and the garbage that a destination holds while a copy is on its way."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from vramkit.driver import Driver, LeftOpen, Report

from .checker_bench import SIZE, WORDS, Bench

pytestmark = pytest.mark.sim_only

POISON = b"\xdb"
SLOTS = 8
HISTORY_OPERATIONS = 20_000
# One access that the checker keeps takes some 80 bytes: a history that keeps them all exceeds this.
HISTORY_BYTES = HISTORY_OPERATIONS * 32


def reports_of(driver: Driver) -> list[Report]:
    assert driver.sim is not None
    return driver.sim.reports()


# The same and not the same


@pytest.mark.expects_reports
@pytest.mark.sim(stacks="python")
def test_same_pair_of_sites_is_one_report_that_counts(driver: Driver) -> None:
    with Bench(driver) as bench:
        one, two, memory = bench.stream(), bench.stream(), bench.memory()
        for _ in range(5):
            bench.device.fill(memory, 1, stream=one)
            bench.device.fill(memory, 2, stream=two)
            bench.device.synchronize()
    (report,) = reports_of(driver)
    assert report.count == 5
    assert (report.address, report.nbytes) != (0, 0)


@pytest.mark.expects_reports
@pytest.mark.sim(stacks="python")
def test_other_lines_are_other_reports_in_the_order_found(driver: Driver) -> None:
    with Bench(driver) as bench:
        one, two, three, memory = bench.stream(), bench.stream(), bench.stream(), bench.memory()
        bench.device.fill(memory, 1, stream=one)
        bench.device.fill(memory, 2, stream=two)
        bench.device.fill(memory, 3, stream=three)
        ids = [stream.id for stream in (one, two, three)]
    found = [
        (report.first.stream, report.second.stream, report.count) for report in reports_of(driver)
    ]
    assert found == [(ids[0], ids[1], 1), (ids[1], ids[2], 1)]


@pytest.mark.expects_reports
@pytest.mark.sim(stacks="python")
def test_one_access_that_races_with_two_is_two_reports(driver: Driver) -> None:
    with Bench(driver) as bench:
        one, two, memory, out = bench.stream(), bench.stream(), bench.memory(), bench.memory()
        bench.device.fill(memory, 1, stream=one)
        bench.device.kernels.checksum(memory, WORDS, out, stream=two)
        bench.device.kernels.checksum(memory, WORDS, out, stream=two)
    first, second = reports_of(driver)
    assert first.first == second.first
    assert first.second.frames != second.second.frames


@pytest.mark.expects_reports
def test_every_reader_of_overwritten_memory_is_named(driver: Driver) -> None:
    with Bench(driver) as bench:
        reader, launcher, writer = bench.stream(), bench.stream(), bench.stream()
        memory, out = bench.memory(), bench.memory()
        bench.device.copy(bench.pinned(), memory, stream=reader)
        bench.device.kernels.checksum(memory, WORDS, out, stream=launcher)
        bench.device.fill(memory, 1, stream=writer)
        expected = {reader.id, launcher.id}
    assert {report.first.stream for report in reports_of(driver)} == expected


@pytest.mark.expects_reports
def test_report_covers_the_bytes_in_common_and_no_others(driver: Driver) -> None:
    with Bench(driver) as bench:
        one, two, memory = bench.stream(), bench.stream(), bench.memory()
        bench.device.fill(memory.at(100, 200), 1, stream=one)
        bench.device.fill(memory.at(250, 1000), 2, stream=two)
        start = memory.address
    (report,) = reports_of(driver)
    assert (report.address, report.nbytes) == (start + 250, 50)


@pytest.mark.expects_reports
def test_pieces_of_one_access_are_one_report(driver: Driver) -> None:
    with Bench(driver) as bench:
        one, two, memory = bench.stream(), bench.stream(), bench.memory()
        for offset in range(0, 300 * 256, 256):
            bench.device.fill(memory.at(offset, 256), 1, stream=one)
        bench.device.fill(memory, 2, stream=two)
    (report,) = reports_of(driver)
    assert report.count == 300


def test_cleared_reports_are_gone_and_the_history_is_not(driver: Driver) -> None:
    assert driver.sim is not None
    with Bench(driver) as bench:
        one, two, memory = bench.stream(), bench.stream(), bench.memory()
        bench.device.fill(memory, 1, stream=one)
        bench.device.fill(memory, 2, stream=two)
        assert len(driver.sim.reports()) == 1
        driver.sim.clear_reports()
        assert driver.sim.reports() == []
        bench.device.fill(memory, 3, stream=one)
        (report,) = driver.sim.reports()
        assert (report.first.stream, report.second.stream) == (two.id, one.id)
        driver.sim.clear_reports()


def test_reset_forgets_reports_and_history(driver: Driver) -> None:
    assert driver.sim is not None
    with Bench(driver) as bench:
        bench.device.fill(bench.memory(), 1, stream=bench.stream())
        bench.device.fill(bench.memory(), 1, stream=bench.stream())
    driver.sim.reset()
    assert driver.sim.reports() == []


@pytest.mark.sim(checker=False)
def test_without_the_checker_nothing_is_reported(driver: Driver) -> None:
    with Bench(driver) as bench:
        one, two, memory, result = bench.stream(), bench.stream(), bench.memory(), bench.pinned()
        bench.device.fill(memory, 1, stream=one)
        bench.device.copy(result, memory, stream=two)
        result.read()
    assert reports_of(driver) == []


# Severity


@pytest.mark.expects_reports
def test_what_works_by_chance_is_a_warning_and_what_need_not_work_an_error(driver: Driver) -> None:
    assert driver.sim is not None
    with Bench(driver) as bench:
        one, two, memory = bench.stream(), bench.stream(), bench.memory()
        bench.sim.block_alloc(memory.address, SIZE, one)
        bench.device.fill(memory, 1, stream=two)
        bench.sim.block_free(memory.address, SIZE, two)
        bench.device.fill(memory, 1, stream=two)
        unused = bench.device.alloc(SIZE)
        bench.device.fill(unused, 1, stream=one)
        unused.close()
    severities = {report.kind: report.severity for report in driver.sim.reports()}
    assert severities == {"race": "error", "use_after_free": "error", "implicit_wait": "warning"}


@pytest.mark.expects_reports
@pytest.mark.sim(patience=0.02, stacks="python")
def test_wait_that_nothing_can_end_is_one_deadlock_and_an_error(driver: Driver) -> None:
    """However many calls of the host run into it."""
    assert driver.sim is not None
    with Bench(driver) as bench:
        stream, flag = bench.stream(), bench.memory()
        stream.wait_value(flag, 1)
        with pytest.raises(RuntimeError, match="TIMEOUT"):
            stream.synchronize()
        with pytest.raises(RuntimeError, match="TIMEOUT"):
            bench.device.synchronize()
        bench.stream().write_value(flag, 1)
    (report,) = driver.sim.reports()
    assert (report.kind, report.severity, report.count) == ("deadlock", "error", 2)
    assert "cuStreamWaitValue" in report.advice


# What is not reported, and what is said beside reports


def test_sums_into_one_word_do_not_race(driver: Driver) -> None:
    with Bench(driver) as bench:
        one, two, memory, out = bench.stream(), bench.stream(), bench.memory(), bench.memory()
        bench.device.fill(memory, 1)
        bench.device.fill(out, 0)
        bench.device.synchronize()
        for stream in (one, two, one):
            bench.device.kernels.checksum(memory, WORDS, out, stream=stream)
        bench.device.synchronize()
        total = bytearray(8)
        bench.device.copy(total, out.at(0, 8))
    assert int.from_bytes(total, "little") == 3 * WORDS * 0x01010101
    assert reports_of(driver) == []


@pytest.mark.parametrize("distance", [0, SIZE // 4 - 1])
@pytest.mark.expects_reports
def test_copy_on_the_device_onto_its_own_source_is_reported(driver: Driver, distance: int) -> None:
    with Bench(driver) as bench:
        stream, memory = bench.stream(), bench.memory()
        bench.device.copy(memory.at(distance, SIZE // 4), memory.at(0, SIZE // 4), stream=stream)
        start = memory.address
    (report,) = reports_of(driver)
    assert (report.kind, report.severity) == ("overlapping_copy", "error")
    assert (report.address, report.nbytes) == (start + distance, SIZE // 4 - distance)
    assert (report.first.access, report.second.access) == ("read", "write")


def test_copies_of_neighbours_do_not_overlap(driver: Driver) -> None:
    with Bench(driver) as bench:
        stream, memory = bench.stream(), bench.memory()
        half = SIZE // 2
        bench.device.copy(memory.at(half, half), memory.at(0, half), stream=stream)
        bench.device.copy(memory.at(0, half), memory.at(half, half), stream=stream)
    assert reports_of(driver) == []


@pytest.mark.expects_reports
def test_copy_between_two_addresses_of_the_same_bytes_overlaps(driver: Driver) -> None:
    with Bench(driver) as bench:
        nbytes = bench.device.granularity
        physical = bench.keep(bench.device.create(nbytes))
        one, two = (bench.keep(bench.device.reserve(nbytes)) for _ in range(2))
        for each in (one, two):
            each.map(physical)
            each.set_access()
        bench.device.copy(one.at(0, 4096), two.at(2048, 4096), stream=bench.stream())
        start = one.address
    (report,) = reports_of(driver)
    assert (report.kind, report.address, report.nbytes) == ("overlapping_copy", start + 2048, 2048)


@pytest.mark.expects_reports
@pytest.mark.sim(data=False)
def test_reports_beyond_the_limit_are_counted(driver: Driver) -> None:
    assert driver.sim is not None
    with Bench(driver) as bench:
        memory = bench.memory()
        for _ in range(1008):
            bench.device.fill(memory, 1, stream=bench.stream())
    assert len(driver.sim.reports()) == 1000
    assert driver.sim.reports_left_out() == 7
    driver.sim.clear_reports()
    assert driver.sim.reports_left_out() == 0


@pytest.mark.sim(stacks="python")
def test_driver_calls_that_are_not_simulated_are_named(driver: Driver) -> None:
    assert driver.sim is not None
    assert driver.sim.unsupported() == []
    library = ctypes.CDLL(driver.path)
    found = ctypes.c_void_p(1)
    ask = (ctypes.byref(found), ctypes.c_int(12000), ctypes.c_uint64(0))
    for name in (b"cuIpcGetMemHandle", b"cuMemAlloc"):
        library.cuGetProcAddress_v2(name, *ask, None)
    with Bench(driver) as bench:
        stream, flag = bench.stream(), bench.memory()
        flush_remote_writes = 1 << 30
        for _ in range(2):
            library.cuStreamWaitValue32_v2(
                ctypes.c_void_p(stream.handle),
                ctypes.c_uint64(flag.address),
                ctypes.c_uint32(1),
                ctypes.c_uint(flush_remote_writes),
            )
    missing, refused = driver.sim.unsupported()
    assert (missing.call, missing.reason, missing.count) == ("cuIpcGetMemHandle", "missing", 1)
    assert (refused.call, refused.reason) == ("cuStreamWaitValue32_v2", "not_supported")
    assert refused.count == 2
    assert any("test_driver_calls_that_are" in frame for frame in refused.frames)


LEAVES_MEMORY_OPEN = """
import vramkit
device = vramkit.driver.open().device()
stream, memory = device.stream(), device.alloc(4096)
pinned = device.alloc_pinned(1 << 16)
device.copy(pinned, memory, 4096, stream=stream)
"""


def test_memory_left_open_at_exit_is_noted_and_not_reported(tmp_path: Path) -> None:
    """The interpreter frees it under the copy, which no program has to prevent."""
    script = tmp_path / "program.py"
    script.write_text(LEAVES_MEMORY_OPEN)
    settings = f"stacks=python,reports={tmp_path / 'reports'}"
    environment = {**os.environ, "VRAMKIT_DRIVER": "sim", "VRAMKIT_SIM": settings}
    subprocess.run([sys.executable, str(script)], env=environment, check=True)
    (path,) = tmp_path.glob("reports.*")
    document = msgspec.json.decode(path.read_bytes())
    assert (document["reports"], document["left_out"]) == ([], 0)
    left = msgspec.convert(document["left_open"], list[LeftOpen])
    open_ = {(each.call, each.nbytes, each.count) for each in left}
    assert open_ == {("cuMemAlloc_v2", 4096, 1), ("cuMemHostAlloc", 1 << 16, 1)}
    for each in left:
        assert any(frame.startswith(f"{script}:") for frame in each.frames), each.frames


def test_without_the_checker_what_is_left_open_has_no_site(tmp_path: Path) -> None:
    settings = f"checker=off,reports={tmp_path / 'reports'}"
    environment = {**os.environ, "VRAMKIT_DRIVER": "sim", "VRAMKIT_SIM": settings}
    subprocess.run([sys.executable, "-c", LEAVES_MEMORY_OPEN], env=environment, check=True)
    (path,) = tmp_path.glob("reports.*")
    left = msgspec.json.decode(path.read_bytes())["left_open"]
    assert {each["location"] for each in left} == {""}


def test_reports_that_cannot_be_written_are_refused_at_once(driver: Driver, tmp_path: Path) -> None:
    assert driver.sim is not None
    nowhere = tmp_path / "missing" / "reports"
    with pytest.raises(ValueError, match=f"reports={nowhere}: cannot write there .*No such file"):
        driver.sim.reset(reports=nowhere)
    driver.sim.reset(reports=tmp_path / "reports")
    assert all(msgspec.json.decode(path.read_bytes()) for path in tmp_path.iterdir())


# Garbage in flight


def bytes_behind(driver: Driver, address: int, count: int) -> bytes:
    assert driver.sim is not None
    return ctypes.string_at(driver.sim.host_alias(address), count)


def test_destination_of_a_copy_in_flight_is_garbage_until_it_lands(driver: Driver) -> None:
    with Bench(driver) as bench:
        stream, memory, source = bench.stream(), bench.memory(), bench.pinned()
        bench.device.fill(memory, 7)
        source.write(b"\x05" * SIZE)
        bench.device.synchronize()
        assert bytes_behind(driver, memory.address, SIZE) == b"\x07" * SIZE
        bench.device.copy(memory, source, stream=stream)
        assert bytes_behind(driver, memory.address, SIZE) == POISON * SIZE
        stream.synchronize()
        assert bytes_behind(driver, memory.address, SIZE) == b"\x05" * SIZE


@pytest.mark.expects_reports
def test_pinned_destination_read_too_early_is_garbage(driver: Driver) -> None:
    with Bench(driver) as bench:
        stream, memory, result = bench.stream(), bench.memory(), bench.pinned()
        result.write(bytes(SIZE))
        bench.device.copy(result.at(64, 128), memory.at(0, 128), stream=stream)
        assert result.read(0, 256) == bytes(64) + POISON * 128 + bytes(64)
        stream.synchronize()
        assert result.read(0, 256) == bytes(256)


def test_destination_still_in_use_turns_to_garbage_only_when_the_copy_starts(
    driver: Driver,
) -> None:
    """Work that is ordered before the copy must still see what was there."""
    with Bench(driver) as bench:
        stream, memory, source, before = (
            bench.stream(),
            bench.memory(),
            bench.pinned(),
            bench.memory(),
        )
        bench.device.fill(memory, 7, stream=stream)
        bench.device.copy(before, memory, stream=stream)
        bench.device.copy(memory, source, stream=stream)
        stream.synchronize()
        assert bytes_behind(driver, before.address, SIZE) == b"\x07" * SIZE


# What it costs


class HeapUse(ctypes.Structure):
    """struct mallinfo2 of glibc."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def heap_bytes() -> int:
    """What this process holds from malloc: the simulator's state, and hardly any of Python's."""
    try:
        ask = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        pytest.skip("this C library has no mallinfo2")
    ask.restype = HeapUse
    use = ask()
    return int(use.uordblks + use.hblkhd)


def run_ring(bench: Bench, operations: int) -> None:
    """A ring of slots, filled on one stream and used on another, ordered by events alone."""
    copying, computing = bench.stream(), bench.stream()
    memory, source, out = bench.memory(), bench.pinned(), bench.memory()
    nbytes = SIZE // SLOTS
    slots = [memory.at(slot * nbytes, nbytes) for slot in range(SLOTS)]
    landed = [bench.event() for _ in slots]
    used = [bench.event() for _ in slots]
    for number in range(operations // 2):
        slot = number % SLOTS
        copying.wait(used[slot])
        bench.device.copy(slots[slot], source, nbytes, stream=copying)
        landed[slot].record(copying)
        computing.wait(landed[slot])
        bench.device.kernels.checksum(slots[slot], nbytes // 4, out, stream=computing)
        used[slot].record(computing)


@pytest.mark.sim(data=False)
def test_history_of_a_ring_ordered_by_events_alone_stays_bounded(driver: Driver) -> None:
    with Bench(driver) as bench:
        run_ring(bench, HISTORY_OPERATIONS // 4)
        bench.device.synchronize()  # the queues are bounded too, but not what is measured here
        before = heap_bytes()
        run_ring(bench, HISTORY_OPERATIONS)
        assert heap_bytes() - before < HISTORY_BYTES


@pytest.mark.sim(data=False, capacity="64GiB")
def test_history_of_ever_new_memory_is_dropped_once_the_host_has_waited(driver: Driver) -> None:
    with Bench(driver) as bench:
        stream, memory = bench.stream(), bench.keep(bench.device.alloc(32 << 30))

        def fill_new_places(first: int, count: int) -> None:
            for number in range(first, first + count):
                bench.device.fill(memory.at(number * 512, 256), 1, stream=stream)
                if number % 256 == 0:
                    stream.synchronize()

        fill_new_places(0, HISTORY_OPERATIONS // 4)
        before = heap_bytes()
        fill_new_places(HISTORY_OPERATIONS, HISTORY_OPERATIONS)
        assert heap_bytes() - before < HISTORY_BYTES
