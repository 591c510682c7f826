"""Real processes, a simulated card and a real daemon: who runs, what moves, what comes out."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from soak import rounds

from vramkit.share.status import ProgramStatus

from .machine import MIB, Machine, until
from .works import SECONDS

pytestmark = pytest.mark.sim_only

Natively = Callable[..., str]
ROUNDS = rounds(40, 1000)


def moved_out(program: ProgramStatus) -> int:
    return sum(card.out_bytes for card in program.cards)


def resident(program: ProgramStatus) -> int:
    return sum(card.resident for card in program.cards)


class Watch:
    """What a program was seen to have done, up to its end."""

    def __init__(self) -> None:
        self.turns: dict[int, int] = {}
        self.out: dict[int, int] = {}
        self.waited: dict[int, float] = {}

    def look(self, machine: Machine) -> None:
        for each in machine.status().programs:
            self.turns[each.pid] = each.turns
            self.out[each.pid] = moved_out(each)
            self.waited[each.pid] = each.waited_seconds
        for card in machine.status().cards:
            assert card.held <= card.budget


def run_to_end(machine: Machine, *programs: Any) -> Watch:
    watch = Watch()

    def ended() -> bool:
        watch.look(machine)
        return all(each.process.poll() is not None for each in programs)

    until(ended, lambda: [(machine.status(), each.log) for each in programs])
    return watch


def test_two_that_fit_run_without_a_byte_moved(machine: Machine, natively: Natively) -> None:
    machine.start_daemon()
    both = [machine.start("rounds", 24, ROUNDS) for _ in range(2)]
    watch = run_to_end(machine, *both)
    for each in both:
        assert each.done().output == natively("rounds", 24, ROUNDS)
        assert watch.out[each.pid] == 0
        assert watch.turns[each.pid] <= 1


def test_two_that_do_not_fit_take_turns(machine: Machine, natively: Natively) -> None:
    """Each time only what the card lacks moves: 40 MiB and 40 MiB are 16 MiB more than 64 MiB."""
    machine.start_daemon()
    both = [machine.start("rounds", 40, 3 * ROUNDS) for _ in range(2)]
    watch = run_to_end(machine, *both)
    for each in both:
        assert each.done().output == natively("rounds", 40, 3 * ROUNDS)
        assert watch.turns[each.pid] >= 2
        assert 0 < watch.out[each.pid] <= watch.turns[each.pid] * 24 * MIB


def test_three_of_different_weights(machine: Machine, natively: Natively) -> None:
    machine.start_daemon()
    three = [
        machine.start("rounds", 30, 2 * ROUNDS, weight=weight, priority=priority)
        for weight, priority in ((1.0, 0), (4.0, 0), (0.5, 5))
    ]
    watch = run_to_end(machine, *three)
    for each in three:
        assert each.done().output == natively("rounds", 30, 2 * ROUNDS)
        assert watch.turns[each.pid] >= 1


def test_one_that_grows_has_to_wait(machine: Machine, natively: Natively) -> None:
    machine.start_daemon()
    stays = machine.start("rounds", 40, 3 * ROUNDS)
    machine.until(stays, lambda status: resident(status) >= 40 * MIB)
    grows = machine.start("grows", 48, ROUNDS // 4)
    run_to_end(machine, stays, grows)
    assert stays.done().output == natively("rounds", 40, 3 * ROUNDS)
    assert grows.done().output == natively("grows", 48, ROUNDS // 4)


def test_more_than_the_limit_is_refused_at_once(machine: Machine) -> None:
    """While another program has the card: nothing waits."""
    machine.start_daemon()
    stays = machine.start("rounds", 40, 100_000)
    machine.until(stays, lambda status: resident(status) >= 40 * MIB)
    limited = machine.start("out_of_memory", memory=32 * MIB)
    assert limited.done().output == "2 1\n2\n1\n"
    beyond = machine.start("rounds", 40, 1, memory=32 * MIB)
    done = beyond.done()
    assert (done.status, done.output) == (3, "cuMemAlloc_v2: 2\n")


def test_a_limit_is_what_the_status_shows(machine: Machine) -> None:
    machine.start_daemon()
    limited = machine.start("rounds", 24, 100_000, memory=32 * MIB, weight=2.0, priority=3)
    machine.until(limited, lambda status: resident(status) >= 24 * MIB)
    found = machine.find(limited)
    assert found is not None
    assert (found.memory_limit, found.weight, found.priority) == (32 * MIB, 2.0, 3)
    assert [card.limit for card in found.cards] == [32 * MIB]


@pytest.mark.parametrize(
    "kind", ["memory", "per_thread_streams", "graphs", "fork_after", "exec", "contexts"]
)
def test_beside_another(kind: str, machine: Machine, natively: Natively) -> None:
    """What programs do while another one wants the whole card again and again."""
    machine.capacity = 144 * MIB
    machine.start_daemon()
    other = machine.start("rounds", 112, 100_000)
    machine.until(other, lambda status: status.turns)
    program = machine.start(kind, 15)
    done = program.done()
    assert (done.status, done.output) == (0, natively(kind, 15)), done
    before = machine.find(other)
    assert before is not None
    machine.until(other, lambda status: status.cards[0].launches > before.cards[0].launches)


@pytest.mark.parametrize("kind", ["leaves", "resets"])
def test_memory_in_use_at_the_end_comes_back(
    kind: str, machine: Machine, natively: Natively
) -> None:
    machine.start_daemon()
    leaves = machine.start(kind, 24, 5)
    assert leaves.done().output == natively(kind, 24, 5)
    until(lambda: machine.status().cards[0].held == 0, machine.status)
    assert machine.start("rounds", 56, 1).done().output == natively("rounds", 56, 1)


def test_a_normal_end_is_no_loss(machine: Machine, natively: Natively) -> None:
    """Nor is one that waits for its memory called blocked, or is left waiting."""
    machine.start_daemon(quantum="0.05")
    both = [machine.start("rounds", 40, ROUNDS) for _ in range(2)]
    for each in both:
        assert each.done().output == natively("rounds", 40, ROUNDS)
    until(lambda: machine.daemon_log.count("has ended") == 2, lambda: machine.daemon_log)
    assert "lost" not in machine.daemon_log
    assert "does not become free" not in machine.daemon_log


def test_a_program_that_ends_at_once_blocks_nobody(machine: Machine, natively: Natively) -> None:
    """By _exit(), with its memory in use: it could say nothing."""
    machine.start_daemon(quantum="0.05")
    both = [machine.start("leaves", 40, ROUNDS) for _ in range(2)]
    for each in both:
        assert each.done().output == natively("leaves", 40, ROUNDS)
    until(lambda: machine.daemon_log.count("gone") == 2, lambda: machine.daemon_log)
    assert "does not become free" not in machine.daemon_log


def test_a_forked_child_does_not_end_its_parent(machine: Machine, natively: Natively) -> None:
    """And the parent's own end is no loss either."""
    machine.start_daemon()
    program = machine.start("fork_after", 15)
    assert program.done().output == natively("fork_after", 15)
    until(lambda: "has ended" in machine.daemon_log, lambda: machine.daemon_log)
    assert machine.daemon_log.count("client ") == 2  # it came, and it went


