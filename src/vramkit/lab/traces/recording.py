"""The binary trace that the adaptor Recording writes: calls of one resource, and their streams."""

from __future__ import annotations

from vramkit.lab.traces.content import Content
from vramkit.lab.traces.trace import MOST_EVENTS, Trace, TraceBuilder, TraceError
from vramkit.resources.adaptors.trace import HEADER, MAGIC, RECORD, Operation, parse_trace

__all__ = ["MAGIC", "read_recording"]


def read_recording(content: Content) -> list[Trace]:
    data = content.whole(HEADER.size + MOST_EVENTS * RECORD.size)
    name = content.path.name.removesuffix(".gz").removesuffix(".trace")
    builder = TraceBuilder(name, "vramkit Recording", timed=True)
    try:
        calls = parse_trace(data, content.path)
    except ValueError as error:  # which names the file
        raise TraceError(str(error)) from error
    read = 0
    try:
        for call in calls:
            # No stream: the legacy default one, or that of the allocation.
            if call.operation == Operation.FAILED_MALLOC:
                builder.refused += 1
            elif call.operation == Operation.MALLOC:
                stream = "legacy" if call.stream is None else call.stream
                builder.allocate(call.block, call.size, stream, call.thread, call.time_ns)
            else:
                builder.free(call.block, call.stream, call.thread, call.time_ns)
            read += 1
    except ValueError as error:
        raise content.wrong(f"record {read + 1}: {error}") from error
    return [builder.build()]
