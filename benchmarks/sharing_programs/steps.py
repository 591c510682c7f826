"""What the programs of the sharing benchmark have in common: options, the loop, a log of steps.

A step ends with a wait for the card, so that its times by the host's clock (CLOCK_MONOTONIC, one
for all processes) are those of its kernels to some 20 us. Nothing here knows of vramkit.
"""

import json
import os
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Protocol


class Work(Protocol):
    def begin(self) -> None:
        """Takes the memory and writes all of it; waits for the card."""

    def step(self, number: int) -> None:
        """Ends with a wait for the card."""

    def result(self, steps: int) -> dict[str, object]:
        """`wrong`: how much of the memory is not as it must be after so many steps."""


class StepLog:
    """A line `WHAT BEGIN END` a step, in ns; written at once, without a buffer."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, what: str, begin: int, end: int) -> None:
        os.write(self._file, f"{what} {begin} {end}\n".encode())


def parse(kinds: tuple[str, ...]) -> Namespace:
    parser = ArgumentParser()
    parser.add_argument("kind", choices=kinds)
    parser.add_argument("--log", type=Path, required=True, help="of the steps")
    parser.add_argument("--bytes", type=int, required=True, help="of the card")
    parser.add_argument("--blocks", type=int, default=24, help="memory: allocations")
    parser.add_argument("--writes", type=float, default=1.0, help="memory: the part that changes")
    parser.add_argument("--batch", type=int, default=20, help="train and add: rounds of a step")
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--begin", type=Path, help="takes memory when this file is there")
    parser.add_argument("--go", type=Path, help="starts when this file is there")
    parser.add_argument("--until", type=Path, help="ends when this file is there")
    options = parser.parse_args()
    if not (options.steps or options.seconds or options.until):
        parser.error("give --steps, --seconds or --until")
    return options


def play(work: Work, options: Namespace) -> None:
    """Runs it, and prints what came out as one JSON object."""
    log = StepLog(options.log)
    log.write("pid", os.getpid(), 0)
    _wait_for(options.begin)
    begin = time.monotonic_ns()
    work.begin()
    log.write("init", begin, time.monotonic_ns())
    _wait_for(options.go)
    steps = 0
    first = before = time.monotonic_ns()
    while not _enough(options, steps, before - first):
        work.step(steps)
        now = time.monotonic_ns()
        log.write("step", before, now)
        before = now
        steps += 1
    print(json.dumps({"steps": steps, "begin": first, "end": before, **work.result(steps)}))


def _wait_for(file: Path | None) -> None:
    while file and not file.exists():
        time.sleep(0.005)


def _enough(options: Namespace, steps: int, nanoseconds: int) -> bool:
    if options.until and options.until.exists():
        return True
    if options.steps:
        return bool(steps >= options.steps)
    return bool(options.seconds) and nanoseconds >= options.seconds * 1e9
