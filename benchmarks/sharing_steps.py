"""What the logs of two programs say: when the card went to the other, and how long that took.

A switch lasts from the end of the outgoing program's last step to the end of the incoming one's
first, less what a step of that program usually takes. Both ends are read behind a wait for the
card, so that a switch is right to some 20 us. What makes the first step slower than others counts.
"""

import statistics
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple


class Step(NamedTuple):
    what: str
    begin: int
    end: int


class Log(NamedTuple):
    """Of one program; times in ns."""

    pid: int
    steps: list[Step]

    @property
    def usual(self) -> float:
        """The length of a step, where nothing was in its way."""
        lengths = [step.end - step.begin for step in self.steps if step.what == "step"]
        return statistics.median(lengths) if lengths else 0.0


class Switch(NamedTuple):
    """`at`: the end of the outgoing program's last step."""

    outgoing: int
    incoming: int
    at: int
    done: int
    nanoseconds: float
    steps: int
    """Of the outgoing program, in the turn that ended."""


def read(path: Path) -> Log:
    """What is there so far; the last line may still be on its way."""
    pid, steps = 0, []
    if path.exists():
        for line in path.read_text("utf-8").split("\n")[:-1]:
            what, begin, end = line.split(" ")
            if what == "pid":
                pid = int(begin)
            else:
                steps.append(Step(what, int(begin), int(end)))
    return Log(pid, steps)


def switches(logs: list[Log]) -> list[Switch]:
    """In their order. `outgoing` and `incoming` are indices of the logs."""
    usual = [log.usual for log in logs]
    merged = sorted(
        (step.end, number, step.what) for number, log in enumerate(logs) for step in log.steps
    )
    found: list[Switch] = []
    turn = 0
    for before, after in pairwise(merged):
        turn += 1
        if before[1] == after[1]:
            continue
        took = usual[after[1]] if after[2] == "step" else 0.0
        length = max(0.0, after[0] - before[0] - took)
        found.append(Switch(before[1], after[1], before[0], after[0], length, turn))
        turn = 0
    return found


def together(logs: list[Log]) -> float:
    """The part of all steps that ended in a turn of one or two: programs that ran side by side."""
    steps = sum(len(log.steps) for log in logs)
    short = sum(each.steps for each in switches(logs) if each.steps <= 2)
    return short / steps if steps else 0.0


def span(logs: list[Log]) -> float:
    """Seconds from the first work of any of them to the last."""
    begin = min(log.steps[0].begin for log in logs)
    return (max(log.steps[-1].end for log in logs) - begin) / 1e9
