"""The records of a process as lines of the trace format; docs/gate.md describes them."""

from __future__ import annotations

from collections.abc import Iterator

from vramkit.record.blocks import Block, Blocks
from vramkit.record.numbering import Numbers, StreamNumbers
from vramkit.record.raw import Kind, RawRecord, RawTrace
from vramkit.record.result import ProcessSummary

UNSEEN = "unseen"  # the call of a free that was not recorded


class Converter:
    """Turns the records of one process into lines. Blocks are numbered from `first_block` on."""

    def __init__(self, trace: RawTrace, first_block: int = 0) -> None:
        self._trace = trace
        self._blocks = Blocks(count=first_block)
        self._first_block = first_block
        self._streams = StreamNumbers()
        self._threads = Numbers()
        self._events = Numbers()
        self._devices: dict[int, int] = {}  # of contexts
        self._primary: dict[int, tuple[int, int]] = {}  # context and references, by device
        self._frees = self._failed = self._launches = self._unknown_frees = 0

    @property
    def next_block(self) -> int:
        return self._blocks.count

    def lines(self) -> Iterator[str]:
        trace = self._trace
        command = " ".join(" ".join(trace.command).split())
        yield f"@{trace.process},{trace.start_unix_ns},{command}"
        for record in trace.records:
            yield from self._lines(record)

    def summary(self) -> ProcessSummary:
        """Once all lines were taken."""
        trace = self._trace
        return ProcessSummary(
            process=trace.process,
            command=trace.command,
            driver=trace.driver,
            allocations=self._blocks.count - self._first_block,
            frees=self._frees,
            failed=self._failed,
            unknown_frees=self._unknown_frees,
            launches=self._launches,
            peak_bytes=self._blocks.peak,
            bytes_at_end=self._blocks.in_use,
            threads=len(self._threads),
            streams=len(self._streams),
            complete=not trace.incomplete,
        )

    def _lines(self, record: RawRecord) -> Iterator[str]:
        when = f"{self._threads(record.thread)},{record.time_ns}"
        match record.kind:
            case Kind.ALLOCATION | Kind.HANDLE:
                yield from self._allocation(record, when)
            case Kind.FREE:
                yield from self._free(record, when)
            case Kind.HANDLE_RETAINED:
                self._blocks.retain(record.object)
            case Kind.HANDLE_RELEASED:
                if (block := self._blocks.release(record.object)) is not None:
                    yield self._freed(block, record, when)
            case Kind.MAPPING:
                # Unmapped, and perhaps freed, by a call that is not recorded.
                yield from self._unmapped(record._replace(call=UNSEEN), when)
                found = self._blocks.map(record.object, record.bytes, record.context)
                if found is not None:
                    yield f"map,{found.number},{record.bytes},{when}"
            case Kind.UNMAPPING:
                yield from self._unmapped(record, when)
            case Kind.LAUNCH:
                self._launches += record.repeats
                yield f"launch,{record.repeats},{self._streams(record)},{when},{record.call}"
            case Kind.EVENT_RECORD:
                yield f"event,{self._events(record.object)},{self._streams(record)},{when}"
            case Kind.EVENT_WAIT:
                yield f"wait,{self._streams(record)},{self._events(record.object)},{when}"
            case Kind.EVENT_DONE:
                yield f"done,event,{self._events(record.object)},{when},{record.call}"
            case Kind.STREAM_DONE:
                yield f"done,stream,{self._streams(record)},{when},{record.call}"
            case Kind.CONTEXT_DONE:
                yield f"done,device,{self._devices.get(record.object, 0)},{when},{record.call}"
            case Kind.STREAM_DESTROYED:
                self._streams.destroyed(record)
            case _:
                yield from self._context(record, when)

    def _allocation(self, record: RawRecord, when: str) -> Iterator[str]:
        virtual = record.kind == Kind.HANDLE
        device = record.context if virtual else self._devices.get(record.context, 0)
        stream = self._streams(record)
        if record.code != 0:
            self._failed += 1
            yield f"failed,{record.bytes},{stream},{when},{device},{record.call},{record.code}"
        elif record.captured:
            yield f"captured,{record.call},{record.bytes},{stream},{when}"
        else:
            # Freed by a call that is not recorded, a launch of a graph for example.
            drop = self._blocks.forget if virtual else self._blocks.free
            if (lost := drop(record.object)) is not None:
                yield self._freed(lost, record._replace(call=UNSEEN), when)
            if virtual:
                block = self._blocks.create(record.object, record.bytes, device)
            else:
                block = self._blocks.allocate(record.object, record.bytes, device, record.context)
            yield f"+{block.number},{record.bytes},{stream},{when},{device},{record.call}"

    def _unmapped(self, record: RawRecord, when: str) -> Iterator[str]:
        for size, block, free in self._blocks.unmap(record.object, record.bytes):
            yield f"unmap,{block.number},{size},{when}"
            if free:
                yield self._freed(block, record, when)

    def _free(self, record: RawRecord, when: str) -> Iterator[str]:
        if record.captured:
            yield f"captured,{record.call},0,{self._streams(record)},{when}"
        elif (block := self._blocks.free(record.object)) is not None:
            yield self._freed(block, record, when)
        else:
            self._unknown_frees += 1

    def _freed(self, block: Block, record: RawRecord, when: str) -> str:
        self._frees += 1
        return f"-{block.number},{self._streams(record)},{when},{record.call}"

    def _context(self, record: RawRecord, when: str) -> Iterator[str]:
        device = record.object
        if record.kind == Kind.CONTEXT:
            self._devices[record.context] = device
            if record.call == "cuDevicePrimaryCtxRetain":
                _, references = self._primary.get(device, (0, 0))
                self._primary[device] = (record.context, references + 1)
            yield f"context,{device},{when},{record.call}"
            return
        ended = record.context
        if record.kind != Kind.CONTEXT_DESTROYED:
            ended, references = self._primary.get(device, (0, 0))
            released = record.kind == Kind.CONTEXT_RELEASED
            references = max(references - 1, 0) if released else references
            self._primary[device] = (ended, references)
            if released and references:
                return
        for block in self._blocks.free_context(ended):
            yield self._freed(block, record, when)
