"""Follows what `vramkit advise` says of three programs, and compares the figures that it predicts
with those that then come out.

    python benchmarks/lab_advice.py FOLDER                  # on a card, at most 400 s
    python benchmarks/lab_advice.py FOLDER --driver sim     # a trial: the program without PyTorch

Writes FOLDER/lab_advice.json, recordings and what the processes say. Called again, it does what is
not done yet.
"""

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import machine
import msgspec
import programs
from changing_shapes import say
from lab_runs import VRAMKIT, Begun, FailedError, Found, Runner, begun, parser
from msgspec import field

import vramkit.driver
from vramkit.lab.advise.advising import Advised, advise_file
from vramkit.lab.advise.rules import (
    TRUSTED,
    Advice,
    FigureUnit,
    Prediction,
    Topic,
    figure_text,
)
from vramkit.lab.samples import Spread

FILE = "lab_advice.json"
SECONDS = 400.0
SMALLER = 0.75
"""Of what a program needs: the card that is too small for it."""


class Followed(msgspec.Struct):
    """One piece of advice, and the figure that following it shows."""

    program: str
    topic: str
    verdict: str
    text: str
    what: str
    unit: FigureUnit
    bound: Literal["about", "at most", "at least"]
    predicted: float
    measured: float | None = None
    error: str = ""

    @property
    def holds(self) -> bool | None:
        if self.measured is None:
            return None
        if self.bound == "at most":
            return self.measured <= self.predicted
        if self.bound == "at least":
            return self.measured >= self.predicted
        return abs(self.measured / self.predicted - 1) <= TRUSTED