def test_resets_beside_another(machine: Machine, natively: Natively) -> None:
    """What was held for the context that is gone goes to the other program."""
    machine.start_daemon()
    other = machine.start("rounds", 40, 100_000)
    machine.until(other, lambda status: status.turns)
    program = machine.start("resets", 40, ROUNDS)
    done = program.done()
    assert (done.status, done.output) == (0, natively("resets", 40, ROUNDS)), done


def test_a_daemon_that_comes_later(machine: Machine, natively: Natively) -> None:
    program = machine.start("rounds", 40, 4 * ROUNDS)
    until(lambda: "begins" in program.output, lambda: program.log)
    machine.start_daemon()
    machine.until(program, lambda status: status.state == "running" and resident(status))
    other = machine.start("rounds", 40, ROUNDS)
    assert other.done().output == natively("rounds", 40, ROUNDS)
    assert program.done().output == natively("rounds", 40, 4 * ROUNDS)


def test_without_any_daemon(machine: Machine, natively: Natively) -> None:
    assert machine.start("rounds", 40, 5).done().output == natively("rounds", 40, 5)


def test_a_program_without_cuda(machine: Machine) -> None:
    """By the command itself, which finds the daemon that runs."""
    machine.start_daemon()
    vramkit = str(Path(sys.executable).with_name("vramkit"))
    words = [vramkit, "run", "--", "/bin/sh", "-c", "echo said; exit 7"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (7, "said\n", "")
    assert machine.status().programs == []


def test_an_end_in_good_order_is_logged_as_such(machine: Machine) -> None:
    machine.start_daemon()
    ends, killed = machine.start("rounds", 8, ROUNDS), machine.start("rounds", 8, 1_000_000)
    machine.until(killed, lambda status: status.turns)
    assert ends.done().status == 0
    until(lambda: machine.find(ends) is None)
    assert f"process {ends.pid} has ended" in machine.daemon_log
    assert "connection lost" not in machine.daemon_log
    killed.kill()
    until(lambda: machine.find(killed) is None)
    assert f"process {killed.pid} is gone" in machine.daemon_log
