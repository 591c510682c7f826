"""What is measured: each case runs programs in sessions of its own and fills one row."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from sharing_report import Row
from sharing_scale import Scale
from sharing_session import Program, Sample, Session, session
from sharing_steps import Log, Switch, span, switches, together

FIRST = 2  # switches in which a program moves out for the first time


@dataclass(frozen=True)
class Bench:
    """What all cases are given. `most`: CLOCK_MONOTONIC seconds at which a case must have ended."""

    driver: str
    scale: Scale
    torch: bool
    repetitions: int
    most: float

    def session(self) -> Any:
        return session(self.driver, self.scale, self.torch, self.most)


# A program beside itself, natively and under the gate


def loop_seconds(printed: list[dict[str, Any]]) -> float:
    ends, begins = [each["end"] for each in printed], [each["begin"] for each in printed]
    return float(max(ends) - min(begins)) / 1e9


def calibrated(made: Session, kind: str, *options: object) -> int:
    """Steps that fill the time of a loop; also what warms caches of files and kernels."""
    (found,) = made.ended(made.start(kind, *options, "--seconds", made.scale.loop))
    return max(2, int(found["steps"]))


def compared(row: Row, bench: Bench, count: int, kind: str, *options: object, steps: int) -> None:
    """`count` programs at once, natively and shared in turns; the row has the median over the
    repetitions of shared / native. Those of a repetition start together, since that takes longer
    than what is measured, and wait."""
    loops: dict[str, list[float]] = {"": [], "swap": []}
    with bench.session() as made:
        made.start_daemon()
        steps = steps or calibrated(made, kind, *options)
        results = set()
        for number in range(bench.repetitions):
            modes = list(loops) if number % 2 == 0 else list(reversed(loops))
            turns = []
            for mode in modes:
                go = made.folder / f"go-{number}{mode}"
                words = (*options, "--steps", steps, "--go", go)
                started = [made.start(kind, *words, mode=mode) for _ in range(count)]
                turns.append((mode, go, started))
            for _, _, started in turns:
                made.until(lambda s=started: all(each.log.steps for each in s), "they are ready")
            for mode, go, started in turns:
                go.touch()
                printed = made.ended(*started)
                loops[mode].append(loop_seconds(printed))
                results |= {str(each.get("result")) for each in printed}
    ratios = [shared / native for native, shared in zip(loops[""], loops["swap"], strict=True)]
    row.take(statistics.median(ratios))
    row.details |= {
        "native_seconds": loops[""],
        "shared_seconds": loops["swap"],
        "ratios": ratios,
        "steps": steps,
        "results_equal": len(results) == 1,
    }
    if len(results) != 1:
        row.error = "results differ between native and shared runs"


def alone(row: Row, bench: Bench) -> None:
    compared(row, bench, 1, "train", "--bytes", bench.scale.train, steps=0)


def additions(row: Row, bench: Bench) -> None:
    batch = max(1, bench.scale.additions // 40)
    words = ("--bytes", bench.scale.program, "--batch", batch)
    compared(row, bench, 1, "add", *words, steps=bench.scale.additions // batch)
    row.details["additions"] = bench.scale.additions


def side_by_side(row: Row, bench: Bench) -> None:
    compared(row, bench, 2, "train", "--bytes", bench.scale.train, steps=0)


# Switches between two programs


@dataclass(frozen=True)
class Pair:
    """Two programs that took turns."""

    needs: int
    budget: int
    switches: list[Switch]
    moved: list[tuple[int, int]]
    """Bytes out and in during each switch and up to the next one."""
    together: float
    seconds: float
    steps: int
    daemon_seconds: float | None

    @property
    def later(self) -> list[float]:
        return [each.nanoseconds / 1e9 for each in self.switches[FIRST:]]

    def details(self) -> dict[str, Any]:
        later = self.moved[FIRST:]
        return {
            "first_seconds": [each.nanoseconds / 1e9 for each in self.switches[:FIRST]],
            "later_seconds": self.later,
            "first_moved": self.moved[:FIRST],
            "later_moved_out": mean([out for out, _ in later]),
            "later_moved_in": mean([into for _, into in later]),
            "needs_bytes": self.needs,
            "budget_bytes": self.budget,
            "shortfall_bytes": 2 * self.needs - self.budget,
            "steps_per_second": self.steps / self.seconds,
            "steps_side_by_side": self.together,
            "daemon_switch_seconds": self.daemon_seconds,
        }


def mean(values: list[int]) -> float | None:
    return statistics.fmean(values) if values else None


def take_turns(
    bench: Bench,
    budget: Callable[[int], float],
    *,
    writes: float = 1.0,
    mode: str = "swap",
    nbytes: int = 0,
) -> Pair:
    """Runs two programs until they have switched often enough. `budget`: for what one needs."""
    scale = bench.scale
    nbytes = nbytes or scale.program
    with bench.session() as made:
        made.start_daemon(quantum=scale.turn)
        stop = made.folder / "stop"
        words = ("--bytes", nbytes, "--writes", writes, "--until", stop)
        first = made.start("memory", *words, mode=mode)
        # Its start takes as long as the first one's; it takes memory when the budget is known.
        begin = made.folder / "begin"
        second = made.start("memory", *words, "--begin", begin, mode=mode)
        made.until(lambda: len(first.log.steps) > 2, "the first program works")
        made.until(lambda: needed(made, first) >= nbytes, "the daemon knows its memory")
        needs = needed(made, first)
        made.configure(budget=int(budget(needs)))
        begin.touch()
        both = [first, second]
        wanted = FIRST + scale.switches

        def often_enough() -> bool:
            made.status()
            return len(switches([each.log for each in both])) > wanted

        # Not too often: the daemon that answers also decides on turns.
        made.until(often_enough, f"{wanted} switches", 0.05)
        status = made.status()
        stop.touch()
        made.ended(*both)
        logs = [each.log for each in both]
        found = switches(logs)
        working = [step for log in logs for step in log.steps if step.what == "step"]
        return Pair(
            needs=needs,
            budget=int(budget(needs)),
            switches=found[:wanted],
            moved=moved(found[: wanted + 1], logs, made.samples),
            together=together(logs),
            seconds=span(logs),
            steps=len(working),
            daemon_seconds=status.daemon.switch_seconds,
        )


def needed(made: Session, program: Program) -> int:
    """Bytes of the card that the daemon knows to be its."""
    made.status()
    mine = [each for each in made.samples if each.pid == program.log.pid]
    return mine[-1].resident + mine[-1].swapped + mine[-1].fixed if mine else 0


def moved(found: list[Switch], logs: list[Log], samples: list[Sample]) -> list[tuple[int, int]]:
    """What was counted between the starts of two switches: one less than there are switches."""

    def total(at: int) -> tuple[int, int]:
        last: dict[int, Sample] = {}
        for each in samples:
            if each.at <= at:
                last[each.pid] = each
        mine = [last[log.pid] for log in logs if log.pid in last]
        return sum(each.out_bytes for each in mine), sum(each.in_bytes for each in mine)

    totals = [total(each.at) for each in found]
    return [(after[0] - before[0], after[1] - before[1]) for before, after in pairwise(totals)]


def switch(row: Row, bench: Bench, budget: Callable[[int], float], **words: Any) -> Pair:
    pair = take_turns(bench, budget, **words)
    row.take(statistics.median(pair.later))
    row.details |= pair.details()
    return pair


def switch_full(row: Row, bench: Bench) -> None:
    switch(row, bench, lambda needs: needs + bench.scale.slack)


def switch_unchanged(row: Row, bench: Bench) -> None:
    switch(row, bench, lambda needs: needs + bench.scale.slack, writes=0.0)


def switch_third(row: Row, bench: Bench) -> None:
    """12 GiB and 12 GiB in 20."""
    switch(row, bench, lambda needs: needs * 20 / 12)


def moves_shortfall(row: Row, bench: Bench, writes: float) -> None:
    """The part of both programs' memory that a switch moves, both ways together."""
    pair = switch(row, bench, lambda needs: 2 * needs / 1.1, writes=writes)
    later = pair.moved[FIRST:]
    full = 2 * bench.scale.program
    row.details["median_seconds"] = row.value
    row.take(statistics.fmean(out + into for out, into in later) / full)
    row.details["least_possible"] = 2 * (2 * pair.needs - pair.budget) / full


