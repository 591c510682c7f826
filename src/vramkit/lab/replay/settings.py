"""What a replay is told: which traces, and how they are played."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import cast

from vramkit.lab.program import Program
from vramkit.lab.settings import Setting, Settings
from vramkit.lab.traces import Trace, read_traces
from vramkit.lab.traces.programs import KERNEL_NS, as_program, dealt
from vramkit.report.units import bytes_text
from vramkit.weights.budget import parse_bytes

SETTINGS: Sequence[Setting] = (
    Setting(
        "kernel_us",
        KERNEL_NS / 1e3,
        "microseconds of a kernel whose time nobody knows; 0 leaves kernels out.",
        most=1e6,
    ),
    Setting("streams", 0, "deal the blocks over so many streams; 0: not.", most=4096),
    Setting("threads", 0, "deal the blocks over so many threads; 0: not.", most=1024),
    Setting("limit", 0, "of what an allocator may take; 0: none.", nbytes=True),
    Setting(
        "limit_percent",
        -1.0,
        "once more, with a limit so much above what was held; -1: not.",
        least=-1,
        most=1000,
    ),
    Setting("smallest", True, "look for the smallest card that each allocator needs."),
    Setting("capacity", 140 << 30, "memory of the simulated GPU.", nbytes=True, least=1 << 26),
)
WITH_LIMIT = "with a limit"
SMALLEST = "smallest card"


def card_arm(nbytes: int) -> str:
    return f"card of {bytes_text(nbytes)}"


def cards(settings: Settings) -> dict[str, int]:
    """Bytes of those that were asked for, by arm. Raises ValueError."""
    texts = cast("list[str]", settings.get("cards", []))
    sizes = [parse_bytes(text, "a card") for text in texts]
    return {card_arm(nbytes): nbytes for nbytes in sizes}


def traces(settings: Settings) -> dict[str, Trace]:
    """By the names of their cases. Raises TraceError, and ValueError without any."""
    paths = _paths(settings)
    if not paths:
        raise ValueError("a replay needs a trace: vramkit replay FILE")
    return _named(paths)


def trace_named(settings: Settings, name: str) -> Trace:
    """One of traces(). Only files are read that may have it: a trace is named after its file."""
    return _named([path for path in _paths(settings) if name.startswith(_start(path))])[name]


def _paths(settings: Settings) -> list[str]:
    return list(dict.fromkeys(cast("list[str]", settings.get("traces", []))))


def _start(path: str) -> str:
    return Path(path).name.partition(".")[0].replace(",", "_")


def _named(paths: Sequence[str]) -> dict[str, Trace]:
    found: dict[str, Trace] = {}
    for path in paths:
        for trace in read_once(path):
            plain = trace.name.replace(",", "_")  # names of cases have no commas
            name, number = plain, 2
            while name in found:
                name, number = f"{plain} ({number})", number + 1
            found[name] = trace
    return found


@lru_cache(maxsize=64)
def read_once(path: str) -> tuple[Trace, ...]:
    return tuple(read_traces(Path(path)))


def program_of(trace: Trace, settings: Settings, seed: int, *, paced: bool = False) -> Program:
    streams, threads = int(str(settings["streams"])), int(str(settings["threads"]))
    if streams or threads:
        trace = dealt(trace, streams=streams or None, threads=threads or None, seed=seed)
    kernel_ns = round(float(str(settings["kernel_us"])) * 1e3)
    return as_program(trace, kernel_ns=kernel_ns, paced=paced)
