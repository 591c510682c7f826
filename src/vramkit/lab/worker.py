"""The process that measures: `python -m vramkit.lab.worker`, started by run.py.

It reads an Order from stdin and writes a line of JSON for each thing that happens. What an
allocator or a framework prints goes to stderr.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from vramkit.lab.experiment import Case, Lab, Unmeasured
from vramkit.lab.result import Outcome

if TYPE_CHECKING:
    from vramkit.driver import Driver


class Order(msgspec.Struct, frozen=True):
    """Measure these cases of one subject, one repetition each."""

    experiment: str
    subject: str
    cases: list[Case]
    driver: str
    """As vramkit.driver.open() takes it."""
    seed: int
    repetition: int
    settings: dict[str, str | int | float | bool | list[str]]


class Began(msgspec.Struct, frozen=True, tag="began"):
    case: int


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    case: int
    outcome: Outcome
    values: dict[str, float] = {}
    why: str = ""


def main() -> int:
    # Nobody else may write among the lines.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    measure_all(order, answers)
    return 0


def measure_all(order: Order, answers: BinaryIO) -> None:
    from vramkit.lab.catalog import EXPERIMENTS

    def tell(what: Began | Ended) -> None:
        answers.write(msgspec.json.encode(what) + b"\n")
        answers.flush()

    experiment = EXPERIMENTS[order.experiment]
    lab = open_lab(order)
    for index, case in enumerate(order.cases):
        tell(Began(index))
        if index and lab.driver.sim is not None:
            lab.driver.sim.apply(experiment.simulator(order.settings))
        try:
            values = experiment.measure(case, order.subject, lab)
        except Unmeasured as error:
            tell(Ended(index, "not here", why=str(error)))
        except Exception as error:
            tell(Ended(index, _outcome(error), why=_words(error)))
        else:
            tell(Ended(index, "measured", values))


def open_lab(order: Order) -> Lab:
    from vramkit import driver as drivers
    from vramkit.lab.catalog import EXPERIMENTS

    driver: Driver = drivers.open(order.driver)
    if driver.sim is not None:
        driver.sim.apply(EXPERIMENTS[order.experiment].simulator(order.settings))
    device = int(str(order.settings.get("device", 0)))
    return Lab(driver, driver.device(device), order.seed, order.repetition, order.settings)


def _outcome(error: Exception) -> Outcome:
    from vramkit.driver import OutOfMemoryError

    return "out of memory" if isinstance(error, OutOfMemoryError) else "failed"


def _words(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