def tenth(row: Row, bench: Bench) -> None:
    moves_shortfall(row, bench, 1.0)


def tenth_half_unchanged(row: Row, bench: Bench) -> None:
    moves_shortfall(row, bench, 0.5)


def mode(name: str) -> Callable[[Row, Bench], None]:
    def measure(row: Row, bench: Bench) -> None:
        size = bench.scale.managed
        switch(row, bench, lambda needs: needs * 1.5, mode=name, nbytes=size)

    return measure


# Totals


def total(row: Row, bench: Bench, quantum: float, longer: int) -> tuple[float, float]:
    """Seconds of two programs that share a card that holds one and two thirds, and of one after
    the other. With `longer` the latter is computed: so many times the steps of those that ran."""
    scale = bench.scale
    words = ("memory", "--bytes", scale.program)
    with bench.session() as made:
        one = made.start(*words, "--seconds", scale.work)
        (found,) = made.ended(one)
        steps = int(found["steps"])
        other = made.start(*words, "--steps", steps)
        made.ended(other)
        after = sum(span([each.log]) for each in (one, other))
        if longer > 1:
            working = (steps * each.log.usual * (longer - 1) / 1e9 for each in (one, other))
            after += sum(working)
        budget = scale.program * 20 // 12
        made.start_daemon(quantum=quantum, budget=budget)
        both = [made.start(*words, "--steps", steps * longer, mode="swap") for _ in range(2)]
        made.ended(*both)
        logs = [each.log for each in both]
        shared = span(logs)
        found_switches = switches(logs)
        native_step = statistics.mean(each.log.usual for each in (one, other)) / 1e6
    row.details |= {
        "one_after_the_other_seconds": after,
        "one_after_the_other": "computed" if longer > 1 else "measured",
        "shared_seconds": shared,
        "switches": len(found_switches),
        "switching_seconds": [each.nanoseconds / 1e9 for each in found_switches],
        "init_seconds": [
            [(step.end - step.begin) / 1e9 for step in log.steps if step.what == "init"]
            for log in (one.log, other.log, *logs)
        ],
        "steps_side_by_side": together(logs),
        "quantum_seconds": quantum,
        "budget_bytes": budget,
        "steps": 2 * steps * longer,
        "native_step_ms": native_step,
        "shared_step_ms": statistics.mean(log.usual for log in logs) / 1e6,
    }
    return shared, after


def total_short(row: Row, bench: Bench) -> None:
    shared, after = total(row, bench, bench.scale.quantum[0], 1)
    row.take(shared / after)


def efficiency_long(row: Row, bench: Bench) -> None:
    shared, after = total(row, bench, bench.scale.quantum[1], bench.scale.longer)
    row.take(after / shared)
