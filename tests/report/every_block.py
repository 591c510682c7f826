"""A document with every kind of block, and the charts that are hard to draw."""

from __future__ import annotations

import math
import random

from vramkit.report.blocks import (
    Axis,
    Bar,
    BarChart,
    Bars,
    Block,
    Callout,
    Code,
    Conflict,
    Document,
    Figure,
    Figures,
    Lane,
    Level,
    LineChart,
    MapRow,
    MemoryMap,
    MemoryState,
    Run,
    Section,
    Series,
    Span,
    Table,
    Text,
    Timeline,
    ValueBar,
)

GIB = 1 << 30
LONG = "cudaMallocAsync with release_threshold=UINT64_MAX and reuse_allow_internal_dependencies"
NASTY = "<b>&amp; \"quoted\" 'text'</b>"


def other_blocks() -> list[Block]:
    # The states of a memory map are few and typed; a list of pairs keeps them so.
    states: list[tuple[MemoryState, int]] = [("cached", 3), ("waiting", 2), ("idle", 5)]
    runs = [Run(40, 8, "live", "in use", 0), Run(1, 3, "cached", "both", 1)]
    runs += [Run(cells, 0, state, state) for state, cells in states]
    nbytes: dict[MemoryState, int] = {"live": 40 << 16, "cached": 4 << 16, "idle": 5 << 16}
    return [
        Text("A paragraph with `code` in it and <angle> brackets."),
        Text(f"Again with `vramkit run --set {','.join(['name=value'] * 9)}`."),
        Callout("plain", "Plain", "Neither good nor bad."),
        Callout("good", "Good", "All went well."),
        Callout("note", "Note"),
        Callout("warning", "Warning", "Look at `this`."),
        Callout("bad", "Bad", "It went wrong."),
        Figures(
            [
                Figure("12.3 ms", "a time"),
                Figure("41 %", "a share", "good"),
                Figure("3", "notes", "note"),
                Figure("2", "warnings", "warning"),
                Figure("1", "errors", "bad"),
            ]
        ),
        Table(["name", "value"], [["a `name`", "1.00 GiB"], [LONG, "12 ms"]], "A table", [1]),
        Table(["", ""], [["pairs", "of what and how much"], ["second", "row"]]),
        Code(
            "A program", "def f():\n    return 'text', 1  # why\n" + "x" * 120, marked={2: "here"}
        ),
        Timeline(
            "A timeline",
            [
                Lane("copies", [Span("copy 1", 0, 2, "copy_in"), Span("out", 2, 4, "copy_out")]),
                Lane("compute", [Span("kernel", 2, 4, "kernel"), Span("other", 4, 6, "other")]),
            ],
            8.0,
            "Its caption.",
        ),
        Bars(
            "Bytes by state",
            "what",
            [Bar("one", {"live": GIB, "idle": GIB // 2}), Bar(LONG, {"cached": GIB})],
        ),
        MemoryMap("A map", 64, 1 << 16, [MapRow(0x7F0000000000, runs, nbytes)], ["a", "b"]),
        Conflict("Race", "Two accesses", [("`a` writes", "x.py:1"), ("`b`", "")], "an event"),
    ]


def bar_charts() -> list[Block]:
    allocators = ["Pool", "DirectResource", "AsyncResource", "FixedPool", "RMM pool", "RMM arena"]
    times = [12.31, 176.2, 14.02, 12.9, 13.4, None]
    bars = [
        ValueBar(
            name,
            time,
            time and time * 0.93,
            time and time * (1.25 if index == 2 else 1.05),
            tone="note" if index == 0 else "plain",
            why="" if time else "out of memory: 3.50 GiB asked, 1.20 GiB free",
        )
        for index, (name, time) in enumerate(zip(allocators, times, strict=True))
    ]
    workloads = ["extreme sizes", "high concurrency", "fast churn"]
    grouped = [
        ValueBar(
            name,
            20 + 9 * at + 3 * index,
            18 + 9 * at + 3 * index,
            24 + 9 * at + 3 * index,
            group=load,
        )
        for at, load in enumerate(workloads)
        for index, name in enumerate(allocators[:4])
    ]
    series = [
        ValueBar(
            name,
            None if (index, at) == (2, 1) else (3.0 + index) * (1 + at / 3) * GIB,
            series=arm,
            why="not here: needs a card" if (index, at) == (2, 1) else "",
        )
        for index, name in enumerate(allocators[:4])
        for at, arm in enumerate(["in use", "held at the end", "held on average"])
    ]
    many = [
        ValueBar(f"policy {number}", number * 7.7, series=f"s{number}") for number in range(1, 21)
    ]
    return [
        BarChart("Time of one round", bars, "ms", "allocator", "lower", caption="Median of 7."),
        BarChart("The same on a logarithmic scale", bars, "ms", "allocator", "lower", "log"),
        BarChart("By workload", grouped, "us", "allocator", "lower"),
        BarChart("Three series", series, "bytes", "allocator", "lower"),
        BarChart("Twenty series", many, "bytes/s", "policy", "higher"),
        BarChart("Wide ticks", [ValueBar("a link", 59.9e9), ValueBar("b", 3e9)], "bytes/s"),
        BarChart("No bars", [], "ms"),
        BarChart("No values", [ValueBar("a", None, why="timed out"), ValueBar("b", None)], "ms"),
        BarChart("Zeros", [ValueBar("a", 0, 0, 0), ValueBar("b", 0)], "count"),
        BarChart(
            "Zero on a logarithmic scale", [ValueBar("a", 0), ValueBar("b", 7)], "us", scale="log"
        ),
        BarChart("One value", [ValueBar("only", 1.5)], "ratio"),
        BarChart("Equal values", [ValueBar(name, 0.42) for name in "ab"], "share"),
        BarChart(
            f"Long texts {NASTY}",
            [
                ValueBar(LONG, 3 * GIB, 2 * GIB, 4 * GIB, tone="good"),
                ValueBar(NASTY, 2 * GIB, tone="warning", why="a note on it"),
                ValueBar("x" * 90, GIB, tone="bad"),
            ],
            "bytes",
            NASTY,
        ),
    ]


def memory_over_time(seed: int, points: int, height: float) -> list[tuple[float, float | None]]:
    draw = random.Random(seed)
    level = 0.0
    result: list[tuple[float, float | None]] = []
    for index in range(points):
        level = max(0.0, level + draw.uniform(-0.02, 0.0206) * height)
        level = min(level, height)
        result.append((index * 2.5e-4, level))
    return result


def line_charts() -> list[Block]:
    names = ["Pool", "AsyncResource", "RMM arena", "PyTorch"]
    over_time = [
        Series(name, memory_over_time(seed, 6000, (40 + 9 * seed) * GIB), step=True)
        for seed, name in enumerate(names)
    ]
    depth = [1, 2, 3, 4, 6, 8]
    predicted = [(float(each), 210 / (1 + each / 2)) for each in depth]
    measured: list[tuple[float, float | None]] = [(x, y * 1.07 + x) for x, y in predicted]
    band = [(y * 0.9, y * 1.12) for _, y in measured if y is not None]
    sizes: list[tuple[float, float | None]] = [
        (float(1 << power), 2.6e-6 + (1 << power) / 55e9) for power in range(8, 31)
    ]
    gap: list[tuple[float, float | None]] = [(1, 4.0), (2, None), (3, 5.0), (4, 5.5), (5, None)]
    twenty = [
        Series(f"series {each}", [(x, math.sin(x + each / 4) + 2) for x in range(8)])
        for each in range(20)
    ]
    return [
        LineChart(
            "Memory held over time",
            over_time,
            Axis("time", "s"),
            Axis("held", "bytes"),
            [Level("size of the card", 80 * GIB, "bad")],
            "Each allocator on the same trace.",
        ),
        LineChart(
            "Predicted against measured",
            [Series("predicted", list(predicted)), Series("measured", measured, band)],
            Axis("depth"),
            Axis("time of a token", "ms"),
            [Level("bound of the link", 41.0)],
        ),
        LineChart(
            "Sizes, logarithmic",
            [Series("copy", sizes)],
            Axis("size", "bytes", "log"),
            Axis("time", "s", "log"),
        ),
        LineChart("With gaps", [Series("a", gap, step=True)], Axis("x"), Axis("y", "share")),
        LineChart("Twenty series", twenty, Axis("turn"), Axis("rate", "bytes/s", from_zero=False)),
        LineChart(
            "Wide ticks", [Series("a", [(0, 0), (69e9, 7)])], Axis("rate", "bytes/s"), Axis("y")
        ),
        LineChart("No points", [Series("none", [])], Axis("x"), Axis("y")),
        LineChart(
            "One point", [Series("one", [(3, 2.0)], [(1.0, 3.0)])], Axis("x", "us"), Axis("y", "ms")
        ),
        LineChart(
            "Zeros", [Series("a", [(x, 0.0) for x in range(3)])], Axis("x"), Axis("y", "bytes")
        ),
        LineChart(
            f"Equal, negative and long texts {NASTY}",
            [
                Series(LONG, [(0, 5.0), (1, 5.0)]),
                Series(NASTY, [(0, -5.0), (1, -4.0)]),
                Series("at the same end", [(0, 3.0), (1, 5.0)]),
            ],
            Axis(NASTY, "s"),
            Axis(LONG, "ratio"),
        ),
    ]


def every_block() -> Document:
    return Document(
        "Every kind of block",
        "A page with `everything` that a report can show.",
        [("Card", "simulated h200"), ("Date", "2026-11-18")],
        [
            Section("Blocks", other_blocks()),
            Section("Bar charts", bar_charts()),
            Section("Line charts", line_charts()),
        ],
        simulated="h200",
    )
