"""Starts the programs of lab_programs.py and the commands of the lab, and keeps what they say."""

import sys
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import children
import machine
import msgspec
import programs
from changing_shapes import environment, say
from changing_shapes_rows import NATIVE
from frameworks_rows import last_words

PROGRAMS = ("training", "inference", "driver_calls", "trace")
TRIAL = programs.ROOT / "tests" / "data" / "lstm_text.csv.gz"
"""Takes the place of training where there is no card."""
SIMULATOR = "profile=h200,clock=wall,capacity=64GiB,data=off,checker=off"
"""Of a trial: times of a recording are those of the host, so those of the card are to be real."""
PROCESS_SECONDS = 180.0
LEAST_SECONDS = 5.0
VRAMKIT = (sys.executable, "-m", "vramkit.cli")


class Found(msgspec.Struct):
    """What a program says of itself."""

    milliseconds: list[float]
    """Of each round but the first."""
    held: int | None
    """Bytes that its allocator had taken at most."""
    error: str = ""


class FailedError(RuntimeError):
    """A process that did not do what it was to do, with its last words."""


class Runner:
    """Within the time limit of the whole; each process has a log."""

    def __init__(self, folder: Path, driver: str, seconds: float) -> None:
        self.folder, self.driver = folder, driver
        folder.mkdir(parents=True, exist_ok=True)
        self._deadline = time.monotonic() + seconds

    @property
    def left(self) -> float:
        return self._deadline - time.monotonic()

    def program(
        self, name: str, program: str, *, before: Sequence[str] = (), **options: object
    ) -> Found:
        """`before`: the command under which it runs. Raises FailedError."""
        found = self.folder / f"{name}.json"
        found.unlink(missing_ok=True)
        script = str(Path(__file__).with_name("lab_programs.py"))
        command = [*before, sys.executable, script, str(found), program]
        for option, value in (options | {"driver": self.driver}).items():
            command += [f"--{option}", str(value)]
        allocator = str(options.get("allocator", NATIVE))
        self._run(name, command, environment(allocator) | {"VRAMKIT_SIM": SIMULATOR})
        answer = msgspec.json.decode(found.read_bytes(), type=Found)
        if answer.error:
            raise FailedError(f"{name}: {answer.error}")
        return answer

    def vramkit(self, name: str, *words: object) -> None:
        """Raises FailedError."""
        self._run(name, [*VRAMKIT, *map(str, words)], environment(NATIVE))

    def _run(self, name: str, command: list[str], given: Mapping[str, str]) -> None:
        most = min(PROCESS_SECONDS, self.left)
        if most < LEAST_SECONDS:
            raise FailedError(f"{name}: not started, the time limit is used up")
        chosen = {**given, "VRAMKIT_DRIVER": self.driver}
        begin = time.monotonic()
        status, words = children.run(command, self.folder / f"{name}.log", chosen, most)
        say(f"{name}: {time.monotonic() - begin:.1f} s, {self.left:.0f} left")
        if status != 0:
            raise FailedError(f"{name}: {children.how_it_ended(status, most)}: {last_words(words)}")


def trained(driver: str) -> tuple[str, dict[str, object]]:
    """The program that is watched, and its options; without a card, one in its place."""
    return ("trace", {"trace": TRIAL}) if driver == "sim" else ("training", {})


class Begun(msgspec.Struct):
    """A result that several calls may make."""

    machine: machine.Machine
    simulated: bool


Result = TypeVar("Result", bound=Begun)


def begun(path: Path, fresh: Result) -> Result:
    """The result in the file, if it is of this machine, else the fresh one."""
    if not path.exists():
        return fresh
    before = msgspec.json.decode(path.read_bytes(), type=type(fresh))
    today = msgspec.structs.replace(fresh.machine, date=before.machine.date)
    if (today, fresh.simulated) != (before.machine, before.simulated):
        raise SystemExit(
            f"{path} is of another machine or driver, and a result is of one: --again begins anew"
        )
    return before


def parser(words: str, seconds: float) -> ArgumentParser:
    made = ArgumentParser(description=words, formatter_class=RawDescriptionHelpFormatter)
    made.add_argument("folder", type=Path, help="for results, logs and recordings")
    made.add_argument("--driver", choices=("cuda", "sim"), default="cuda")
    made.add_argument(
        "--time-limit",
        type=float,
        default=seconds,
        help="seconds of the whole; what is left then is not started (default: %(default)s)",
    )
    made.add_argument("--again", action="store_true", help="measure also what the folder has")
    return made
