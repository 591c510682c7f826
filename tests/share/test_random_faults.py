"""Programs and the daemon are killed, stopped and continued at random moments."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from soak import SOAKING, rounds

from .machine import Machine, Started, until

pytestmark = pytest.mark.sim_only

ROUNDS = rounds(2, 2000)
WORDS = ("rounds", 40, 30)
# A program's 40 MiB, of which all or a part moves, take up to 0.1 s each way.
LINK = 500e6
FAULTS = 4
LONGEST = 0.25  # seconds between two faults


class Faults:
    """What is done to the programs and the daemon of one round."""

    def __init__(self, machine: Machine, chance: random.Random) -> None:
        self.machine, self.chance = machine, chance
        self.programs = [machine.start(*WORDS) for _ in range(3)]
        self.stopped: set[int] = set()
        self.told: list[str] = []

    def one(self) -> None:
        at = time.monotonic() + self.chance.uniform(0, LONGEST)
        until(lambda: time.monotonic() > at)
        victim = self.chance.choice([*self.programs, None])
        self.daemon() if victim is None else self.program(victim)

    def program(self, victim: Started) -> None:
        number = self.programs.index(victim)
        what = self.chance.choice(("kill", "stop", "continue"))
        self.told.append(f"{what} program {number}")
        if victim.process.poll() is not None:
            return
        if what == "kill":
            victim.kill()
        else:
            self.stop(victim.pid, what == "stop")

    def daemon(self) -> None:
        what = self.chance.choice(("kill", "kill and start", "stop", "continue"))
        self.told.append(f"{what} the daemon")
        daemon = self.machine.daemons[-1]
        if daemon.poll() is None:
            if what in ("stop", "continue"):
                self.stop(daemon.pid, what == "stop")
            else:
                self.machine.kill_daemon()
        if what == "kill and start":
            start_daemon(self.machine)

    def stop(self, pid: int, stops: bool) -> None:
        os.kill(pid, signal.SIGSTOP if stops else signal.SIGCONT)
        (self.stopped.add if stops else self.stopped.discard)(pid)

    def end(self) -> None:
        """Nobody is stopped any more, and there is a daemon."""
        for process in (*(each.process for each in self.programs), self.machine.daemons[-1]):
            if process.pid in self.stopped and process.poll() is None:
                self.stop(process.pid, False)
        if self.machine.daemons[-1].poll() is not None:
            start_daemon(self.machine)


def start_daemon(machine: Machine) -> None:
    machine.start_daemon(patience="200ms")


def open_files(pid: int) -> list[str]:
    """A socket has a name of its own each time."""
    found = []
    for each in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.append(os.readlink(each).partition(":")[0])
        except FileNotFoundError:
            continue  # closed meanwhile
    return sorted(found)


def shared_objects(machine: Machine) -> set[str]:
    """Those of the card that no test has to itself: /dev/shm is everybody's."""
    return {each.name for each in Path("/dev/shm").rglob("*") if machine.card in each.name}


def check_the_end(machine: Machine, faults: Faults, expected: str, files: list[str]) -> None:
    """Who survives has the results that it has natively, and nothing is left of the others."""
    for program in faults.programs:
        if program.process.poll() != -signal.SIGKILL:
            done = program.done()
            assert (done.status, done.output) == (0, expected), done
    until(lambda: not machine.status().programs, machine.status)
    assert all(card.held == 0 for card in machine.status().cards)
    pid = machine.daemons[-1].pid
    until(lambda: open_files(pid) == files, lambda: (open_files(pid), files))
    assert not shared_objects(machine)
    machine.forget_programs()


def test_random_faults(machine: Machine, natively: Callable[..., str]) -> None:
    seed = random.randrange(1 << 32) if SOAKING else 1
    chance = random.Random(seed)
    machine.slow_link(LINK)
    start_daemon(machine)
    # One to listen on, and asyncio's own two.
    until(lambda: open_files(machine.daemons[-1].pid).count("socket") == 3)
    files = open_files(machine.daemons[-1].pid)
    for number in range(ROUNDS):
        faults = Faults(machine, chance)
        try:
            for _ in range(chance.randint(1, FAULTS)):
                faults.one()
            faults.end()
            check_the_end(machine, faults, natively(*WORDS), files)
        except BaseException as error:
            error.add_note(f"seed {seed}, round {number}: {', '.join(faults.told)}")
            raise
