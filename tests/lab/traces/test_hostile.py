"""Damaged, foreign and hostile files: one error that names file, line and fault; never another."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
import threading
import tracemalloc
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from soak import rounds

from vramkit.lab.traces import TraceError, content, read_traces, trace
from vramkit.resources.adaptors.trace import HEADER, MAGIC, RECORD

from .support import RECORD_HEADER, RMM_HEADER, event, snapshot, written
from .test_formats import PLAIN, RECORDED, RMM_LINES

LINE = "+0,1,0,0,0,0,c\n"


def recording(*records: tuple[int, ...]) -> bytes:
    rows = b"".join(RECORD.pack(*record) for record in records)
    return HEADER.pack(MAGIC, 1, RECORD.size, 0) + rows


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "the file is empty"),
        (gzip.compress(b"", mtime=0), "the file is empty"),
        ("+1,2,0\n+1,2\n", r"line 2: '\+1,2' is neither \+id,bytes,stream nor -id$"),
        ("+1,2,0\n\n", "line 2: '' is neither"),
        ("+1,-2,0\n", "line 1: '.*' is neither"),
        ("-1,3\n", "line 1: '-1,3' is neither"),
        ("+1,,0\n", r"line 1: '\+1,,0' is neither"),
        ("hello\n", "line 1: 'hello' is neither .*; nor is it what `vramkit record`, PyTorch or R"),
        ("+1,0,0\n", r"line 1: block 1 has 0 bytes; it may have 1 to 2\^40"),
        (f"+1,{1 << 41},0\n", r"line 1: block 1 has \d+ bytes; it may have 1 to 2\^40"),
        (f"+1,{'9' * 5000},0\n", r"line 1: '\+1,9+...' has a number that is too large"),
        ("+1,2,0\n+1,2,0\n", "line 2: block 1 is allocated again before it is freed"),
        ("+1,2,0\n-1\n-1\n", "line 3: block 1 is freed, but not in use"),
        ("+1,2,0\n-1", "line 2: the line has no end: the file was cut off there"),
        ("+1,2,\u0663\n", "line 1: the byte 0xd9 at column 6; a trace is ASCII text"),
        (
            b"+1,2,0\n-1\n" * 9 + b"\xff\n",
            "line 19: the byte 0xff at column 1; a trace is ASCII text",
        ),
        (b"\xff\xfe", "neither a trace of vramkit, nor a PyTorch memory snapshot, nor a log of RM"),
        (b"\x7fELF\0\0", "neither a trace of vramkit"),
        (b"PK\x03\x04", "it is an archive; unpack it first"),
        ('{"a": 1}', "it is JSON"),
        (gzip.compress(PLAIN.encode(), mtime=0)[:-9], "cannot be read: Compressed file ended"),
        (gzip.compress(PLAIN.encode(), mtime=0)[:5], "cannot be read: Compressed file ended"),
        (b"\x1f\x8b\x08" + b"x" * 30, "cannot be read: "),
        ("+" + "1" * 10_000, r"line 1: the line has more than 8,192 bytes"),
        # vramkit record
        ("# vramkit trace 3\n", "line 1: it is '# vramkit trace 3'; this vramkit reads '# vramkit"),
        ("# vramkit trace 2\n", "nothing was allocated"),
        ("# vramkit trace 2\n+0,1\n", "line 2: an event before the first line @pid,start,command"),
        ("# vramkit trace 2\n@x,1,c\n", "line 2: the process is 'x'; it may be a whole number"),
        ("# vramkit trace 2\n@1\n", "line 2: '@1' is not @pid,start,command"),
        (RECORD_HEADER + "-5,0,0,0,call\n", "line 3: block 5 is freed, but not in use"),
        (RECORD_HEADER + "+0,1\n", r"line 3: '\+0,1' has 2 values, not 7"),
        (RECORD_HEADER + "+0,x,0,0,0,0,c\n", "line 3: the number of bytes is 'x'"),
        (RECORD_HEADER + "+0,0,0,0,0,0,c\n", "line 3: block 0 has 0 bytes"),
        (RECORD_HEADER + "+0,1,0,0,0,99,c\n", "line 3: the device is '99'; .* from 0 to 64"),
        (RECORD_HEADER + LINE + LINE, "line 4: block 0 follows block 0; numbers grow"),
        (RECORD_HEADER + "done,card,0,0,0,c\n", "line 3: 'card' is done; it may be stream, event"),
        (RECORD_HEADER + "launch,0,0,0,0,c\n", "line 3: 0 launches"),
        (RECORD_HEADER + "dance,1\n", "line 3: 'dance,1' is no line of a trace"),
        # RMM
        ("Thread,Time,Action\n", "line 1: the header is 'Thread,Time,Action', not 'Thread,Time,Ac"),
        (RMM_HEADER + "1,2\n", "line 2: '1,2' has 2 fields, not 6"),
        (RMM_HEADER + "1,12:00:00.000000,steal,0x1,2,0x0\n", "line 2: the action is 'steal'"),
        (RMM_HEADER + "1,12:00:00.000000,allocate,0x1,-2,0x0\n", "line 2: the size is '-2'"),
        (RMM_HEADER + "1,12:00:00.000000,allocate,zz,2,0x0\n", "line 2: the pointer is 'zz'; it m"),
        (RMM_HEADER + "1,noon,allocate,0x1,2,0x0\n", "line 2: the time is 'noon'"),
        (RMM_HEADER + "1,12:00:00.000000,free,0x1,2,0x0\n", "line 2: block 0x1 is freed, but not"),
        (RMM_HEADER + "1\0,12:00:00.000000,free,0x1,2,0x0\n", r"line 2: the thread is '1\\x00'"),
        (RMM_HEADER, "nothing was allocated"),
        # Recording
        (recording(), "nothing was allocated"),
        (recording((9, 1, 1, 1, 1, 1, 1)), "record 1: 9 is not a valid Operation"),
        (recording((1, 1, 1, 1, 1, 1, 2**64 - 1)), r"record 1: its time is \d+ ns"),
        (recording((2, 1, 1, 1, 1, 1, 1)), "record 1: block 1 is freed, but not in use"),
        (b"vkGATE1\n", "it is a raw trace of the gate"),
    ],
)
def test_a_bad_file_is_named_with_its_line(
    tmp_path: Path, content: str | bytes, words: str
) -> None:
    with pytest.raises(TraceError, match=rf"some\.csv(, |: )(.*: )?{words}"):
        read_traces(written(tmp_path, content))


@pytest.mark.parametrize(
    ("content", "words"),
    [(MAGIC, "is not a trace of vramkit"), (HEADER.pack(MAGIC, 9, 48, 0), "of version 9 with")],
)
def test_a_bad_recording_is_named(tmp_path: Path, content: bytes, words: str) -> None:
    with pytest.raises(TraceError, match=rf"some\.csv is .*{words[3:]}"):
        read_traces(written(tmp_path, content))


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"none\.csv: cannot be read: No such file"):
        read_traces(tmp_path / "none.csv")
    with pytest.raises(TraceError, match="that is a folder; a trace is a file"):
        read_traces(tmp_path)
    with pytest.raises(TraceError, match="/dev/zero: that is no plain file"):
        read_traces(Path("/dev/zero"))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TraceError, match="pipe: that is no plain file"):
        read_traces(tmp_path / "pipe")
    with pytest.raises(TraceError, match="cannot be read: embedded null"):
        read_traces(Path("a\0b"))


def test_a_file_that_may_not_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> object:
        raise PermissionError(13, "Permission denied")

    path = written(tmp_path, PLAIN)
    monkeypatch.setattr(Path, "open", refuse)  # root may read everything
    with pytest.raises(TraceError, match=r"some\.csv: cannot be read: Permission denied"):
        read_traces(path)


# Bounds


def test_a_bomb_is_read_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "MOST_BYTES", 1 << 20)
    header = RMM_HEADER + "1,12:00:00.000000,allocate failure,0x0,1,0x0\n" * 100_000
    path = written(tmp_path, gzip.compress(header.encode()))
    with pytest.raises(TraceError, match="more than 1,048,576 bytes, unpacked"):
        read_traces(path)


def test_a_long_line_is_not_read_whole(tmp_path: Path) -> None:
    path = written(tmp_path, gzip.compress(b"+1," + b"0" * (64 << 20)))
    tracemalloc.start()
    try:
        with pytest.raises(TraceError, match=r"line 1: the line has more than 8,192 bytes"):
            read_traces(path)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("bound", "name", "words"),
    [
        ("MOST_EVENTS", "some.csv", "line 4: more than 3 events"),
        ("MOST_STREAMS", "some.csv", "line 4: more than 3 streams"),
    ],
)
def test_events_and_streams_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, name: str, words: str
) -> None:
    monkeypatch.setattr(trace, bound, 3)
    lines = "".join(f"+{number},8,{number}\n" for number in range(9))
    with pytest.raises(TraceError, match=words):
        read_traces(written(tmp_path, lines, name))


# Pickles


class Harmful:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, ("raise SystemExit",)


def deep(levels: int) -> bytes:
    """A tuple in a tuple in a tuple, as the key of a dictionary: hashing it overruns the stack."""
    return b"\x80\x04}(" + b")" + b"\x85" * levels + b"K\x01u."


def memo_bomb() -> bytes:
    """Asks for a memo of a hundred million entries, which takes 1.6 GB."""
    return b"\x80\x04]r" + struct.pack("<I", 100_000_000) + b"."


def long_text() -> bytes:
    """Says that it has a text of a tebibyte."""
    return b"\x80\x04\x8d" + struct.pack("<Q", 1 << 40) + b"abc"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (pickle.dumps({"device_traces": [Harmful()]}), "it needs builtins.exec; a snapshot has on"),
        (pickle.dumps({"device_traces": [threading.Lock]}), "it needs _thread.allocate_lock"),
        (pickle.dumps({"segments": []}), "KeyError: 'device_traces'"),
        (pickle.dumps([1, 2]), "TypeError: it is a list"),
        (pickle.dumps({"device_traces": [[{"action": "alloc"}]]}), "KeyError: 'addr'"),
        (pickle.dumps(snapshot([event("alloc", -1, 5)])), "the address is no number below 2^64"),
        (pickle.dumps(snapshot([event("alloc", 1, 1 << 70)])), "the size is no number below 2^64"),
        (pickle.dumps(snapshot([event("alloc", 1, 1 << 50)])), "event 1: block 1 has 11258999068"),
        (pickle.dumps(snapshot([event("alloc", 1, 1)] * 2)), "event 2: block 1 is allocated again"),
        (pickle.dumps(snapshot([event("alloc", "x", 1)])), "the address is no number"),  # type: ignore[arg-type]
        (pickle.dumps({"device_traces": []})[:-3], "not a PyTorch memory snapshot"),
        (pickle.dumps({"device_traces": [[], []]}), "no events; call torch.cuda.memory._record_me"),
        (b"\x80\x04", "not a PyTorch memory snapshot"),
        (deep(2_000_000), "not a PyTorch memory snapshot: "),
        (memo_bomb(), "it needs far more memory than a snapshot of its size"),
        (long_text(), "not a PyTorch memory snapshot"),
        (gzip.compress(pickle.dumps([0] * 100_000), mtime=0), "TypeError: it is a list"),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else value[:20],
)
def test_other_pickles_are_refused(tmp_path: Path, content: bytes, words: str) -> None:
    with pytest.raises(TraceError, match=r"torch\.pickle: ") as caught:
        read_traces(written(tmp_path, content, "torch.pickle"))
    assert words in str(caught.value)


# Any bytes at all


VALID = [
    PLAIN.encode(),
    gzip.compress(PLAIN.encode(), mtime=0),
    (RECORD_HEADER + RECORDED).encode(),
    (RMM_HEADER + RMM_LINES).encode(),
    recording((1, 5, 0, 64, 4096, 1, 10), (2, 5, 7, 64, 4096, 1, 20)),
]


@st.composite
def damaged(draw: st.DrawFn, valid: list[bytes]) -> bytes:
    """A valid file with bytes put in, taken out or changed, cut off, or doubled."""
    data = bytearray(draw(st.sampled_from(valid)))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = min(start + draw(st.integers(0, 6)), len(data))
        data[start:end] = draw(st.binary(max_size=6))
    if draw(st.booleans()):
        del data[draw(st.integers(0, len(data))) :]
    return bytes(data)


@settings(
    max_examples=rounds(400, 20_000),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(damaged(VALID))
def test_any_damage_is_a_trace_or_one_error(tmp_path: Path, data: bytes) -> None:
    read_or_refuse(tmp_path, data)


@settings(
    max_examples=rounds(12, 2000),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(damaged([pickle.dumps(snapshot([event("alloc", 64, 10), event("free_requested", 64, 10)]))]))
def test_any_damaged_pickle_is_a_trace_or_one_error(tmp_path: Path, data: bytes) -> None:
    read_or_refuse(tmp_path, data)


def read_or_refuse(folder: Path, data: bytes) -> None:
    path = written(folder, data)
    try:
        traces = read_traces(path)
    except TraceError as error:
        assert str(error).startswith(str(path))
        assert "\n" not in str(error) and len(str(error)) < 700
    else:
        for found in traces:
            assert found.peak_in_use <= sum(found.sizes)
