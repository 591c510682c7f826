"""`vramkit doctor` as a whole, on the simulated GPU and without any."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

import pytest

from .support import Vramkit


def has_nvidia_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


# Buffers are an eighth of the memory, and real bytes are copied: this takes a fraction of the time.
SMALL = "capacity=64MiB"


@pytest.fixture
def vramkit(vramkit: Vramkit) -> Vramkit:
    return lambda *arguments, **variables: vramkit(*arguments, **{"VRAMKIT_SIM": SMALL} | variables)


def facts(vramkit: Vramkit, *arguments: str, **variables: str) -> dict[str, Any]:
    result = vramkit("doctor", "--json", "--quick", *arguments, **variables)
    document: dict[str, Any] = json.loads(result.stdout)  # exactly one document
    assert result.stderr == ""
    problems = [one for one in document["findings"] if one["severity"] == "problem"]
    assert result.returncode == (1 if problems else 0), problems
    return document


# Round figures that no card has, so that nothing but the profile can be where they come from.
PROFILE = """
name = "round"
extends = "h200"
[link]
host_to_device_bytes_per_s = 10e9
device_to_host_bytes_per_s = 8e9
duplex_bytes_per_s = 6e9
pageable_host_to_device_bytes_per_s = 2e9
pageable_device_to_host_bytes_per_s = 3e9
[calls]
default = 0
cuLaunchKernel = 70_000
cuEventRecord = 10_000
cuMemAlloc = 100_000
cuMemFree = 50_000
cuMemCreate = 20_000
cuMemMap = 30_000
cuMemSetAccess = 40_000
cuMemUnmap = 60_000
cuMemRelease = 90_000
"""


def test_figures_are_those_of_the_profile(vramkit: Vramkit, tmp_path: Path) -> None:
    path = tmp_path / "round.toml"
    path.write_text(PROFILE)
    round_figures = facts(vramkit, "--driver", f"sim:{path}")
    assert round_figures["driver"]["simulated"] is True
    assert round_figures["driver"]["profile"] == "round"
    rates = {copy["what"]: copy["rate"]["median"] / 1e9 for copy in round_figures["copies"]}
    assert rates == {
        "pinned, host to device": pytest.approx(10, rel=0.02),
        "pinned, device to host": pytest.approx(8, rel=0.02),
        "pinned, both ways at once": pytest.approx(6, rel=0.02),
        "pageable, host to device": pytest.approx(2, rel=0.05),
        "pageable, device to host": pytest.approx(3, rel=0.05),
    }
    costs = {call["call"]: call["seconds"]["median"] * 1e6 for call in round_figures["calls"]}
    assert costs == {
        "cuEventRecord": pytest.approx(10, abs=1),
        "cuEventQuery": pytest.approx(0, abs=3),
        "cuStreamWaitEvent": pytest.approx(0, abs=3),
        "cuLaunchKernel": pytest.approx(70, abs=1),
        "cuMemAlloc": pytest.approx(100, abs=1),
        "cuMemFree": pytest.approx(50, abs=1),
        "cuMemCreate": pytest.approx(20, abs=1),
        "cuMemMap": pytest.approx(30, abs=1),
        "cuMemSetAccess": pytest.approx(40, abs=1),
        "cuMemUnmap": pytest.approx(60, abs=1),
        "cuMemRelease": pytest.approx(90, abs=1),
    }


def test_the_card_and_its_link_are_the_profiles(vramkit: Vramkit) -> None:
    document = facts(vramkit, VRAMKIT_DRIVER="sim:h200")
    assert document["driver"]["version"] == 13000
    assert document["card"]["compute_capability"] == [9, 0]
    link = document["card"]["link"]
    assert (link["generation"], link["width"]) == (5, 16)
    assert document["card"]["memory_total"] == 64 << 20
    assert document["card"]["profile_memory"] == 150_754_820_096
    assert any("of its profile 140 GiB" in one["what"] for one in document["findings"])


def test_pinning_on_a_simulated_card_adds_no_real_and_simulated_time(vramkit: Vramkit) -> None:
    methods = facts(vramkit, "--driver", "sim")["pinning"]
    assert methods[0]["method"] == "cuMemHostAlloc"
    assert {entry["threads"] for entry in methods} >= {1}
    for entry in methods[1:]:
        assert entry["touch"]["median"] > 0
        assert entry["pin"]["median"] > 0
        assert entry["rate"] is None


def test_every_table_of_a_simulated_card_says_so(vramkit: Vramkit) -> None:
    result = vramkit("doctor", "--quick", "--driver", "sim:weight-streaming", COLUMNS="120")
    assert result.returncode == 0, result.stdout
    heading = "(simulated, profile weight-streaming)"
    titles = [line for line in result.stdout.splitlines() if heading in line]
    subjects = [title.split(" (simulated")[0].strip() for title in titles]
    assert subjects == [
        "Card",
        "Copies of 8 MiB",
        "Host time of a call, from Python",
        "Pinning 8 MiB of host memory",
    ]
    assert "PCIe 3 x8" in result.stdout


def test_two_runs_on_the_virtual_clock_read_the_same(vramkit: Vramkit) -> None:
    first, second = (facts(vramkit, "--driver", "sim") for _ in range(2))
    assert first["copies"] == second["copies"]
    assert first["calls"] == second["calls"]


def test_a_card_that_is_not_there_is_a_problem(vramkit: Vramkit) -> None:
    document = facts(vramkit, "--driver", "sim", "--device", "7")
    assert document["findings"][0]["severity"] == "problem"
    assert document["card"] is None
    assert document["limits"]["ram_total"] > 0


def test_a_measurement_that_fails_leaves_the_others(vramkit: Vramkit) -> None:
    """A card of 8 MiB: whatever needs more is a finding, not the end."""
    document = facts(vramkit, VRAMKIT_DRIVER="sim", VRAMKIT_SIM="capacity=8MiB")
    assert document["calls"]
    assert document["card"]["memory_total"] == 8 << 20


@pytest.mark.skipif(has_nvidia_driver(), reason="an NVIDIA driver is here")
def test_without_a_driver_limits_are_still_reported(vramkit: Vramkit) -> None:
    document = facts(vramkit)
    assert document["driver"] is None
    assert document["limits"]["cpus"] > 0
    problem = document["findings"][0]
    assert problem["severity"] == "problem"
    assert "libcuda.so.1" in problem["what"]
    assert "VRAMKIT_DRIVER=sim" in problem["fix"]


@pytest.mark.skipif(has_nvidia_driver(), reason="an NVIDIA driver is here")
def test_without_a_driver_the_text_says_what_to_do(vramkit: Vramkit) -> None:
    result = vramkit("doctor", COLUMNS="200")
    assert result.returncode == 1
    assert "✗ problem" in result.stdout
    assert "VRAMKIT_DRIVER=sim" in result.stdout
    assert "Traceback" not in result.stderr
