"""An experiment whose subjects do what real ones may do, for tests of the run."""

from __future__ import annotations

import ctypes
import importlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from vramkit.driver import Driver
from vramkit.lab.experiment import Case, Finding, Lab, Measured, Setting, Settings, Unmeasured
from vramkit.lab.result import Quantity, Report
from vramkit.report.blocks import Block, Table, Text

CASES = [Case("first"), Case("middle", "plain"), Case("middle", "locked"), Case("last")]
SUBJECTS = {
    "good": "",
    "raises": "",
    "full": "",
    "aborts": "",
    "killed": "",
    "killed_by_another_signal": "",
    "leaves": "",
    "hangs": "",
    "ignores_the_end": "",
    "writes": "",
    "breaks_the_answers": "",
    "chatters": "",
    "cannot": "",
    "not_a_number": "",
    "unknown_quantity": "",
    "forks": "",
    "draws": "",
    "imports": "",
    "exits": "",
    "crashes": "",
    "hangs_in_c": "",
    "changes": "",
    "absent": "its package is not installed",
}
QUANTITIES = {"time": Quantity("time", "ms"), "room": Quantity("memory", "bytes")}


class Fake:
    name = "fake"
    title = "subjects that misbehave"
    question = "What does a row look like whose subject [misbehaves]?"
    quantities = QUANTITIES
    settings: Sequence[Setting] = (
        Setting("rounds", 3, "how many", least=1, most=10),
        Setting("shape", "flat", "which", choices=("flat", "deep")),
        Setting("note", "", "a file that says what was done"),
        Setting("wait", "", "a file that the hanging subject makes before it hangs"),
    )

    def simulator(self, settings: Settings) -> dict[str, object]:
        return {"data": "off", "capacity": "12GiB", "checker": "off"}

    def subjects(self, driver: Driver) -> dict[str, str]:
        return SUBJECTS

    def cases(self, settings: Settings) -> list[Case]:
        if settings["shape"] == "deep" and settings["rounds"] == 1:
            raise ValueError("a deep shape needs two rounds")
        return CASES

    def measure(self, case: Case, subject: str, lab: Lab) -> dict[str, float] | Measured:
        if note := str(lab.settings["note"]):
            with Path(note).open("a") as file:
                file.write(f"{lab.repetition} {subject} {case.name} {os.getpid()}\n")
        assert lab.driver.sim is not None
        assert lab.device.total_memory == 12 << 30 and not lab.driver.sim.settings().data
        if case.workload == "middle" and case.arm == "plain":
            misbehave(subject, lab)
            if subject == "draws":
                long = [float(point) for point in range(100_000)]
                return Measured({"time": 1.0}, {"held": long}, [Text(f"turn {lab.repetition}")])
            if subject == "changes":  # what it measures
                return {"room": 1.0} if lab.repetition % 2 else {"time": 1.0}
            if subject == "not_a_number":
                return {"time": float("nan")}
            if subject == "unknown_quantity":
                return {"heat": 1.0}
        chance = random.Random(f"{lab.seed} {lab.repetition} {case.name}")
        return {"time": chance.uniform(1, 1.1), "room": 1 << 20}

    def findings(self, report: Report) -> list[Finding]:
        measured = sum(bool(row.values) for row in report.rows)
        return [Finding("note", f"{measured} rows have figures.", "rows are counted")]

    def blocks(self, report: Report) -> list[Block]:
        return [Table(["row"], [[f"{row.workload} {row.subject}"] for row in report.rows])]


def misbehave(subject: str, lab: Lab) -> None:
    match subject:
        case "raises":
            raise RuntimeError("a subject's\nown error")
        case "full":
            lab.device.alloc(13 << 30)
        case "aborts":
            os.abort()
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "killed_by_another_signal":
            os.kill(os.getpid(), 40)
        case "leaves":
            print("no way on", file=sys.stderr, flush=True)
            os._exit(7)
        case "hangs":
            with started(lab):
                time.sleep(1000)
        case "ignores_the_end":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            with started(lab):
                time.sleep(1000)
        case "writes":
            print('{"type": "ended", "case": 0, "outcome": "measured"}\n}garbage', flush=True)
            os.write(1, b"\x00\xff\n" * 1000)
        case "breaks_the_answers":
            for number in range(3, 32):
                with suppress(OSError):
                    os.write(number, b"}garbage\n")
        case "chatters":
            for _ in range(64):
                os.write(2, b"x" * 65536)
            os.write(2, "\nlast words é\n\n".encode())
            os._exit(1)
        case "cannot":
            raise Unmeasured("it has no such operation")
        case "imports":
            importlib.import_module("no_such_package")
        case "exits":
            sys.exit("it has had enough")
        case "crashes":
            ctypes.string_at(0)
        case "hangs_in_c":
            with started(lab):
                sum(range(1 << 60))  # no other thread and no handler of Python runs
        case "forks":
            if os.fork() == 0:
                time.sleep(1000)
            os._exit(3)


@contextmanager
def started(lab: Lab) -> Iterator[None]:
    """A program of the subject's; `wait` says the numbers of both processes, and `wait`.over that
    the subject was given the time to end it."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    wait = str(lab.settings["wait"])
    Path(f"{wait}.new").write_text(f"{os.getpid()} {child.pid}")
    Path(f"{wait}.new").replace(wait)
    try:
        yield
    finally:
        child.kill()
        child.wait()
        Path(f"{wait}.over").touch()


FAKE = Fake()
