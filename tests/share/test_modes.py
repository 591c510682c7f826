"""Programs in the modes prefetch and paged: the same output as without sharing, and turns."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from vramkit.driver.opening import sim_folder

from .machine import MIB, Machine, until
from .works import Done, run_natively, run_shared_alone

pytestmark = pytest.mark.sim_only

Natively = Callable[..., str]
MODES = ["prefetch", "paged"]
ALONE = "capacity=512MiB"
ADDRESSES = [sys.executable, str(Path(__file__).parent / "programs" / "addresses.py")]


def in_mode(words: list[str], folder: Path, mode: str, chaos: int) -> Done:
    """To a good end, and with managed memory."""
    folder.mkdir(exist_ok=True)
    told = {"VRAMKIT_SHARE": mode, "VRAMKIT_SHARE_CHAOS": str(chaos)}
    done = run_shared_alone(words, folder, ALONE, told)
    assert done.status == 0, done
    assert "is swapped instead" not in done.log
    return done


@pytest.mark.parametrize("chaos", [1, 7])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "words",
    [
        ["memory", "100"],
        ["threads", "30"],
        ["contexts"],
        ["out_of_memory"],
        ["graphs", "40"],
        ["rounds", "8", "20"],
    ],
    ids=lambda words: str(words[0]),
)
def test_a_program_prints_the_same_as_without_sharing(
    works: Path, tmp_path: Path, words: list[str], mode: str, chaos: int
) -> None:
    command = [str(works), *words]
    native = run_natively(command, tmp_path, ALONE)
    assert native.output != ""
    assert in_mode(command, tmp_path, mode, chaos).output == native.output


@pytest.mark.parametrize(
    ("kind", "said"), [("mappings", "cuMemCreate"), ("async", "stream-ordered")]
)
@pytest.mark.parametrize("mode", MODES)
def test_memory_of_handles_and_streams_stays_on_the_card(
    works: Path, tmp_path: Path, mode: str, kind: str, said: str
) -> None:
    command = [str(works), kind, "40"]
    native = run_natively(command, tmp_path, ALONE)
    gated = in_mode(command, tmp_path, mode, 3)
    assert gated.output == native.output
    lines = [line for line in gated.log.splitlines() if "stays on the card" in line]
    assert len([line for line in lines if said in line]) == 1


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> str:
    done = run_natively(ADDRESSES, tmp_path_factory.mktemp("addresses"), ALONE)
    assert done.status == 0, done
    return done.output


@pytest.mark.parametrize("mode", MODES)
def test_questions_about_addresses_are_answered_as_for_memory_of_the_card(
    addresses: str, tmp_path: Path, mode: str
) -> None:
    assert "pitch 1024" in addresses
    assert in_mode(ADDRESSES, tmp_path, mode, 1).output == addresses


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("first", [0, 1, 3, 4])
def test_refused_prefetches_leave_the_program_right(
    addresses: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, first: int
) -> None:
    monkeypatch.setenv("SIM", str(sim_folder()))
    gated = in_mode([*ADDRESSES, str(first)], tmp_path, mode, 1)
    assert gated.output == addresses
    assert "cuMemPrefetchAsync" in gated.log


@pytest.mark.parametrize("mode", MODES)
def test_two_programs_that_do_not_fit_together_take_turns(
    machine: Machine, natively: Natively, mode: str
) -> None:
    machine.start_daemon()
    both = [machine.start("rounds", 40, 100, mode=mode) for _ in range(2)]
    turns, out = {0}, {0}

    def ended() -> bool:
        status = machine.status()
        for program in status.programs:
            assert program.mode == mode
            turns.add(program.turns)
            out.update(card.out_bytes for card in program.cards)
        assert all(card.held <= card.budget for card in status.cards)
        return all(each.process.poll() is not None for each in both)

    until(ended, lambda: [(machine.status(), each.log) for each in both])
    for each in both:
        assert (each.done().status, each.output) == (0, natively("rounds", 40, 100))
    assert max(turns) > 1
    # 16 MiB of the two do not fit; by page faults nothing is moved by us.
    assert (max(out) >= 16 * MIB) == (mode == "prefetch")
