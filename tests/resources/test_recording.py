"""Traces of calls: what is in them, and what is read of damaged ones."""

from __future__ import annotations

import resource as limits
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread, get_native_id

import pytest

from vramkit.driver import Device, OutOfMemoryError
from vramkit.lab.baselines import FixedPool
from vramkit.resources import Recording, read_trace
from vramkit.resources.adaptors import Operation
from vramkit.resources.adaptors.trace import HEADER, RECORD, WRITTEN_AT

MIB = 1 << 20


def test_a_trace_has_every_call(below: FixedPool, device: Device, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    with Recording(below, path) as recording, device.stream() as stream:
        first = recording.malloc(1000, stream)
        second = recording.malloc(500)
        recording.free(first)
        with pytest.raises(OutOfMemoryError):
            recording.malloc(9 * MIB, stream)
        thread = Thread(target=recording.free, args=(second, 500, stream))
        stream.wait(device.legacy_stream)
        thread.start()
        thread.join()
        number = stream.id
    events = list(read_trace(path))
    assert [event[:1] + event[2:6] for event in events] == [
        (Operation.MALLOC, number, 1000, first, 1),
        (Operation.MALLOC, None, 500, second, 2),
        (Operation.FREE, None, 1000, first, 1),
        (Operation.FAILED_MALLOC, number, 9 * MIB, 0, 0),
        (Operation.FREE, number, 500, second, 2),
    ]
    assert {event.thread for event in events[:4]} == {get_native_id()}
    assert events[4].thread != get_native_id()
    times = [event.time_ns for event in events]
    assert times == sorted(times)
    assert path.stat().st_size == HEADER.size + 5 * RECORD.size == 24 + 5 * 48


def test_a_cut_off_trace_is_read_as_far_as_it_goes(below: FixedPool, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    with Recording(below, path) as recording:
        for _ in range(3):
            recording.free(recording.malloc(100))
    whole = list(read_trace(path))
    data = path.read_bytes()
    for kept in (len(data) - 1, len(data) - RECORD.size, HEADER.size + 7, HEADER.size):
        path.write_bytes(data[:kept])
        assert list(read_trace(path)) == whole[: (kept - HEADER.size) // RECORD.size]


def test_what_is_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    for data in (b"", b"vkTRACE\n", b"something else that is long enough"):
        path.write_bytes(data)
        with pytest.raises(ValueError, match="is not a trace of vramkit"):
            read_trace(path)
    path.write_bytes(HEADER.pack(b"vkTRACE\n", 99, RECORD.size, 0))
    with pytest.raises(ValueError, match="version 99"):
        read_trace(path)


def test_flush_and_drop_write_what_is_pending(below: FixedPool, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    recording = Recording(below, path)
    recording.free(recording.malloc(100))
    assert path.stat().st_size == 0
    recording.flush()
    assert len(list(read_trace(path))) == 2
    recording.free(recording.malloc(100))
    del recording
    assert len(list(read_trace(path))) == 4


def test_threads_record_whole_records(below: FixedPool, tmp_path: Path) -> None:
    path = tmp_path / "trace"

    def work() -> None:
        for size in range(1, 400):
            recording.free(recording.malloc(size))

    with Recording(below, path) as recording:
        threads = [Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    sizes: dict[int, int] = {}
    for event in read_trace(path):
        if event.operation == Operation.MALLOC:
            sizes[event.block] = event.size
        else:
            assert sizes.pop(event.block) == event.size
    assert sizes == {}


# A full disk


@contextmanager
def files_up_to(nbytes: int) -> Iterator[None]:
    """Writes stop in the middle there, and the next one fails."""
    before = limits.getrlimit(limits.RLIMIT_FSIZE)
    limits.setrlimit(limits.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        limits.setrlimit(limits.RLIMIT_FSIZE, before)


def blocks_of(path: Path) -> list[tuple[Operation, int]]:
    return [(event.operation, event.block) for event in read_trace(path)]


def test_what_a_full_disk_refused_is_written_later(below: FixedPool, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    with Recording(below, path) as recording:
        for _ in range(5):
            recording.free(recording.malloc(100))
        whole = HEADER.size + 3 * RECORD.size
        with files_up_to(whole + 10):
            for _ in range(2):
                with pytest.raises(OSError, match="File too large"):
                    recording.flush()
                assert path.stat().st_size == whole + 10
                assert len(blocks_of(path)) == 3
        recording.free(recording.malloc(100))
        recording.flush()
        each = [(Operation.MALLOC, number) for number in range(1, 7)]
        assert blocks_of(path)[::2] == each
        assert blocks_of(path)[1::2] == [(Operation.FREE, number) for _, number in each]


def test_calls_on_a_full_disk_fail_once_a_piece(below: FixedPool, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    failures = 0
    with Recording(below, path) as recording:
        with files_up_to(1000):
            for _ in range(WRITTEN_AT // RECORD.size + 10):  # two records each: two pieces
                try:
                    address = recording.malloc(100)
                    recording.free(address)
                except OSError:
                    failures += 1
                assert below.live_blocks == 0
        assert failures == 2
    live: set[int] = set()
    for event in read_trace(path):  # whatever failed was undone, and is in the trace with that
        live ^= {event.block}
    assert live == set()


def test_a_recording_that_cannot_write_closes(below: FixedPool, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    recording = Recording(below, path)
    for _ in range(5):
        recording.free(recording.malloc(100))
    with files_up_to(HEADER.size + RECORD.size + 1):
        with pytest.raises(OSError, match="File too large"):
            recording.close()
        recording.close()
    assert recording.closed
    assert blocks_of(path) == [(Operation.MALLOC, 1)]


def test_an_exception_leaves_the_trace_behind(below: FixedPool, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    with pytest.raises(KeyError), Recording(below, path) as recording:
        address = recording.malloc(100)
        raise KeyError
    assert blocks_of(path) == [(Operation.MALLOC, 1)]
    recording.free(address)
    recording.close()
    assert blocks_of(path) == [(Operation.MALLOC, 1), (Operation.FREE, 1)]