class Result(Begun):
    followed: dict[str, list[Followed]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    """Both by the name of the study."""

    @property
    def rows(self) -> list[Followed]:
        return [row for rows in self.followed.values() for row in rows]


Measure = Callable[[], float]


def wanted(advised: Advised, topic: Topic, key: str) -> tuple[Advice, Prediction]:
    for advice in advised.advice:
        for predicted in advice.predicted:
            if (advice.topic, predicted.key) == (topic, key):
                return advice, predicted
    said = ", ".join(f"{each.topic}: {each.verdict}" for each in advised.advice)
    raise FailedError(f"no advice on {topic} predicts {key!r}; there is {said}")


def follow(program: str, found: tuple[Advice, Prediction], measure: Measure) -> Followed:
    """What went wrong is in the row."""
    advice, predicted = found
    row = Followed(
        program,
        advice.topic,
        advice.verdict,
        advice.text,
        predicted.what,
        predicted.unit,
        predicted.bound,
        predicted.value,
    )
    try:
        row.measured = measure()
    except FailedError as error:
        row.error = str(error)
        say(row.error)
    return row


def budget_of(advice: Advice) -> int:
    """Bytes, as the advice says that they are to be given to offload()."""
    for line in advice.check:
        if found := re.search(r'budget="(\d+)MiB"', line):
            return int(found[1]) << 20
    raise FailedError(f"no budget in {advice.check}")


def seconds(found: Found) -> float:
    return Spread.of(found.milliseconds).median / 1e3


def held(found: Found) -> float:
    if found.held is None:
        raise FailedError("the program does not say what it held")
    return found.held


def advised(trace: Path, card: int | None = None) -> Advised:
    """On a simulated GPU in this process, which never opens a card."""
    (found,) = advise_file(trace, vramkit.driver.open("sim"), card_bytes=card)
    return found


def training(runner: Runner) -> Iterator[Followed]:
    """Another allocator; and a smaller card, with a smaller batch."""
    snapshot = runner.folder / "training.pickle"
    runner.program("training", "training", rounds=1, snapshot=snapshot)
    found = advised(snapshot)
    with_pool = {"rounds": 1, "allocator": "vramkit"}
    yield follow(
        "training",
        wanted(found, "allocator", "held"),
        lambda: held(runner.program("training_pool", "training", **with_pool)),
    )
    assert found.pooled is not None
    small = advised(snapshot, round(SMALLER * found.pooled.held))
    advice = wanted(small, "batch", "batch")
    row = follow(
        "training with the batch for a smaller card",
        advice,
        lambda: held(
            runner.program("training_part", "training", part=advice[1].value, **with_pool)
        ),
    )
    # What is predicted is that it fits with this part, so the card's room is what is compared.
    row.what, row.unit, row.predicted = "memory of the smaller card", "bytes", small.card.room
    yield row


def inference(runner: Runner) -> Iterator[Followed]:
    """Weights on the host, on a card that is too small for them."""
    snapshot = runner.folder / "inference.pickle"
    resident = runner.program("inference", "inference", snapshot=snapshot)
    small = advised(snapshot, round(SMALLER * held(resident)))
    advice = wanted(small, "offload", "pass")
    budget = budget_of(advice[0])
    found: list[Found] = []

    def offloaded() -> Found:
        if not found:
            found.append(runner.program("inference_offloaded", "inference", budget=budget))
        return found[0]

    yield follow("inference with offload()", advice, lambda: seconds(offloaded()))
    row = follow("inference with offload()", advice, lambda: held(offloaded()))
    row.what, row.unit, row.bound = "memory of the smaller card", "bytes", "at most"
    row.predicted = small.card.room
    yield row


def driver_calls(runner: Runner) -> Iterator[Followed]:
    """A pool in place of calls to the driver. The program needs no PyTorch."""
    trace = runner.folder / "driver_calls.csv.gz"
    under = [*VRAMKIT, "record", "-o", str(trace), "--"]
    runner.program("driver_calls_recorded", "driver_calls", before=under, rounds=100)
    plain = runner.program("driver_calls", "driver_calls", rounds=100)

    def saved() -> float:
        pooled = runner.program(
            "driver_calls_pool", "driver_calls", allocator="vramkit", rounds=100
        )
        return 1 - seconds(pooled) / seconds(plain)

    found = advised(trace)
    yield follow("driver_calls", wanted(found, "allocator", "saved"), saved)


def measure(runner: Runner) -> Result:
    path = runner.folder / FILE
    result = begun(path, Result(machine.collect(), runner.driver == "sim"))
    for study in (training, inference, driver_calls):
        if runner.driver == "sim" and study is not driver_calls:
            continue
        name = study.__name__
        before = result.followed.get(name, [])
        failed = result.errors.pop(name, "") or any(row.holds is None for row in before)
        if before and not failed:
            continue
        rows = result.followed[name] = []
        try:
            rows.extend(study(runner))
        except (FailedError, ValueError) as error:
            result.errors[name] = str(error)
            say(f"{name}: {error}")
        programs.write(result, path)
    return result


def table(result: Result) -> str:
    lines = [
        "| program | advice | figure | predicted | measured | holds |",
        "|---|---|---|---:|---:|---|",
    ]
    for row in result.rows:
        predicted = figure_text(row.predicted, row.unit)
        shown = row.error or "not measured"
        if row.measured is not None:
            shown = figure_text(row.measured, row.unit)
        holds = {True: "yes", False: "no", None: "-"}[row.holds]
        words = [row.program, f"{row.topic}, {row.verdict}", row.what]
        lines.append(f"| {' | '.join(words)} | {row.bound} {predicted} | {shown} | {holds} |")
    if result.simulated:
        lines += ["", "A trial on the simulated GPU: none of these figures says anything."]
    return "\n".join([*lines, *(f"{study}: {why}" for study, why in result.errors.items())])


def main() -> int:
    options = parser(__doc__ or "", SECONDS).parse_args()
    if options.again:
        (options.folder / FILE).unlink(missing_ok=True)
    result = measure(Runner(options.folder, options.driver, options.time_limit))
    programs.show(table(result))
    return 1 if result.errors or any(row.holds is None for row in result.rows) else 0


if __name__ == "__main__":
    sys.exit(main())
