"""The binary trace that the adaptor Recording writes: calls of one resource, and their streams."""

from __future__ import annotations

from vramkit.lab.traces.content import Content
from vramkit.lab.traces.trace import MOST_EVENTS, Trace, TraceBuilder
from vramkit.resources.adaptors.trace import HEADER, MAGIC, RECORD, Operation, parse_trace

__all__ = ["MAGIC", "read_recording"]


def read_recording(content: Content) -> list[Trace]:
    data = content.whole(HEADER.size + MOST_EVENTS * RECORD.size)
    name = content.path.name.removesuffix(".gz").removesuffix(".trace")
    builder = TraceBuilder(name, "vramkit Recording", timed=True)
    number = 0
    try:
        for event in parse_trace(data, content.path):
            number += 1
            # No stream: the legacy default one, or that of the allocation.
            if event.operation == Operation.FAILED_MALLOC:
                builder.refused += 1
            elif event.operation == Operation.MALLOC:
                stream = "legacy" if event.stream is None else event.stream
                builder.allocate(event.block, event.size, stream, event.thread, event.time_ns)
            else:
                builder.free(event.block, event.stream, event.thread, event.time_ns)
    except ValueError as error:
        where = f"record {number + 1}: " if number else ""
        raise content.wrong(f"{where}{error}") from error
    return [builder.build()]
