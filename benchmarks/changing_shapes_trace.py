"""Allocations of a program, as PyTorch's allocator recorded them, written as a trace.

A trace is text, compressed by gzip, a line an event: `+id,bytes,stream` asks for a block, `-id`
frees it on its own stream. Sizes are as asked for. Streams are numbered as they first appear.
"""

import gzip
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec


class Summary(msgspec.Struct):
    """What is worth knowing about a trace without reading it."""

    events: int
    streams: int
    peak_bytes: int


def lines(events: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The trace of one device: a list of `device_traces` of a snapshot of PyTorch.

    A block is free from where the program let it go ("free_requested"); PyTorch may keep it longer
    for streams that still use it. Blocks from before the recording are not part of it.
    """
    live: dict[int, int] = {}
    streams: dict[int, int] = {}
    count = 0
    for event in events:
        if event["action"] == "alloc":
            stream = streams.setdefault(event["stream"], len(streams))
            live[event["addr"]] = count
            yield f"+{count},{event['size']},{stream}"
            count += 1
        elif event["action"] == "free_requested":
            block = live.pop(event["addr"], None)
            if block is not None:
                yield f"-{block}"


def summarize(trace: Iterable[str]) -> Summary:
    sizes: dict[str, int] = {}
    streams = set()
    events = now = peak = 0
    for line in trace:
        events += 1
        if line[0] == "+":
            block, size, stream = line[1:].split(",")
            sizes[block] = int(size)
            streams.add(stream)
            now += int(size)
            peak = max(peak, now)
        else:
            now -= sizes.pop(line[1:])
    return Summary(events, len(streams), peak)


def write(trace: Iterable[str], path: Path) -> None:
    """The same bytes for the same trace: without a time or a name in the file."""
    with path.open("wb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed:
        for line in trace:
            packed.write(f"{line}\n".encode())


def record(name: str, size: str, rounds: int, path: Path) -> Summary:
    """Runs rounds of a program on the card, recorded from its first tensor on."""
    import torch
    from changing_shapes_run import Rounds, build, deterministic

    device = torch.device("cuda")
    deterministic()
    torch.cuda.memory._record_memory_history(enabled="all", context=None)
    work = Rounds(build(name, size, device), device)
    for _ in range(rounds):
        work.run()
    devices = torch.cuda.memory._snapshot()["device_traces"]
    trace = list(lines(devices[torch.cuda.current_device()]))
    write(trace, path)
    return summarize(trace)
