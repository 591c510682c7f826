"""The process that measures: `python -m vramkit.lab.worker`, started by turn.py.

It reads an Order from stdin and writes a line of JSON for each thing that happens. What an
allocator or a framework prints goes to stderr. SIGTERM ends it as an exception would, so that
what a case has started is stopped; it dies with the process that started it.
"""

from __future__ import annotations

import ctypes
import gc
import math
import os
import signal
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from vramkit.lab.catalog import find
from vramkit.lab.experiment import Case, Lab, Measured, Unmeasured
from vramkit.lab.result import Outcome
from vramkit.lab.settings import Value
from vramkit.report.blocks import Block

if TYPE_CHECKING:
    from vramkit.driver import Driver
    from vramkit.lab.experiment import Experiment

PR_SET_PDEATHSIG = 1


class Order(msgspec.Struct, frozen=True):
    """Measure these cases of one subject, one repetition each."""

    experiment: str
    """As catalog.find() takes it."""
    subject: str
    cases: list[Case]
    driver: str
    """As vramkit.driver.open() takes it."""
    device: int
    seed: int
    repetition: int
    settings: dict[str, Value]
    parent: int
    """The process that started this one."""


class Began(msgspec.Struct, frozen=True, tag="began"):
    case: int


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    case: int
    outcome: Outcome
    values: dict[str, float] = {}
    why: str = ""
    series: dict[str, list[float]] = {}
    drawings: list[Block] = []


Answer = Began | Ended


def main() -> int:
    # Nobody else may write among the lines.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != order.parent:
        return 1  # it died before the call
    measure_all(order, answers)
    return 0


def measure_all(order: Order, answers: BinaryIO) -> None:
    """Until a case fails: whatever it left behind must not meet the next one."""

    def tell(what: Answer) -> None:
        answers.write(msgspec.json.encode(what) + b"\n")
        answers.flush()

    experiment = find(order.experiment)
    lab = open_lab(order)
    for index, case in enumerate(order.cases):
        gc.collect()
        simulate(experiment, order.settings, order.driver, lab.driver)
        tell(Began(index))
        try:
            found = checked(experiment, experiment.measure(case, order.subject, lab))
        except Unmeasured as error:
            tell(Ended(index, "not here", why=str(error)))
        except Exception as error:
            tell(Ended(index, _outcome(error), why=_words(error)))
            return
        else:
            values, series, drawings = found.values, found.series, found.drawings
            tell(Ended(index, "measured", values, series=series, drawings=drawings))


def open_lab(order: Order) -> Lab:
    from vramkit import driver as drivers

    driver = drivers.open(order.driver)
    # It may have more devices.
    simulate(find(order.experiment), order.settings, order.driver, driver)
    device = driver.device(order.device)
    return Lab(driver, device, order.seed, order.repetition, order.settings)


def simulate(
    experiment: Experiment, settings: Mapping[str, Value], spec: str, driver: Driver
) -> None:
    """A fresh simulated GPU as the experiment wants it; a real card stays as it is."""
    from vramkit.driver.opening import reset_simulator

    if driver.sim is not None:
        reset_simulator(driver, spec, experiment.simulator(settings))


def checked(experiment: Experiment, found: dict[str, float] | Measured) -> Measured:
    """Raises ValueError for values that the experiment may not have."""
    if not isinstance(found, Measured):
        found = Measured(found)
    if unknown := found.values.keys() - experiment.quantities.keys():
        raise ValueError(f"measured {', '.join(sorted(unknown))}, which is no quantity")
    for name, value in found.values.items():
        if not math.isfinite(value):
            raise ValueError(f"{name} is {value}")
    for name, points in found.series.items():
        if not all(map(math.isfinite, points)):
            raise ValueError(f"the series {name} has a value that is not finite")
    values = {name: float(value) for name, value in found.values.items()}
    return Measured(values, found.series, found.drawings)


def _outcome(error: Exception) -> Outcome:
    from vramkit.driver import OutOfMemoryError

    return "out of memory" if isinstance(error, OutOfMemoryError) else "failed"


def _words(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
