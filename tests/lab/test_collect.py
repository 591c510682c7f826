"""What a report says of machine, card and versions."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from vramkit.driver import Driver
from vramkit.lab import collect

from .programs.fake_lab import FAKE


def test_versions_are_read_without_importing_what_they_are_of() -> None:
    program = (
        "import sys\n"
        "from vramkit.lab import collect\n"
        "found = collect.versions()\n"
        "loaded = {'torch', 'numpy', 'transformers', 'cuda.core'} & sys.modules.keys()\n"
        "sys.exit(f'loaded {loaded}' if loaded else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = collect.versions()
    assert next(iter(found)) == "vramkit"
    for name in ("vramkit", "numpy", "torch"):
        assert found[name] == metadata.version(name)
    assert "pytest" not in found


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("rmm-cu12", True),
        ("librmm-cu13", True),
        ("cupy-cuda12x", True),
        ("cupy", True),
        ("cudf-cu12", True),
        ("cuda-core", True),
        ("torchvision", False),
        ("numpydoc", False),
    ],
)
def test_packages_that_may_change_a_figure(name: str, counts: bool) -> None:
    assert bool(collect.PACKAGES.fullmatch(name)) is counts


def test_the_card_is_what_nvidia_smi_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA H200, 580.82'\necho 'NVIDIA H200, 580.82'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = collect.machine()
    assert (found.gpu, found.nvidia_driver) == ("NVIDIA H200", "580.82")
    assert found.cpu and found.cores > 0 and found.kernel.startswith("Linux ")
    program.write_text("#!/bin/sh\nexit 9\n")
    assert collect.machine().gpu == ""


@pytest.mark.sim_only
def test_a_report_is_begun_without_a_context_on_the_card(driver: Driver) -> None:
    found = collect.new_report(
        FAKE, "fake", driver, 0, settings={"rounds": 1}, seed=4, repetitions=2, command="again"
    )
    assert driver.sim is not None and driver.sim.live_objects()["contexts"] == 0
    assert (found.simulated, found.card_bytes) == ("h200", driver.device(0).total_memory)
    assert (found.seed, found.repetitions, found.command, found.rows) == (4, 2, "again", [])
    assert found.quantities == FAKE.quantities and found.date.endswith("Z")
