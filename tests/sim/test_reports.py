"""The checker's reports as a list: what counts as the same, how they are cleared, what they cost;
and the garbage that a destination holds while a copy is on its way."""

from __future__ import annotations

import ctypes

import pytest

from vramkit.driver import Driver, Report

from .checker_bench import SIZE, WORDS, Bench

pytestmark = pytest.mark.sim_only

POISON = b"\xdb"
SLOTS = 8
HISTORY_OPERATIONS = 20_000
# One mark of the checker takes some 80 bytes: a history that keeps them all exceeds this.
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
def test_wait_that_nothing_can_end_is_a_deadlock_and_an_error(driver: Driver) -> None:
    """Takes the five seconds that the simulator leaves other threads to end the wait."""
    assert driver.sim is not None
    with Bench(driver) as bench:
        stream, flag = bench.stream(), bench.memory()
        stream.wait_value(flag, 1)
        with pytest.raises(RuntimeError, match="TIMEOUT"):
            stream.synchronize()
        bench.stream().write_value(flag, 1)
    (report,) = driver.sim.reports()
    assert (report.kind, report.severity) == ("deadlock", "error")
    assert "cuStreamWaitValue" in report.advice


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
