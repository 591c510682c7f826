"""Programs on one card that each take three quarters of what they are shown, and use little."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from vramkit.cli import main
from vramkit.share.status import ProgramStatus

from .machine import MIB, Machine, until

pytestmark = pytest.mark.sim_only

BUDGET = 512 * MIB
TAKEN = BUDGET * 3 // 4
CHUNK = 64 * MIB
WRITTEN = CHUNK + 2 * MIB  # the chunk that is used, and the page of a result
USED = 4
ROUNDS = 800


def start(machine: Machine, quantum: str) -> None:
    machine.capacity = BUDGET + 16 * MIB
    machine.start_daemon(quantum=quantum)


def where(program: ProgramStatus) -> tuple[int, int, int]:
    """Resident, swapped and unbacked."""
    if not program.cards:
        return 0, 0, 0
    (card,) = program.cards
    return card.resident, card.swapped, card.unbacked


def test_what_was_never_written_takes_room(
    machine: Machine, natively: Callable[..., str], capfd: pytest.CaptureFixture[str]
) -> None:
    """Of the card from the first launch on, which may reach any of it: so the other one waits. What
    has room for it comes ahead."""
    start(machine, quantum="10min")
    first = machine.start("preallocates", USED, 1_000_000)
    machine.until(first, lambda status: where(status) == (TAKEN, 0, 0))
    second = machine.start("preallocates", USED, ROUNDS)
    machine.until(second, lambda status: where(status) == (BUDGET - TAKEN, 0, 2 * TAKEN - BUDGET))
    assert main(["status"]) == 0
    shown = [re.split(r"  +", line.strip()) for line in capfd.readouterr().out.splitlines()]
    rows = {row[0]: row[2:8] for row in shown}
    assert rows["PID"] == ["STATE", "CARD", "RESIDENT", "SWAPPED", "UNBACKED", "FIXED"]
    assert rows[str(first.pid)] == ["running", "0", "384 MiB", "0 B", "0 B", "0 B"]
    assert rows[str(second.pid)] == ["waiting", "0", "128 MiB", "0 B", "256 MiB", "0 B"]
    first.kill()
    assert second.done().output == natively("preallocates", USED, ROUNDS)


def test_what_was_never_written_is_not_moved(
    machine: Machine, natively: Callable[..., str]
) -> None:
    """256 of 384 MiB leave the card for each turn of the other. Copied is the written chunk alone,
    if it is among them. A third one waits until both have ended."""
    start(machine, quantum="0.05")
    waits = machine.start("preallocates", USED, 1_000_000)
    machine.until(waits, lambda status: status.turns)
    both = [machine.start("preallocates", USED, ROUNDS) for _ in range(2)]
    turns: dict[int, int] = {}
    unbacked: dict[int, int] = {}

    def ended() -> bool:
        for each in machine.status().programs:
            turns[each.pid] = each.turns
            for card in each.cards:
                if each.turns and each.state == "waiting":
                    unbacked[each.pid] = max(unbacked.get(each.pid, 0), card.unbacked)
                assert card.swapped <= WRITTEN
                # The last of its turns may be over, and the next one counted a little later.
                assert card.out_bytes <= (each.turns + 1) * WRITTEN
        return all(each.process.poll() is not None for each in both)

    until(ended, lambda: [(machine.status(), each.log) for each in both])
    for each in both:
        assert each.done().output == natively("preallocates", USED, ROUNDS)
        assert turns[each.pid] >= 2
        assert unbacked[each.pid] >= 2 * TAKEN - BUDGET - CHUNK
