"""A replay as tables and plots."""

from __future__ import annotations

from collections.abc import Iterator

from vramkit.lab.memory_plots import SIZES_NOT_DRAWN, memory_over_time, peak_maps, without_size
from vramkit.lab.replay.settings import SMALLEST, WITH_LIMIT
from vramkit.lab.result import Report, Row
from vramkit.lab.settings import Settings
from vramkit.lab.traces.programs import MOST_AHEAD
from vramkit.lab.traces.trace import Kind, Trace
from vramkit.lab.words import spread_text
from vramkit.report.blocks import Block, Table, Text
from vramkit.report.units import bytes_text, count_text

MEMORY = ("in_use", "held", "held_ratio", "average_held", "fragmentation", "moved")
TIME = ("time", "call", "native_call", "allocation_share")
FLATTERED = (
    "No kernels stand in: a block that is freed on one stream is free for all others at once. That "
    "makes allocators look better that hand memory from stream to stream."
)


# Of one trace, drawn where it is measured


def about(trace: Trace, settings: Settings) -> Text:
    by = "" if trace.source == "plain" else f", as {trace.source} wrote it"
    blocks = f"{count_text(trace.allocations, 'block')}, {bytes_text(trace.peak_in_use)} at a time"
    places = [count_text(trace.stream_count, "stream"), count_text(trace.thread_count, "thread")]
    sentences = [f"`{trace.name}`{by}: {blocks}, on {' and '.join(places)}."]
    if trace.held is not None:
        held = bytes_text(trace.held)
        sentences.append(f"The program's own allocator held {held} at most when it was recorded.")
    if trace.refused:
        failed = count_text(trace.refused, "allocation")
        sentences.append(f"{failed} that failed when it was recorded are not replayed.")
    streams, threads = settings["streams"], settings["threads"]
    over = [f"{n} {what}" for n, what in ((streams, "streams"), (threads, "threads")) if n]
    if over:
        sentences.append(f"The blocks are dealt at random over {' and '.join(over)}.")
    return Text(" ".join([*sentences, _kernels(trace, settings, dealt=bool(over))]))


def _kernels(trace: Trace, settings: Settings, *, dealt: bool) -> str:
    microseconds = float(str(settings["kernel_us"]))
    if microseconds == 0:
        return FLATTERED
    if trace.has_work and not dealt:
        launches = sum(
            what for kind, what in zip(trace.kinds, trace.what, strict=True) if kind == Kind.LAUNCH
        )
        return (
            f"{count_text(launches, 'launch', 'launches')}: each lasts an equal part of the time "
            "until the host knew that the work of its stream was complete, or "
            f"{microseconds:g} µs where it never did."
        )
    return (
        f"A kernel of {microseconds:g} µs stands in behind each allocation, on its stream; the "
        f"host is at most {MOST_AHEAD:,} of them ahead."
    )


# Of a whole report


def blocks(report: Report) -> list[Block]:
    return [block for name in workloads(report) for block in _blocks(report, name)]


def workloads(report: Report) -> list[str]:
    return list(dict.fromkeys(row.workload for row in report.rows))


def rows_of(report: Report, workload: str, arm: str = "") -> list[Row]:
    return [row for row in report.rows if (row.workload, row.arm) == (workload, arm)]


def _blocks(report: Report, workload: str) -> Iterator[Block]:
    rows = rows_of(report, workload)
    drawings = [drawing for row in rows for drawing in row.drawings]
    yield from [each for each in drawings if isinstance(each, Text)][:1]
    yield from _figures(report, rows, f"{workload}: memory, at its peaks", MEMORY)
    yield from _figures(report, rows, f"{workload}: time", TIME)
    limited = rows_of(report, workload, WITH_LIMIT)
    yield from _figures(report, limited, f"{workload}: memory, with a limit", MEMORY)
    yield from _cards(report, workload)
    yield from memory_over_time(
        f"{workload}: memory over time", without_size(rows), SIZES_NOT_DRAWN
    )
    yield from peak_maps(rows)


def _figures(
    report: Report, rows: list[Row], title: str, names: tuple[str, ...]
) -> Iterator[Table]:
    """Of all subjects that have any; a column for each quantity that one of them has."""
    rows = [row for row in rows if row.values]
    columns = {
        name: report.quantities[name] for name in names if any(name in row.values for row in rows)
    }
    if columns:
        yield Table(
            ["allocator", *(quantity.title for quantity in columns.values())],
            [
                [
                    row.subject,
                    *(
                        spread_text(quantity, row.values[name]) if name in row.values else ""
                        for name, quantity in columns.items()
                    ),
                ]
                for row in rows
            ],
            title=title,
            numeric=list(range(1, len(columns) + 1)),
        )


def _cards(report: Report, workload: str) -> Iterator[Table]:
    """Which cards each subject fits on; without those that never could be asked."""
    arms = list(dict.fromkeys(row.arm for row in report.rows if row.workload == workload))
    arms = [arm for arm in arms if arm not in ("", WITH_LIMIT)]
    cells = {
        subject: [_fits(report.row(workload, subject, arm)) for arm in arms]
        for subject in dict.fromkeys(row.subject for row in report.rows)
    }
    lines = [[subject, *row] for subject, row in cells.items() if any(row)]
    if arms and lines:
        yield Table(["allocator", *arms], lines, title=f"{workload}, on cards of other sizes")


def _fits(row: Row | None) -> str:
    if row is None or row.outcome in ("not here", "not run"):
        return ""
    if row.arm == SMALLEST and (found := row.values.get("smallest_card")):
        return bytes_text(found[-1])
    return "fits" if row.outcome == "measured" else row.outcome
