"""Traces out of PyTorch's memory snapshots (torch.cuda.memory._dump_snapshot).

A snapshot is a pickle, and a pickle can run any code, take any amount of memory and overrun the
stack. These consist of numbers, texts, lists and dictionaries only, so whatever needs an import is
refused, and files are read in a process of their own with a limit on its memory (unpickle.py).
"""

from __future__ import annotations

import io
import pickle
import sys
from array import array
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import replace
from subprocess import DEVNULL, PIPE, TimeoutExpired, run
from typing import Any, NoReturn

import msgspec

from vramkit.lab.traces.content import Content, plain_name
from vramkit.lab.traces.trace import MOST_EVENTS, Trace, TraceBuilder

RECORD = "torch.cuda.memory._record_memory_history()"
MOST_BYTES = 2 << 30
"""Of a snapshot."""
SECONDS = 600
ADDRESSES = 1 << 64


class Blocks(msgspec.Struct, frozen=True):
    """The events of a device that concern blocks, as columns of unsigned 64-bit numbers.

    What unpickle.py answers.
    """

    device: int
    addresses: bytes
    sizes: bytes
    streams: bytes
    times_us: bytes
    frees: bytes
    """1: the block is freed, 0: allocated."""
    living: dict[int, tuple[int, int]]
    """Bytes and stream, by address, of what was in use when the snapshot was taken."""
    held: int
    """Most bytes that PyTorch's allocator had taken from the driver."""
    refused: int = 0
    """Allocations that it could not serve."""


class Answer(msgspec.Struct, frozen=True):
    devices: list[Blocks] = []
    wrong: str = ""


class SnapshotError(ValueError):
    """A pickle that is no snapshot; says why."""


# In the process that reads the file


class PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(
            f"it needs {module[:60]}.{name[:60]}; "
            "a snapshot has only numbers, texts, lists and dictionaries"
        )

    def persistent_load(self, identity: object) -> NoReturn:
        raise pickle.UnpicklingError("it refers to objects outside of the file")


def unpickled(content: bytes) -> object:
    try:
        return PlainUnpickler(io.BytesIO(content)).load()
    except MemoryError as error:
        raise SnapshotError("it needs far more memory than a snapshot of its size") from error
    except Exception as error:  # a damaged pickle raises nearly anything
        raise SnapshotError(f"not a PyTorch memory snapshot: {error}") from error


def blocks_of(snapshot: object, device: int | None = None) -> list[Blocks]:
    """Of each device that has events, or of one. Raises SnapshotError."""
    try:
        if not isinstance(snapshot, dict):
            raise TypeError(f"it is a {type(snapshot).__name__}")
        return [
            _blocks(snapshot, number, events)
            for number, events in enumerate(snapshot["device_traces"])
            if events and device in (None, number)
        ]
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise SnapshotError(
            f"not a PyTorch memory snapshot: {type(error).__name__}: {error}"
        ) from error
    except RecursionError as error:
        raise SnapshotError("not a PyTorch memory snapshot: nested too deeply") from error


def _blocks(snapshot: Mapping[str, Any], device: int, events: list[dict[str, Any]]) -> Blocks:
    living = {
        address: (nbytes, stream)
        for segment in snapshot.get("segments", [])
        if segment["device"] == device
        for address, nbytes, stream in _in_use(segment)
    }
    columns = tuple(array("Q") for _ in range(5))
    # A block is free for the program at free_requested; that its work on other streams ends later
    # (free_completed) is not part of a trace.
    for event in events:
        if (action := event["action"]) not in ("alloc", "free_requested"):
            continue
        address, size = event["addr"], event["size"]
        if size == 0:
            continue  # takes no memory, and shares its address with others
        if len(columns[0]) >= MOST_EVENTS:
            raise SnapshotError(f"more than {MOST_EVENTS:,} events, the most that are read")
        values = (
            _number(address, "the address"),
            _number(size, "the size"),
            _number(event["stream"], "the stream"),
            _number(event.get("time_us", 0), "the time"),
            int(action == "free_requested"),
        )
        for column, value in zip(columns, values, strict=True):
            column.append(value)
    addresses, sizes, streams, times_us, frees = (column.tobytes() for column in columns)
    held = _most_held(snapshot, device, events)
    refused = sum(event["action"] == "oom" for event in events)
    return Blocks(device, addresses, sizes, streams, times_us, frees, living, held, refused)


