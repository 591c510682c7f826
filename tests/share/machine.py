"""One simulated card, a daemon for it and programs that share it, all in folders of the test.

When it ends, nothing may be left: no process, no file in the runtime folder, no shared object.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from vramkit.launch.gate import gate_launch
from vramkit.share.connect import Controls, NoDaemonError
from vramkit.share.run import RunOptions, variables
from vramkit.share.settings import ShareSettings
from vramkit.share.status import ProgramStatus, Status

from .works import SECONDS, Done, simulated

MIB = 1 << 20
SLOW_LINK = """
name = "slow-link"
extends = "h200"

[link]
host_to_device_bytes_per_s = {rate}
device_to_host_bytes_per_s = {rate}
duplex_bytes_per_s = {rate}
pageable_host_to_device_bytes_per_s = {rate}
pageable_device_to_host_bytes_per_s = {rate}
"""
SERVE = (
    "import sys; from pathlib import Path\n"
    "from vramkit.share.daemon.process import serve_in_foreground\n"
    "serve_in_foreground(Path(sys.argv[1]), system=False)\n"
)


def until(condition: Callable[[], object], describe: Callable[[], object] = str) -> None:
    """Waits for what must happen. `describe` says how things stand if it does not."""
    end = time.monotonic() + SECONDS / 2
    while not condition():
        assert time.monotonic() < end, f"did not happen: {describe()}"
        time.sleep(0.005)


@dataclass
class Started:
    """A program under the gate, started without the `vramkit` command."""

    words: list[str]
    process: subprocess.Popen[bytes]
    folder: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def output(self) -> str:
        return (self.folder / "output").read_text(encoding="utf-8")

    @property
    def log(self) -> str:
        log = self.folder / "log"
        return log.read_text(encoding="utf-8") if log.exists() else ""

    @property
    def pinned(self) -> int:
        """Bytes of host memory for what leaves the card: it alone is kept from children (`dc`)."""
        maps = Path(f"/proc/{self.pid}/smaps").read_text(encoding="utf-8")
        mappings = re.findall(r"^Size: +(\d+) kB$.*?^VmFlags:([^\n]*)", maps, re.M | re.S)
        return sum(int(size) << 10 for size, flags in mappings if "dc" in flags.split())

    def done(self, seconds: float = SECONDS) -> Done:
        """How it ended."""
        try:
            status = self.process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.words} hangs:\n{self.output}\n{self.log}") from None
        errors = (self.folder / "errors").read_text(encoding="utf-8")
        return Done(status, self.output, errors, self.log)

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        self.process.send_signal(number)
        self.process.wait(SECONDS)


class Machine:
    def __init__(self, folder: Path, works: Path) -> None:
        self.folder, self.works = folder, works
        self.socket = folder / "daemon.sock"
        self.card = f"{folder.name}-{os.getpid()}"
        self.capacity = 80 * MIB  # of which programs have 64, see start_daemon()
        self.profile = "h200"
        self.variables: dict[str, str] = {}
        """Further ones, of the daemon and its programs."""
        self.programs: list[Started] = []
        self.daemons: list[subprocess.Popen[bytes]] = []

    # Before anything starts

    def slow_link(self, rate: float) -> None:
        """Copies between host and card take so many bytes a second."""
        profile = self.folder / "slow.toml"
        profile.write_text(SLOW_LINK.format(rate=rate), encoding="utf-8")
        self.profile = str(profile)

    # The daemon

    def start_daemon(self, **settings: str) -> subprocess.Popen[bytes]:
        log = (self.folder / "daemon.log").open("ab")
        daemon = subprocess.Popen(
            [sys.executable, "-c", SERVE, str(self.socket)], stderr=log, env=self._environment()
        )
        log.close()
        self.daemons.append(daemon)
        until(self._daemon_answers, lambda: self.daemon_log)
        self.configure(**{"reserve": "16MiB", "quantum": "0.05", **settings})
        return daemon

    def _daemon_answers(self) -> bool:
        assert self.daemons[-1].poll() is None, self.daemon_log
        try:
            Controls(self.socket).close()
        except NoDaemonError:
            return False
        return True

    def kill_daemon(self) -> None:
        self.daemons[-1].kill()
        self.daemons[-1].wait(SECONDS)

    @property
    def daemon_log(self) -> str:
        return (self.folder / "daemon.log").read_text(encoding="utf-8")

    def configure(self, **settings: str) -> None:
        with Controls(self.socket) as controls:
            for name, value in settings.items():
                controls.ask("configure", name=name, value=value)

    def status(self) -> Status:
        with Controls(self.socket) as controls:
            return controls.status()

    def find(self, program: Started) -> ProgramStatus | None:
        return next((each for each in self.status().programs if each.pid == program.pid), None)

    def until(self, program: Started, condition: Callable[[ProgramStatus], object]) -> None:
        """Waits for a state of a program that has not ended."""

        def holds() -> bool:
            assert program.process.poll() is None, f"ended: {program.output}{program.log}"
            found = self.find(program)
            return found is not None and bool(condition(found))

        until(holds, lambda: (self.status(), program.log, self.daemon_log))

    # Programs

    def start(
        self, *words: object, host_limit: int = 0, with_socket: bool = True, **options: object
    ) -> Started:
        """works with these words; options are those of `vramkit run`."""
        return self.start_command([str(self.works), *map(str, words)], host_limit, options)

    def start_command(
        self, words: list[str], host_limit: int = 0, options: Mapping[str, object] | None = None
    ) -> Started:
        folder = self.folder / f"program-{len(self.programs)}"
        folder.mkdir()
        chosen = RunOptions(**{"log": folder / "log", **(options or {})})  # type: ignore[arg-type]
        settings = ShareSettings(host_limit=host_limit, window=8)
        told = variables(chosen, self.socket, settings)
        with (
            gate_launch(words, told) as launch,
            (folder / "output").open("wb") as output,
            (folder / "errors").open("wb") as errors,
        ):
            environment = launch.environment(self._environment())
            process = subprocess.Popen(words, env=environment, stdout=output, stderr=errors)
        started = Started(words, process, folder)
        self.programs.append(started)
        return started

    def _environment(self) -> dict[str, str]:
        settings = f"card={self.card},clock=wall,capacity={self.capacity}"
        settings += f",profile={self.profile},checker=off"
        return simulated(settings) | {"XDG_RUNTIME_DIR": str(self.folder)} | self.variables

    # The end

    def forget_programs(self) -> None:
        """Those that have ended, and what they wrote: a test may start thousands."""
        for program in self.programs:
            assert program.process.poll() is not None
            shutil.rmtree(program.folder)
        self.programs.clear()

    def finish(self) -> None:
        for program in self.programs:
            if program.process.poll() is None:
                program.process.send_signal(signal.SIGCONT)
                program.process.kill()
            program.process.wait(SECONDS)
        for daemon in self.daemons:
            if daemon.poll() is None:
                daemon.terminate()
            daemon.wait(SECONDS)

    def check_nothing_is_left(self) -> None:
        text = str(self.folder)
        for process in Path("/proc").glob("[0-9]*"):
            try:
                environment = (process / "environ").read_bytes()
            except OSError:
                continue
            own = process.name == str(os.getpid())
            assert own or f"={text}/".encode() not in environment, f"left: {process.name}"
        daemon_files = {"daemon.sock", "daemon.lock", "daemon.log", "clients.json", "slow.toml"}
        ours = {f"program-{number}" for number in range(len(self.programs))}
        found = {each.name for each in self.folder.iterdir()}
        left = found - daemon_files - ours - {"config", "vramkit-sim-" + str(os.getuid())}
        assert not left, left
        assert not self.socket.exists() or self.daemons[-1].returncode == -signal.SIGKILL
        # Other tests have cards there at the same time.
        shared = [name for _, _, files in os.walk("/dev/shm") for name in files]
        assert not [name for name in shared if self.card in name]
