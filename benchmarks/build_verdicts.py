"""What two builds measured in the same row, beside each other, and the verdict."""

import msgspec
from allocator_table import figure, spread
from rows import Row

# Fewer passes say too little about the spread.
FEWEST_PASSES = 5
# Medians this close are one, however narrow the spread: a build moves code about in memory.
CLOSE = 0.03


class Side(Row):
    """All values of one build, in the order of the passes."""

    passes: int = 0

    def add(self, row: Row) -> None:
        """One more pass. Every outcome and error is kept once."""
        if row.values:
            self.passes += 1
            self.take([*self.values, *row.values])
        for mine, new in (("outcome", row.outcome), ("error", row.error)):
            said = list(filter(None, getattr(self, mine).split("; ")))
            if new and new not in said:
                setattr(self, mine, "; ".join([*said, new]))


class Comparison(msgspec.Struct):
    """One row of both builds. The ratio is new / old, None where the old median is not above 0."""

    workload: str
    allocator: str
    unit: str
    old: Side
    new: Side
    ratio: float | None = None
    verdict: str = ""
    failed: bool = False
    """Slower, or measured in the old build and not in the new one."""

    def judge(self) -> None:
        """From the passes so far. Less is better in all rows."""
        old, new = self.old, self.new
        self.ratio, self.failed = None, False
        if new.median is None or old.median is None:
            self.failed = old.median is not None
            lacking = [
                f"no figure in the {name} build: {side.error or side.outcome or 'not run'}"
                for name, side in (("old", old), ("new", new))
                if side.median is None
            ]
            self.verdict = "; ".join(lacking)
            return
        self.ratio = new.median / old.median if old.median > 0 else None
        worse, better = ("more", "less") if self.unit == "MiB" else ("slower", "faster")
        if min(old.passes, new.passes) < FEWEST_PASSES:
            self.verdict = (
                f"not judged: {old.passes} and {new.passes} passes, {FEWEST_PASSES} are needed"
            )
        elif _beyond(old, new):
            self.failed = True
            self.verdict = f"{worse} beyond the spread"
        elif _beyond(new, old):
            self.verdict = f"{better} beyond the spread"
        else:
            self.verdict = "same within the spread"
        if old.outcome != new.outcome:
            self.verdict += f"; outcome was '{old.outcome}' and is '{new.outcome}'"
        if new.error:
            self.failed = True
            self.verdict += f"; failed at times: {new.error}"


def _beyond(less: Row, more: Row) -> bool:
    """The intervals do not overlap, and the medians are not close."""
    if less.p90 is None or more.p10 is None or less.median is None or more.median is None:
        return False
    return more.p10 > less.p90 and more.median - less.median > CLOSE * abs(less.median)


class Comparisons:
    """All rows, in the order in which they were first seen."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], Comparison] = {}

    def add(self, build: str, rows: list[Row]) -> None:
        """What one pass of the "old" or the "new" build measured."""
        for row in rows:
            names = (row.workload, row.allocator, row.unit)
            at = self._found.setdefault(names[:2], Comparison(*names, Side(*names), Side(*names)))
            side: Side = at.old if build == "old" else at.new
            side.add(row)

    def judged(self) -> list[Comparison]:
        for comparison in self._found.values():
            comparison.judge()
        return list(self._found.values())


def markdown(comparisons: list[Comparison]) -> str:
    lines = [
        "| row | old (p10 to p90) | new (p10 to p90) | new / old | verdict |",
        "|---|---:|---:|---:|---|",
    ]
    for each in comparisons:
        cells = [f"{figure(side.median, each.unit)}{spread(side)}" for side in (each.old, each.new)]
        ratio = "-" if each.ratio is None else f"{each.ratio:.3f}"
        name = f"{each.allocator}/{each.workload}"
        lines.append(f"| {name} | {cells[0]} | {cells[1]} | {ratio} | {each.verdict} |")
    return "\n".join(lines)
