"""Who is first among subjects, by how much, and whether that is a difference at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vramkit.lab.result import Report
from vramkit.lab.samples import Difference, Spread, compare


def measured(report: Report, workload: str, arm: str, quantity: str) -> dict[str, list[float]]:
    """The values of each subject that has some, in the order of the rows."""
    return {
        row.subject: row.values[quantity]
        for row in report.rows
        if (row.workload, row.arm) == (workload, arm) and row.values.get(quantity)
    }


def medians(values: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {name: Spread.of(each).median for name, each in values.items()}


@dataclass(frozen=True)
class Ranking:
    """Of a figure of which less is better."""

    first: str
    """The lowest median."""
    level: list[str]
    """Those of which it cannot be said that they are behind; the nearest first."""
    behind: dict[str, Difference]
    """The others, each compared with the first; the nearest first."""
    too_few: bool
    """Whether somebody is level only because there are too few repetitions."""


def rank(values: Mapping[str, Sequence[float]]) -> Ranking:
    """Raises ValueError without subjects."""
    middle = medians(values)
    order = sorted(middle, key=lambda name: middle[name])
    if not order:
        raise ValueError("no subject has values")
    first, *others = order
    differences = {name: compare(values[name], values[first]) for name in others}
    level = [name for name in others if differences[name].verdict != "higher"]
    behind = {name: differences[name] for name in others if name not in level}
    too_few = any(differences[name].verdict == "too few" for name in level)
    return Ranking(first, level, behind, too_few)


def listed(names: Sequence[str]) -> str:
    """`a`, `b` and `c`."""
    quoted = [f"`{name}`" for name in names]
    if len(quoted) < 2:
        return "".join(quoted)
    return f"{', '.join(quoted[:-1])} and {quoted[-1]}"


def percent(relative: float, *, sign: bool = False) -> str:
    """0.021: 2.1 %; from 100 % on without decimals, below 1 % with two."""
    digits = 0 if abs(relative) >= 0.9995 else 1 if abs(relative) >= 0.01 else 2
    return f"{relative * 100:{'+' if sign else ''}.{digits}f} %"


def difference_text(difference: Difference) -> str:
    """ "5.0 % (4.1 % to 6.2 %)"."""
    ends = percent(difference.least), percent(difference.most)
    text = percent(difference.relative)
    return text if {text} == set(ends) else f"{text} ({ends[0]} to {ends[1]})"


def ranking_text(ranking: Ranking, what: str) -> str:
    """`what`: "is fastest", or whatever is said of the first one."""
    if ranking.level:
        tied = listed([ranking.first, *ranking.level])
        why = (
            "too few repetitions to tell"
            if ranking.too_few
            else "no difference beyond the spread between"
        )
        return f"{why} {tied}"
    if not ranking.behind:
        return f"only `{ranking.first}` was measured"
    following, difference = next(iter(ranking.behind.items()))
    return (
        f"`{ranking.first}` {what}; `{following}`, the next, is above it by "
        f"{difference_text(difference)}"
    )
