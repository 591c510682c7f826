"""From records to blocks and lines, without a program."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from vramkit.record.lines import Converter
from vramkit.record.raw import HEADER, MAGIC, RECORD, Kind, RawRecord, RawTrace, read_raw

MIB = 1 << 20


def record(kind: Kind, subject: int = 0, **fields: object) -> RawRecord:
    plain = RawRecord(0, 0, subject, 0, 0, 1, 1, 0, "call", False, kind)
    return plain._replace(**fields)


def converted(*records: RawRecord) -> Converter:
    trace = RawTrace(7, 1, 0, "driver", ["program", "a\nb"], False, list(records))
    return Converter(trace)


def lines(*records: RawRecord) -> list[str]:
    return list(converted(*records).lines())[1:]


def test_the_first_line_of_a_process_is_one_line() -> None:
    assert list(converted().lines()) == ["@7,0,program a b"]


def test_a_handle_lives_until_it_is_neither_held_nor_mapped() -> None:
    create = record(Kind.HANDLE, 5, bytes=4 * MIB, context=1, call="cuMemCreate")
    map_twice = [record(Kind.MAPPING, at, bytes=4 * MIB, context=5) for at in (1 << 30, 2 << 30)]
    release = record(Kind.HANDLE_RELEASED, 5)
    unmap = [record(Kind.UNMAPPING, at, bytes=4 * MIB) for at in (1 << 30, 2 << 30)]
    assert lines(create, *map_twice, release, *unmap) == [
        "+0,4194304,0,0,0,1,cuMemCreate",
        "map,0,4194304,0,0",
        "map,0,4194304,0,0",
        "unmap,0,4194304,0,0",
        "unmap,0,4194304,0,0",
        "-0,0,0,0,call",
    ]
    # Released last, it ends with the release; a reference that was taken counts.
    retain = record(Kind.HANDLE_RETAINED, 5)
    ends = lines(create, retain, map_twice[0], unmap[0], release, release)
    assert [line[:2] for line in ends].index("-0") == len(ends) - 1
    assert ends.count("-0,0,0,0,call") == 1


def test_one_call_unmaps_a_whole_range() -> None:
    handles = [record(Kind.HANDLE, 5 + n, bytes=MIB) for n in range(3)]
    maps = [record(Kind.MAPPING, n * MIB, bytes=MIB, context=5 + n) for n in range(3)]
    releases = [record(Kind.HANDLE_RELEASED, 5 + n) for n in range(3)]
    unmap = record(Kind.UNMAPPING, MIB, bytes=2 * MIB)
    converter = converted(*handles, *maps, *releases, unmap)
    assert [line for line in converter.lines() if line.startswith("-")] == [
        "-1,0,0,0,call",
        "-2,0,0,0,call",
    ]
    summary = converter.summary()
    assert (summary.peak_bytes, summary.bytes_at_end) == (3 * MIB, MIB)


def test_imported_handles_are_not_ours() -> None:
    assert (
        lines(
            record(Kind.HANDLE_RETAINED, 9),
            record(Kind.MAPPING, MIB, bytes=MIB, context=9),
            record(Kind.UNMAPPING, MIB, bytes=MIB),
            record(Kind.HANDLE_RELEASED, 9),
        )
        == []
    )


def test_a_primary_context_ends_with_its_last_reference() -> None:
    retain = record(Kind.CONTEXT, 3, context=0xC, call="cuDevicePrimaryCtxRetain")
    block = record(Kind.ALLOCATION, 4096, bytes=100, context=0xC)
    release = record(Kind.CONTEXT_RELEASED, 3)
    found = lines(retain, retain, block, release)
    assert found[-1] == "+0,100,0,0,0,3,call"  # on the device of its context
    assert lines(retain, retain, block, release, release)[-1] == "-0,0,0,0,call"
    assert lines(retain, retain, block, record(Kind.CONTEXT_RESET, 3))[-1] == "-0,0,0,0,call"


def test_a_destroyed_context_takes_only_its_own_blocks() -> None:
    blocks = [record(Kind.ALLOCATION, n * 4096, bytes=100, context=n) for n in (1, 2)]
    destroy = record(Kind.CONTEXT_DESTROYED, 0, context=2)
    assert lines(*blocks, destroy)[2:] == ["-1,0,0,0,call"]


def test_memory_that_is_handed_out_again_was_freed_unseen() -> None:
    block = record(Kind.ALLOCATION, 4096, bytes=100)
    assert lines(block, block) == ["+0,100,0,0,0,0,call", "-0,0,0,0,unseen", "+1,100,0,0,0,0,call"]


def test_handles_and_mappings_that_come_again_had_ended_unseen() -> None:
    create = record(Kind.HANDLE, 5, bytes=MIB, call="cuMemCreate")
    mapping = record(Kind.MAPPING, 1 << 30, bytes=MIB, context=5)
    unmap = record(Kind.UNMAPPING, 1 << 30, bytes=MIB)
    release = record(Kind.HANDLE_RELEASED, 5)
    converter = converted(create, mapping, create, mapping, unmap, release)
    assert list(converter.lines())[1:] == [
        "+0,1048576,0,0,0,0,cuMemCreate",
        "map,0,1048576,0,0",
        "+1,1048576,0,0,0,0,cuMemCreate",  # the first one is still mapped
        "unmap,0,1048576,0,0",
        "-0,0,0,0,unseen",
        "map,1,1048576,0,0",
        "unmap,1,1048576,0,0",
        "-1,0,0,0,call",
    ]
    assert lines(create, create)[1] == "-0,0,0,0,unseen"
    assert converter.summary().bytes_at_end == 0


def test_frees_of_unknown_memory_are_counted() -> None:
    converter = converted(record(Kind.FREE, 4096))
    assert list(converter.lines())[1:] == []
    assert converter.summary().unknown_frees == 1


def test_work_and_order() -> None:
    assert lines(
        record(Kind.LAUNCH, stream=0x10, repeats=5),
        record(Kind.EVENT_RECORD, 0xE, stream=0x10),
        record(Kind.EVENT_WAIT, 0xE, stream=1, thread=2),
        record(Kind.EVENT_DONE, 0xE),
        record(Kind.STREAM_DONE, stream=0x10),
        record(Kind.CONTEXT_DONE),
    ) == [
        "launch,5,1,0,0,call",
        "event,0,1,0,0",
        "wait,0,0,1,0",
        "done,event,0,0,0,call",
        "done,stream,1,0,0,call",
        "done,device,0,0,0,call",
    ]


def test_captured_calls_have_lines_of_their_own() -> None:
    assert lines(
        record(Kind.ALLOCATION, 4096, bytes=100, stream=0x10, captured=True),
        record(Kind.FREE, 4096, stream=0x10, captured=True),
    ) == ["captured,call,100,1,0,0", "captured,call,0,1,0,0"]


# The raw file


def raw_file(path: Path, *chunks: list[bytes], header: bytes = MAGIC) -> Path:
    start = HEADER.pack(
        header, HEADER.size, RECORD.size, 65536, 7, 1, 0, 1000, 0, b"d", b"c", b"x\0y"
    )
    path.write_bytes(start + b"".join(b"".join(chunk).ljust(65536, b"\0") for chunk in chunks))
    return path


def raw_record(time: int, kind: Kind, call: int = 0) -> bytes:
    return RECORD.pack(time, 0, 4096, 0, 0, 1, 1, 0, call, 0, kind, 0)


def test_threads_are_merged_by_time_and_frees_come_first(tmp_path: Path) -> None:
    first = [raw_record(1005, Kind.ALLOCATION, 3), raw_record(1009, Kind.FREE)]
    second = [raw_record(1005, Kind.FREE), raw_record(1007, Kind.LAUNCH)]
    trace = read_raw(raw_file(tmp_path / "raw", first, second))
    assert [(r.time_ns, r.kind) for r in trace.records] == [
        (5, Kind.FREE),
        (5, Kind.ALLOCATION),
        (7, Kind.LAUNCH),
        (9, Kind.FREE),
    ]
    assert trace.records[1].call == "y"


def test_a_chunk_ends_at_the_first_record_that_is_not_there(tmp_path: Path) -> None:
    begun = RECORD.pack(1002, 0, 4096, 64, 0, 1, 1, 0, 0, 0, 0, 0)  # its kind is written last
    trace = read_raw(raw_file(tmp_path / "raw", [raw_record(1001, Kind.FREE), begun]))
    assert len(trace.records) == 1


@pytest.mark.parametrize("content", [b"", bytes(4096)])
def test_a_process_that_could_not_write_is_known_by_its_number(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "4711.0.gate"
    path.write_bytes(content)
    trace = read_raw(path)
    assert (trace.process, trace.incomplete, trace.records) == (4711, True, [])


@pytest.mark.parametrize("content", [b"text", struct.pack("<8sI", MAGIC, 1)])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="not a raw trace"):
        read_raw(path)
    with pytest.raises(ValueError, match="another version"):
        data = bytearray(raw_file(path).read_bytes())
        data[8] = 1
        path.write_bytes(data)
        read_raw(path)