def _in_use(segment: Mapping[str, Any]) -> Iterator[tuple[int, int, int]]:
    """Address, bytes and stream of the blocks of a segment that the program has.

    PyTorch 2.0 gives no addresses of blocks, which lie side by side, and may give no size that was
    asked for.
    """
    stream = _number(segment["stream"], "the stream")
    end = _number(segment.get("address", 0), "the address")
    for block in segment["blocks"]:
        size = _number(block["size"], "the size")
        address = _number(block.get("address", end), "the address")
        end = address + size
        if block["state"] == "active_allocated":
            yield address, _number(block.get("requested_size", size), "the size"), stream


_HELD = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}


def _most_held(snapshot: Mapping[str, Any], device: int, events: list[dict[str, Any]]) -> int:
    """Known at the end, and back from there by what was taken and given back."""
    segments = [each for each in snapshot.get("segments", []) if each["device"] == device]
    held = most = sum(
        _number(each.get("total_size", 0), "the size of a segment") for each in segments
    )
    for event in reversed(events):
        held -= _HELD.get(event["action"], 0) * _number(event.get("size", 0), "the size")
        most = max(most, held)
    return most


def _number(value: object, what: str) -> int:
    if not isinstance(value, int) or not 0 <= value < ADDRESSES:
        kind = type(value).__name__
        raise SnapshotError(
            f"not a PyTorch memory snapshot: {what} is no number below 2^64: {kind}"
        )
    return int(value)


# In the process that wants the traces


def read_snapshot(content: Content) -> list[Trace]:
    answer = _answer(content)
    if answer.wrong:
        raise content.wrong(answer.wrong)
    name = plain_name(content.path).removesuffix(".pickle")
    traces = []
    for blocks in answer.devices:
        try:
            traces.append(trace_of(f"{name} device {blocks.device}", blocks))
        except ValueError as error:
            raise content.wrong(f"device {blocks.device}, {error}") from error
    traces = [trace for trace in traces if trace.allocations]
    if not traces:
        raise content.wrong(
            f"the snapshot has no events; call {RECORD} at the start of the program"
        )
    if len(traces) == 1:
        traces = [replace(traces[0], name=name)]
    return traces


def _answer(content: Content) -> Answer:
    """Of the process that reads the pickle; it gets the content, not the file."""
    data = content.whole(MOST_BYTES)
    command = [sys.executable, "-m", "vramkit.lab.traces.unpickle"]
    try:
        done = run(command, input=data, stdout=PIPE, stderr=DEVNULL, timeout=SECONDS, check=False)
    except TimeoutExpired:
        return Answer(wrong=f"a pickle that was not read within {SECONDS} s")
    except OSError as error:
        return Answer(wrong=f"cannot be read: no process for it: {error.strerror}")
    if done.returncode != 0:
        return Answer(wrong="not a PyTorch memory snapshot: the process that read it ended early")
    return msgspec.msgpack.decode(done.stdout, type=Answer)


def trace_of(name: str, blocks: Blocks) -> Trace:
    """The recording may have begun late or dropped its oldest events: what is freed or left
    without having been allocated in it was in use from the start."""
    seen: set[int] = set()
    before: dict[Hashable, tuple[int, int]] = {}
    for address, size, stream, _, is_free in _events(blocks):
        if not is_free:
            seen.add(address)
        elif address in seen:
            seen.remove(address)
        else:
            before[address] = size, stream
    builder = TraceBuilder(name, "PyTorch", timed=True, held=blocks.held or None)
    builder.refused = blocks.refused
    start = min((at_us for _, _, _, at_us, _ in _events(blocks)), default=0) * 1000
    # Another block may have the address later, so the keys of what is left are others.
    left = {("left", at): block for at, block in blocks.living.items() if at not in seen}
    for key, (size, stream) in (before | left).items():
        builder.allocate(key, size, stream, at=start)
    number = 0
    try:
        for number, (address, size, stream, at_us, is_free) in enumerate(_events(blocks), 1):  # noqa: B007
            if is_free:
                builder.free(address, at=at_us * 1000)
            else:
                builder.allocate(address, size, stream, at=at_us * 1000)
    except ValueError as error:
        raise ValueError(f"event {number}: {error}") from error
    return builder.build()


def _events(blocks: Blocks) -> Iterator[tuple[int, ...]]:
    """Address, bytes, stream, microseconds, and whether it is a free."""
    columns = (blocks.addresses, blocks.sizes, blocks.streams, blocks.times_us, blocks.frees)
    return zip(*(memoryview(column).cast("Q") for column in columns), strict=True)
