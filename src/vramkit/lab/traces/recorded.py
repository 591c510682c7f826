"""What `vramkit record` writes (docs/gate.md): blocks, launches, events, waits and completed work.

A trace for each process and device with blocks. What has no device in the file belongs to the
devices of its stream's blocks, or to all of the process where the stream has none.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from vramkit.lab.program import LARGEST
from vramkit.lab.traces.content import Content, plain_name
from vramkit.lab.traces.trace import LATEST, MOST_EVENTS, Kind, Trace, TraceBuilder, decimal

MAGIC = b"# vramkit trace "
FIRST_LINE = "# vramkit trace 2"
MOST_DEVICES = 64
MOST_LAUNCHES = (1 << 32) - 1
NOWHERE = -1
"""In place of a stream or a device that a line does not name."""


def read_recorded(content: Content) -> list[Trace]:
    name = plain_name(content.path)
    processes: list[_Process] = []
    last_block = -1
    for number, line in content.lines():
        try:
            if number == 1:
                if line != FIRST_LINE:
                    raise ValueError(f"it is {line[:40]!r}; this vramkit reads {FIRST_LINE!r}")
            elif number > MOST_EVENTS:
                raise ValueError(f"more than {MOST_EVENTS:,} lines, the most that are read")
            elif line.startswith("@"):
                processes.append(_Process(_process_of(line), last_block))
            elif not processes:
                raise ValueError("an event before the first line @pid,start,command")
            else:
                processes[-1].add(line)
                last_block = processes[-1].last_block
        except ValueError as error:
            raise content.wrong(error, number) from error
    builders = [
        (f"{name} process {process.number} device {device}", builder)
        for process in processes
        for device, builder in process.by_device()
    ]
    for title, builder in builders:
        builder.name = title if len(builders) > 1 else name
    return [builder.build() for _, builder in builders]


def _process_of(line: str) -> int:
    fields = line[1:].split(",", 2)
    if len(fields) != 3:
        raise ValueError(f"{line[:40]!r} is not @pid,start,command")
    decimal(fields[1], "the start")
    return decimal(fields[0], "the process")


class _Event(NamedTuple):
    kind: int
    what: int
    stream: int
    thread: int
    at: int
    device: int
    size: int


@dataclass
class _Process:
    """Its events, before it is known which devices they belong to."""

    number: int
    last_block: int
    refused: dict[int, int] = field(default_factory=dict)
    _columns: tuple[array[int], ...] = field(
        default_factory=lambda: tuple(array(code) for code in "Bqqqqbq")
    )
    _live: dict[int, int] = field(default_factory=dict)  # devices, by block

    def add(self, line: str) -> None:
        if line.startswith("+"):
            self._allocated(*_values(line[1:], 7, line))
        elif line.startswith("-"):
            self._freed(*_values(line[1:], 5, line))
        else:
            word, _, rest = line.partition(",")
            if word not in _FORMS:
                raise ValueError(f"{line[:40]!r} is no line of a trace")
            count, take = _FORMS[word]
            take(self, *_values(rest, count, line))

    def _allocated(
        self, block: str, size: str, stream: str, thread: str, at: str, device: str, call: str
    ) -> None:
        number, on = decimal(block, "the block"), decimal(device, "the device", MOST_DEVICES)
        nbytes = decimal(size, "the number of bytes")
        if number <= self.last_block:
            raise ValueError(f"block {number} follows block {self.last_block}; numbers grow")
        if not 1 <= nbytes <= LARGEST:
            raise ValueError(f"block {number} has {nbytes} bytes; it may have 1 to 2^40")
        self._put(Kind.ALLOCATE, number, _stream(stream), thread, at, on, nbytes)
        self.last_block = number
        self._live[number] = on

    def _freed(self, block: str, stream: str, thread: str, at: str, call: str) -> None:
        number, given = decimal(block, "the block"), _stream(stream)
        if number not in self._live:
            raise ValueError(f"block {number} is freed, but not in use")
        # Other frees wait for the work of the card, or are none of the program's own.
        on = given if "Async" in call else NOWHERE
        self._put(Kind.FREE, number, on, thread, at, self._live[number])
        del self._live[number]

    def _failed(
        self, size: str, stream: str, thread: str, at: str, device: str, call: str, code: str
    ) -> None:
        on = decimal(device, "the device", MOST_DEVICES)
        decimal(size, "the number of bytes")
        self.refused[on] = self.refused.get(on, 0) + 1

    def _launched(self, count: str, stream: str, thread: str, at: str, call: str) -> None:
        number = decimal(count, "the number of launches", MOST_LAUNCHES)
        if number == 0:
            raise ValueError("0 launches; there may be 1 or more")
        self._put(Kind.LAUNCH, number, _stream(stream), thread, at)

    def _recorded(self, event: str, stream: str, thread: str, at: str) -> None:
        self._put(Kind.RECORD, decimal(event, "the event"), _stream(stream), thread, at)

    def _waited(self, stream: str, event: str, thread: str, at: str) -> None:
        self._put(Kind.WAIT, decimal(event, "the event"), _stream(stream), thread, at)

    def _done(self, what: str, which: str, thread: str, at: str, call: str) -> None:
        if what == "stream":
            self._put(Kind.STREAM_DONE, 0, _stream(which), thread, at)
        elif what == "event":
            self._put(Kind.EVENT_DONE, decimal(which, "the event"), NOWHERE, thread, at)
        elif what == "device":
            on = decimal(which, "the device", MOST_DEVICES)
            self._put(Kind.DEVICE_DONE, 0, NOWHERE, thread, at, on)
        else:
            raise ValueError(f"{what[:40]!r} is done; it may be stream, event or device")

    def _no_memory(self, *values: str) -> None:
        """Where a handle is mapped, what went into a graph, and contexts: no block and no work."""

    def _put(
        self,
        kind: Kind,
        what: int,
        stream: int,
        thread: str,
        at: str,
        device: int = NOWHERE,
        size: int = 0,
    ) -> None:
        by, when = decimal(thread, "the thread"), decimal(at, "the time")
        event = _Event(kind, what, stream, by, when, device, size)
        for column, value in zip(self._columns, event, strict=True):
            column.append(value)

    def by_device(self) -> Iterator[tuple[int, TraceBuilder]]:
        """In the order of their first blocks."""
        builders: dict[int, TraceBuilder] = {}
        owners: dict[int, set[int]] = {}  # devices of each stream's blocks
        for event in self._events():
            if event.kind == Kind.ALLOCATE:
                if event.device not in builders:
                    made = TraceBuilder("", "vramkit record", timed=True)
                    made.refused = self.refused.get(event.device, 0)
                    builders[event.device] = made
                owners.setdefault(event.stream, set()).add(event.device)
        everywhere = set(builders)
        recorded: dict[int, set[int]] = {}  # devices on which each event was recorded
        for event in self._events():
            if event.device != NOWHERE:
                on = {event.device} & everywhere
            elif event.stream != NOWHERE:
                on = owners.get(event.stream, everywhere)
            else:
                on = recorded.get(event.what, set())
            if event.kind == Kind.RECORD:
                recorded[event.what] = on
            for device in on:
                _tell(builders[device], event)
        yield from builders.items()

    def _events(self) -> Iterator[_Event]:
        return map(_Event._make, zip(*self._columns, strict=True))


def _tell(builder: TraceBuilder, event: _Event) -> None:
    kind, what, stream, thread, at, _, size = event
    match kind:
        case Kind.ALLOCATE:
            builder.allocate(what, size, stream, thread, at)
        case Kind.FREE:
            builder.free(what, None if stream == NOWHERE else stream, thread, at)
        case Kind.LAUNCH:
            builder.launch(what, stream, thread, at)
        case Kind.RECORD:
            builder.record(what, stream, thread, at)
        case Kind.WAIT:
            builder.wait(stream, what, thread, at)
        case Kind.EVENT_DONE:
            builder.event_done(what, thread, at)
        case Kind.STREAM_DONE:
            builder.stream_done(stream, thread, at)
        case Kind.DEVICE_DONE:
            builder.device_done(thread, at)


def _values(text: str, count: int, line: str) -> list[str]:
    values = text.split(",")
    if len(values) != count:
        raise ValueError(f"{line[:60]!r} has {len(values)} values, not {count}")
    return values


def _stream(text: str) -> int:
    return decimal(text, "the stream", LATEST)


_FORMS: dict[str, tuple[int, Callable[..., None]]] = {
    "failed": (7, _Process._failed),
    "launch": (5, _Process._launched),
    "event": (4, _Process._recorded),
    "wait": (4, _Process._waited),
    "done": (5, _Process._done),
    "map": (4, _Process._no_memory),
    "unmap": (4, _Process._no_memory),
    "captured": (5, _Process._no_memory),
    "context": (4, _Process._no_memory),
}
