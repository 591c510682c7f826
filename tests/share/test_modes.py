"""Programs in the modes prefetch and paged: the same output as without sharing, and turns."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from vramkit.driver.opening import sim_folder
from vramkit.share.connect import Controls

from .conftest import Running
from .modes_support import PROGRAMS, Done, Started, build_works

MODES = ["prefetch", "paged"]
MIB = 1 << 20
ALONE = "capacity=512MiB"


@pytest.fixture(scope="session")
def modes_works(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_works(tmp_path_factory.mktemp("modes"))


def chaotic(every: int) -> dict[str, str]:
    return {"VRAMKIT_SHARE_CHAOS": str(every)}


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
    modes_works: Path, tmp_path: Path, words: list[str], mode: str, chaos: int
) -> None:
    command = [str(modes_works), *words]
    native = Started(command, tmp_path / "native", ALONE).wait()
    gated = Started(command, tmp_path / "gated", ALONE, mode, chaotic(chaos)).wait()
    assert native.output != ""
    assert gated.output == native.output
    assert "is swapped instead" not in gated.log


@pytest.mark.parametrize("mode", MODES)
def test_memory_of_handles_and_streams_stays_on_the_card(
    modes_works: Path, tmp_path: Path, mode: str
) -> None:
    for kind, said in (("mappings", "cuMemCreate"), ("async", "stream-ordered")):
        command = [str(modes_works), kind, "40"]
        native = Started(command, tmp_path / f"{kind} native", ALONE).wait()
        gated = Started(command, tmp_path / kind, ALONE, mode, chaotic(3)).wait()
        assert gated.output == native.output
        lines = [line for line in gated.log.splitlines() if "stays on the card" in line]
        assert len([line for line in lines if said in line]) == 1


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Done:
    folder = tmp_path_factory.mktemp("addresses") / "native"
    return Started([sys.executable, str(PROGRAMS / "addresses.py")], folder, ALONE).wait()


@pytest.mark.parametrize("mode", MODES)
def test_questions_about_addresses_are_answered_as_for_memory_of_the_card(
    addresses: Done, tmp_path: Path, mode: str
) -> None:
    command = [sys.executable, str(PROGRAMS / "addresses.py")]
    gated = Started(command, tmp_path / "gated", ALONE, mode, chaotic(1)).wait()
    assert gated.output == addresses.output
    assert "pitch 1024" in gated.output


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("first", [0, 1, 3, 4])
def test_refused_prefetches_leave_the_program_right(
    addresses: Done, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, first: int
) -> None:
    monkeypatch.setenv("SIM", str(sim_folder()))
    command = [sys.executable, str(PROGRAMS / "addresses.py"), str(first)]
    gated = Started(command, tmp_path / "gated", ALONE, mode, chaotic(1)).wait()
    assert gated.output == addresses.output
    assert "cuMemPrefetchAsync" in gated.log


@pytest.mark.parametrize("mode", MODES)
def test_two_programs_that_do_not_fit_together_take_turns(
    modes_works: Path, daemon: Running, tmp_path: Path, mode: str
) -> None:
    daemon.configure(quantum="0.1", reserve="28MiB")
    command = [str(modes_works), "rounds", "72", "60"]
    native = Started(command, tmp_path / "native", ALONE).wait()
    card = f"card=modes-{os.getpid()}-{mode},clock=wall,scale=1,capacity=128MiB"
    told = {"VRAMKIT_SHARE_SOCKET": str(daemon.path)}
    both = [Started(command, tmp_path / name, card, mode, told) for name in ("one", "two")]
    turns: dict[int, int] = defaultdict(int)
    out: dict[int, int] = defaultdict(int)
    most = 0
    with Controls(daemon.path) as controls:
        while any(each.runs() for each in both):
            status = controls.status()
            for program in status.programs:
                assert program.mode == mode
                turns[program.pid] = program.turns
                out[program.pid] = sum(card.out_bytes for card in program.cards)
            most = max([most, *(card.held for card in status.cards)])
    assert [each.wait().output for each in both] == [native.output] * 2
    assert most <= 100 * MIB
    assert len(turns) == 2
    assert max(turns.values()) > 1
    # By page faults nothing is moved by us.
    assert (max(out.values()) >= 44 * MIB) == (mode == "prefetch")
