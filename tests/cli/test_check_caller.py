"""check_program() leaves the driver of the calling process alone."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from vramkit.check import CheckError, check_program

if TYPE_CHECKING:
    from vramkit.driver import Driver


@pytest.mark.sim_only
@pytest.mark.sim(profile="pcie4-24gb", checker=True)
def test_a_live_pool_and_its_simulated_gpu_are_untouched(driver: Driver) -> None:
    from vramkit import Pool

    assert driver.sim is not None
    with Pool(device=driver.device(), background=False) as pool:
        address = pool.malloc(4096)
        before = (driver.sim.settings(), driver.sim.live_objects(), driver.sim.call_counts())
        result = check_program(["true"], profile="h200")
        assert (result.program_status, result.calls) == (0, 0)
        with pytest.raises(CheckError, match="no-such-card"):
            check_program(["true"], profile="no-such-card")
        after = (driver.sim.settings(), driver.sim.live_objects(), driver.sim.call_counts())
        assert after == before
        pool.free(address)  # a reset would have closed the pool


def test_a_caller_without_a_driver_loads_none() -> None:
    """A loaded simulated libcuda.so.1 would be what other libraries find by that name."""
    source = (
        "from vramkit.check import check_program\n"
        "check_program(['true'])\n"
        "assert 'libcuda' not in open('/proc/self/maps').read()\n"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("foo=1", "foo"),
        ("capacity=lots", "capacity=lots"),
        ("clock", "key=value"),
        ("scale=2", "clock=wall"),
    ],
)
def test_bad_settings_are_told_by_their_reason(
    monkeypatch: pytest.MonkeyPatch, settings: str, words: str
) -> None:
    monkeypatch.setenv("VRAMKIT_SIM", settings)
    with pytest.raises(CheckError, match=words):
        check_program(["no-such-program-anywhere"])


def test_a_setting_with_a_comma_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckError, match="comma"):
        check_program(["true"], profile="a,b")
