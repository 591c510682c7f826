"""The log of RMM's LoggingResourceAdaptor: a line of CSV for each call.

Threads and addresses are those of the program. Times are those of a day, or seconds since 1970 as
RMM's documentation shows them. Addresses and streams are hexadecimal, with 0x or,
in some releases, without; a null pointer is also written (nil). Launches and waits are not logged.
A free is logged before its call and an allocation after it, so an address is free before it is
handed out again, whichever threads do so.
"""

from __future__ import annotations

import re

from vramkit.lab.traces.content import Content, plain_name
from vramkit.lab.traces.trace import Trace, TraceBuilder, decimal

HEADER = b"Thread,Time,Action,Pointer,Size,Stream"
COLUMNS = HEADER.count(b",") + 1
NULL = "(nil)"
ACTIONS = ("allocate", "free", "allocate failure")
HEXADECIMAL = re.compile(r"(?:0[xX])?([0-9a-fA-F]{1,16})\Z")
TIME = re.compile(r"(\d\d):(\d\d):(\d\d)[.:](\d{6})\Z", re.ASCII)
SINCE_1970 = re.compile(r"(\d{9,10})\.(\d{6})\Z", re.ASCII)
DAY = 24 * 3600 * 10**9


def read_rmm(content: Content) -> list[Trace]:
    builder = TraceBuilder(plain_name(content.path), "RMM", timed=True)
    clock = _Clock()
    for number, line in content.lines():
        if number == 1:
            if line != HEADER.decode():
                raise content.wrong(f"the header is {line[:60]!r}, not {HEADER.decode()!r}", 1)
            continue
        try:
            _add(builder, line, clock)
        except ValueError as error:
            raise content.wrong(error, number) from error
    return [builder.build()]


def _add(builder: TraceBuilder, line: str, clock: _Clock) -> None:
    fields = line.split(",")
    if len(fields) != COLUMNS:
        raise ValueError(f"{line[:60]!r} has {len(fields)} fields, not {COLUMNS}")
    thread, time, action, pointer, size_text, stream_text = fields
    if action not in ACTIONS:
        raise ValueError(f"the action is {action[:40]!r}; it may be {', '.join(ACTIONS)}")
    size = decimal(size_text, "the size")
    by, at = decimal(thread, "the thread"), clock(time)
    stream = _hexadecimal(stream_text, "the stream")
    address = _hexadecimal(pointer, "the pointer")
    if action == "allocate failure":
        builder.refused += 1
    elif size == 0:
        pass  # takes no memory
    elif action == "allocate":
        builder.allocate(f"{address:#x}", size, stream, by, at)
    else:
        builder.free(f"{address:#x}", stream, by, at)


def _hexadecimal(text: str, what: str) -> int:
    if text == NULL:
        return 0
    found = HEXADECIMAL.match(text)
    if found is None:
        raise ValueError(f"{what} is {text[:24]!r}; it may be up to 16 hexadecimal digits")
    return int(found[1], 16)


class _Clock:
    """Times of day, as nanoseconds that go on past midnight."""

    def __init__(self) -> None:
        self._days = self._last = 0

    def __call__(self, text: str) -> int:
        if since := SINCE_1970.match(text):
            return int(since[1]) * 10**9 + int(since[2]) * 1000
        found = TIME.match(text)
        if found is None:
            raise ValueError(f"the time is {text[:24]!r}; it may be like 15:47:02.841961")
        hours, minutes, seconds, micros = map(int, found.groups())
        at = ((hours * 60 + minutes) * 60 + seconds) * 10**9 + micros * 1000
        if at < self._last - DAY // 2:
            self._days += 1
        self._last = at
        return self._days * DAY + at
