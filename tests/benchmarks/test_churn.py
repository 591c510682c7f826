"""Rounds of threads and streams that come and go: what the benchmark counts, and its options."""

from __future__ import annotations

import churn
import pytest

from vramkit.driver import Driver

pytestmark = [pytest.mark.sim_only, pytest.mark.sim(data=False, checker=False, capacity="1GiB")]

MIB = 1 << 20


@pytest.mark.parametrize("handles", churn.HANDLES)
def test_rounds_of_threads_and_streams_leave_nothing(
    driver: Driver, handles: churn.Handles
) -> None:
    program = churn.Program("small", 2, 2, churn.pairs, 256, 4096)
    result = churn.run(program, driver.device(), handles)
    assert (result.threads, result.streams) == (2, 4)
    assert 0 < result.peak_in_use <= result.peak_held
    assert result.bound == int(1.25 * result.peak_in_use) + 6 * 4 * MIB


def test_programs_are_chosen_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert churn.main(["pairs_small/1", "--handles", "own", "--steps", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("| pairs_small/1 | own | 1 | 1 |")
    with pytest.raises(SystemExit, match="2"):
        churn.main(["none"])
    assert "no program is called none; there are pairs_small/16," in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        churn.main(["--steps", "0"])
    assert "'0'; it may be a number from 1" in capsys.readouterr().err
