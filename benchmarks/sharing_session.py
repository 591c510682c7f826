"""A daemon of the benchmark's own, and the programs that share a real or a simulated card.

Everything is in one folder: socket, settings, logs. What was started is ended with the session,
each process with its group; a daemon of the user is never spoken to.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import programs
import sharing_steps
from sharing_scale import Scale

from vramkit.driver.opening import sim_folder
from vramkit.share.connect import Controls, NoDaemonError
from vramkit.share.status import Status

PROGRAMS = Path(__file__).parent / "sharing_programs"
KERNELS = programs.ROOT / "src" / "vramkit" / "driver" / "kernels.ptx"
LINES = 30


class FailedError(RuntimeError):
    """A program or the daemon did not do what it should: what they said is in the text."""


class Sample(NamedTuple):
    """What the daemon said at one time of one program, by CLOCK_MONOTONIC in ns."""

    at: int
    pid: int
    out_bytes: int
    in_bytes: int
    resident: int
    fixed: int
    swapped: int


class Program:
    """One that runs: natively, or under `vramkit run`."""

    def __init__(self, command: list[str], folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self.started = time.monotonic_ns()
        self.ended = 0
        self.command = command
        with (folder / "output").open("wb") as output, (folder / "errors").open("wb") as errors:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env=environment,
                cwd=folder,
                start_new_session=True,
            )

    @property
    def log(self) -> sharing_steps.Log:
        return sharing_steps.read(self.folder / "steps")

    def running(self) -> bool:
        if self.process.poll() is None:
            return True
        self.ended = self.ended or time.monotonic_ns()
        return False

    def printed(self) -> dict[str, Any]:
        """Its last line. Raises FailedError, also where its memory was not what it must be."""
        lines = (self.folder / "output").read_text("utf-8").splitlines()
        if self.process.returncode != 0 or not lines:
            raise FailedError(f"a program ended with status {self.process.returncode}")
        found = dict(json.loads(lines[-1]))
        if found.get("wrong"):
            raise FailedError(f"a program's memory was wrong in {found['wrong']} blocks")
        return found

    def end(self) -> None:
        """With all that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Session:
    """Use it as a context manager: one of them for each thing that is measured."""

    def __init__(self, driver: str, scale: Scale, torch: bool, deadline: float) -> None:
        self.driver, self.scale, self.torch, self.deadline = driver, scale, torch, deadline
        self.samples: list[Sample] = []
        self._programs: list[Program] = []
        self._daemon: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Session":
        # A socket's path must be short, and the folder the user's own.
        self.folder = Path(tempfile.mkdtemp(prefix="vks-", dir="/tmp"))
        self.socket = self.folder / "vramkit" / "daemon.sock"
        if self.driver == "sim":
            (self.folder / "card.toml").write_text(self.scale.profile(), "utf-8")
        return self

    def __exit__(self, *_: object) -> None:
        for program in self._programs:
            program.end()
        if self._daemon is not None:
            self._daemon.terminate()
            try:
                self._daemon.wait(5)
            except subprocess.TimeoutExpired:
                self._daemon.kill()
                self._daemon.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def environment(self) -> dict[str, str]:
        """Without any setting of ours but the places of this session."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("VRAMKIT")}
        kept |= {
            "KERNELS": str(KERNELS),
            "VRAMKIT_SOCKET": str(self.socket),
            "XDG_CONFIG_HOME": str(self.folder),
            "XDG_RUNTIME_DIR": str(self.folder),
            "PYTHONFAULTHANDLER": "1",
        }
        if self.driver == "sim":
            kept["LD_LIBRARY_PATH"] = str(sim_folder())
            kept["VRAMKIT_DRIVER"] = "sim"
            kept["VRAMKIT_SIM"] = (
                f"card={self.folder.name},clock=wall,checker=off,"
                f"capacity={self.scale.capacity},profile={self.folder / 'card.toml'}"
            )
        return kept

    # The daemon

    def start_daemon(self, **settings: object) -> None:
        command = [sys.executable, "-m", "vramkit.cli", "daemon", "start", "--foreground"]
        with (self.folder / "daemon.log").open("ab") as log:
            self._daemon = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment(),
                start_new_session=True,
            )
        self.until(self._answers, "the daemon answers")
        if self.driver == "sim":
            settings = {"reserve": self.scale.reserve, **settings}
        self.configure(**settings)

    def configure(self, **settings: object) -> None:
        with Controls(self.socket) as controls:
            for name, value in settings.items():
                controls.ask("configure", name=name, value=str(value))

    def status(self) -> Status:
        """Kept as samples too."""
        with Controls(self.socket) as controls:
            status = controls.status()
        now = time.monotonic_ns()
        self.samples += [
            Sample(
                now,
                each.pid,
                sum(card.out_bytes for card in each.cards),
                sum(card.in_bytes for card in each.cards),
                sum(card.resident for card in each.cards),
                sum(card.unswappable for card in each.cards),
                sum(card.swapped for card in each.cards),
            )
            for each in status.programs
        ]
        return status

    def _answers(self) -> bool:
        assert self._daemon is not None
        if self._daemon.poll() is not None:
            raise FailedError(f"the daemon ended with status {self._daemon.returncode}")
        try:
            Controls(self.socket).close()
        except NoDaemonError:
            return False
        return True

    # Programs

    def start(self, kind: str, *options: object, mode: str = "") -> Program:
        """One of sharing_programs: natively without a mode, else under `vramkit run --mode`."""
        name = "pytorch.py" if self.torch else "plain.py"
        words = [sys.executable, PROGRAMS / name, kind, "--log", "steps", *options]
        return self.run(words, ["--mode", mode] if mode else None)

    def run(self, command: list[Any], sharing: list[str] | None, **variables: str) -> Program:
        """Any program, in a folder of its own. `sharing`: options of `vramkit run`, or natively."""
        folder = self.folder / f"program-{len(self._programs)}"
        folder.mkdir()
        words = list(map(str, command))
        if sharing is not None:
            run = [sys.executable, "-m", "vramkit.cli", "run", *sharing, "--log", "gate"]
            words = [*run, "--", *words]
        program = Program(words, folder, self.environment() | variables)
        self._programs.append(program)
        return program

    def ended(self, *started: Program) -> list[dict[str, Any]]:
        """What they printed, when all have ended."""
        # Each is asked: a list would stop at the first that runs, and miss when the others ended.
        self.until(lambda: not any([each.running() for each in started]), "the programs end", 0.002)
        return [each.printed() for each in started]

    def until(self, condition: Callable[[], object], what: str, pause: float = 0.02) -> None:
        """Raises FailedError if a program fails meanwhile, or when the time is over."""
        while not condition():
            for each in self._programs:
                if not each.running() and each.process.returncode != 0:
                    raise FailedError(f"a program ended with status {each.process.returncode}")
            if time.monotonic() > self.deadline:
                raise FailedError(f"not within the time limit: {what}")
            time.sleep(pause)

    def told(self) -> str:
        """The last lines of all that was written here, for a failure's report."""
        parts = []
        for path in [*sorted(self.folder.glob("program-*/*")), self.folder / "daemon.log"]:
            if path.name != "steps" and path.is_file():
                lines = path.read_text("utf-8", "replace").splitlines()[-LINES:]
                if lines:
                    parts += [f"-- {path.relative_to(self.folder)}", *lines]
        return "\n".join(parts)


@contextmanager
def session(driver: str, scale: Scale, torch: bool, deadline: float) -> Iterator[Session]:
    """A failure in it says what the programs and the daemon had to say."""
    with Session(driver, scale, torch, deadline) as made:
        try:
            yield made
        except (FailedError, NoDaemonError) as error:
            raise FailedError(f"{error}\n{made.told()}") from None
