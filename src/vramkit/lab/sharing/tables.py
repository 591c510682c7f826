"""Tables and charts of a report, for the lab and for docs/sharing-model.md."""

from __future__ import annotations

from collections.abc import Iterator

from vramkit.lab.figures import figure
from vramkit.lab.result import Report
from vramkit.lab.sharing.cases import (
    FULL_DUPLEX,
    GIB,
    GIBS,
    H200,
    HALF_DUPLEX,
    MODES,
    QUANTA,
    STUDY,
    WINDOWS,
    Machine,
    SwitchCase,
    TurnsCase,
    without_eviction,
)
from vramkit.lab.sharing.claims import AXES
from vramkit.report.blocks import (
    Axis,
    BarChart,
    Block,
    LineChart,
    Series,
    Table,
    ValueBar,
)

SWITCHES = {
    "16 GB/s": SwitchCase(STUDY),
    "into an empty card": SwitchCase(STUDY, empty=True),
    "4 GiB more room": SwitchCase(STUDY, more=4 * GIB),
    "no eviction": SwitchCase(without_eviction(STUDY)),
    "no eviction and 4 GiB more room": SwitchCase(without_eviction(STUDY), more=4 * GIB),
    "no duplex loss": SwitchCase(FULL_DUPLEX),
    "one link for both directions": SwitchCase(HALF_DUPLEX),
    "H200": SwitchCase(H200),
    "H200 and 4 GiB more room": SwitchCase(H200, more=4 * GIB),
}
GRID_MODES = ("paged", "prefetch", "swap")
AXIS_MODES = ("paged", "prefetch", "prefetch_out_in", "swap")


def blocks(report: Report) -> Iterator[Block]:
    yield switch_chart(report)
    yield switches(report)
    yield moved(report)
    yield quantum_chart(report)
    for axis, cases in AXES.items():
        yield by_axis(report, axis, cases)
    for machine in (STUDY, H200):
        if figure(report, TurnsCase(machine, 4, 60, 1024).case, "swap", "share") is not None:
            yield grid(report, machine)


def switch_chart(report: Report) -> BarChart:
    """Both machines: the modes are a factor of 50 apart on the one, and 5 on the other."""
    bars = [
        ValueBar(mode, figure(report, case.case, mode, "switch"), group=group)
        for group, case in (("16 GB/s", SwitchCase(STUDY)), ("H200", SwitchCase(H200)))
        for mode in MODES
    ]
    return BarChart("A switch adds", bars, "s", "mode", better="lower", scale="log")


def quantum_chart(report: Report) -> LineChart:
    """The share by the length of the quantum."""
    series = [
        Series(
            mode,
            [
                (case.quantum, figure(report, case.case, mode, "share"))
                for case in AXES["the quantum"]
            ],
        )
        for mode in ("paged", "prefetch_out_in", "swap")
    ]
    return LineChart(
        "The time computing, by the quantum: 12 GiB at 16 GB/s, windows of 32 launches",
        series,
        Axis("quantum", "s"),
        Axis("of the time computing", "share"),
    )


def switches(report: Report) -> Table:
    """Seconds, by card and mode."""
    rows = [
        [card, *(_text(figure(report, case.case, mode, "switch")) for mode in MODES)]
        for card, case in SWITCHES.items()
    ]
    title = "Seconds that a switch adds to the first launch after it"
    return Table(["card", *MODES], rows, title, list(range(1, len(MODES) + 1)))


def moved(report: Report) -> Table:
    """GiB that a switch moves, in and out."""
    shown = {"16 GB/s": SwitchCase(STUDY), "4 GiB more room": SwitchCase(STUDY, more=4 * GIB)}
    rows = []
    for mode in MODES:
        cells = []
        for case in shown.values():
            for quantity in ("bytes_in", "bytes_out"):
                found = figure(report, case.case, mode, quantity)
                cells.append("" if found is None else f"{found / GIB:g}")
        rows.append([mode, *cells])
    columns = [f"{name}: {way}" for name in shown for way in ("in", "out")]
    return Table(["mode", *columns], rows, "GiB that a switch moves", [1, 2, 3, 4])


def by_axis(report: Report, axis: str, cases: list[TurnsCase]) -> Table:
    """Percent of the time computing, and the length of a turn by paging."""
    rows = []
    for case in cases:
        words = f"{case.gib} GiB, {case.quantum:g} s, {case.window}"
        shares = [_percent(figure(report, case.case, mode, "share")) for mode in AXIS_MODES]
        rows.append([words, *shares, _text(figure(report, case.case, "paged", "turn"), 1)])
    columns = ["case", *AXIS_MODES, "s a turn, paged"]
    title = f"Percent of the time computing, by {axis}"
    return Table(columns, rows, title, list(range(1, len(columns))))


def grid(report: Report, machine: Machine) -> Table:
    """Percent of the time computing: all amounts, quanta and windows."""
    columns = [f"{mode}, {window}" for mode in GRID_MODES for window in WINDOWS]
    rows = []
    for gib in GIBS:
        for quantum in QUANTA:
            cases = [TurnsCase(machine, gib, quantum, window).case for window in WINDOWS]
            cells = [
                _percent(figure(report, case, mode, "share"))
                for mode in GRID_MODES
                for case in cases
            ]
            rows.append([f"{gib} GiB", str(quantum), *cells])
    title = f"Percent of the time computing, at {machine.name}"
    return Table(["program", "quantum, s", *columns], rows, title, list(range(1, 11)))


def _text(value: float | None, digits: int = 4) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.2f}"
