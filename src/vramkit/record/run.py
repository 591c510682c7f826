"""Runs a program under the gate, and writes what it allocated as one trace."""

from __future__ import annotations

import gzip
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from vramkit.launch import run_program
from vramkit.launch.gate import gate_launch
from vramkit.record.lines import Converter
from vramkit.record.raw import RawTrace, read_raw
from vramkit.record.result import ProcessSummary, RecordResult

FIRST_LINE = "# vramkit trace 2"


def record_program(program: Sequence[str], output: Path, *, capture: bool = False) -> RecordResult:
    """Runs the program to its end, and writes its trace; compressed where `output` ends with .gz.

    Its standard streams are the caller's, or are captured. The driver is the one that the program
    would get, or the simulated GPU where VRAMKIT_DRIVER says so. Raises
    vramkit.launch.LaunchError for a program that cannot be started.
    """
    output = output.absolute()
    with tempfile.TemporaryDirectory(prefix=".vramkit-record-", dir=_beside(output)) as folder:
        with gate_launch(program, {"VRAMKIT_GATE_TRACE": folder}) as launch:
            ended = run_program(launch, capture=capture)
        summaries = write_trace(read_all(Path(folder)), output)
    return RecordResult(
        program=list(program),
        status=ended.status,
        signal=ended.signal,
        trace=output,
        processes=summaries,
        stdout=ended.stdout,
        stderr=ended.stderr,
    )


def _beside(output: Path) -> Path | None:
    """The folder of the trace, since it has to fit there anyway and temporary folders are often in
    memory; None, hence a temporary one, for a device or where no folder can be made."""
    plain = output.is_file() or not output.exists()
    return output.parent if plain and os.access(output.parent, os.W_OK | os.X_OK) else None


def read_all(folder: Path) -> list[RawTrace]:
    """What the processes have recorded, in the order in which they began to; each wrote a file."""
    traces = [read_raw(path) for path in folder.glob("*.gate")]
    return sorted(traces, key=lambda trace: trace.start_unix_ns)


def write_trace(traces: Iterable[RawTrace], output: Path) -> list[ProcessSummary]:
    summaries = []
    first_block = 0
    with _opened(output) as file:
        file.write(f"{FIRST_LINE}\n".encode())
        for trace in traces:
            converter = Converter(trace, first_block)
            for line in converter.lines():
                file.write(f"{line}\n".encode("ascii", "replace"))
            first_block = converter.next_block
            summaries.append(converter.summary())
    return summaries


@contextmanager
def _opened(output: Path) -> Iterator[BinaryIO]:
    with output.open("wb") as raw:
        if output.suffix != ".gz":
            yield raw
            return
        with gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed:
            yield packed  # type: ignore[misc]
