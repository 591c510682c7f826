"""Debian's Slurm, or any: jobs with their limit, two on one card, and nothing left behind."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from vramkit.share.connect import Controls

from .nodes import CAPACITY, MIB, until
from .slurm import ROOT, Slurm, missing

pytestmark = [pytest.mark.cluster, pytest.mark.sim_only]

COUNTS = str(ROOT / "src" / "vramkit" / "demo" / "programs" / "counts.py")
LIMIT = "import vramkit; print(vramkit.driver.open().device().memory_info().total)"


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    if missing():
        pytest.skip(f"Slurm is not installed: no {', '.join(missing())}")
    folder = Path(tempfile.mkdtemp(prefix="vk-", dir="/tmp"))
    made = Slurm(folder, 128)
    sim = f"card={folder.name},clock=wall,capacity={CAPACITY},checker=off"
    made.environment |= {"VRAMKIT_DRIVER": "sim", "VRAMKIT_SIM": sim}
    try:
        made.start()
        yield made
    finally:
        made.stop()
    shutil.rmtree(folder)


def test_job_has_the_limit_that_it_asked_for(slurm: Slurm) -> None:
    done = slurm.run("srun", "-n1", "--gres=vram:24M", "python", "-c", LIMIT)
    assert done.stdout.split() == [str(24 * MIB)], done.stderr


def test_tasks_of_a_batch_script_have_it_too(slurm: Slurm, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/sh\npython -c '{LIMIT}'\nsrun -n1 python -c '{LIMIT}'\n")
    output = tmp_path / "output"
    done = slurm.run("sbatch", "--wait", f"--output={output}", "--gres=vram:32M", str(script))
    assert done.returncode == 0, done.stderr
    assert output.read_text().split() == [str(32 * MIB)] * 2


def test_two_jobs_share_a_card_that_holds_one(slurm: Slurm) -> None:
    words = ["srun", "-n1", "--gres=vram:60M", "python", COUNTS, "48", "2"]
    jobs = [slurm.begin(*words, VRAMKIT_WEIGHT=weight) for weight in ("1", "2")]
    seen: dict[int, tuple[int, float]] = {}

    def both_moved() -> bool:
        if not slurm.socket.exists():
            return False
        with Controls(slurm.socket) as controls:
            for each in controls.status().programs:
                seen[each.pid] = sum(card.out_bytes for card in each.cards), each.weight
        return len(seen) == 2 and all(moved for moved, _ in seen.values())

    until(both_moved, lambda: seen)
    assert sorted(weight for _, weight in seen.values()) == [1.0, 2.0]
    for job in jobs:
        assert job.communicate(timeout=60)[0].split()[1:] == ["right"]


def test_each_task_of_an_array_has_its_limit(slurm: Slurm, tmp_path: Path) -> None:
    words = ["--wait", "--array=0-2", f"--output={tmp_path}/%a", "--gres=vram:24M"]
    done = slurm.run("sbatch", *words, "--wrap", "echo $VRAMKIT_SHARE_MEMORY")
    outputs = [(tmp_path / str(number)).read_text() for number in range(3)]
    assert outputs == [f"{24 * MIB}\n"] * 3 and done.returncode == 0


def test_job_that_is_requeued_has_its_limit_again(slurm: Slurm, tmp_path: Path) -> None:
    """Killed and run again with the same number."""
    output = tmp_path / "output"
    script = tmp_path / "job.sh"
    wait = f"[ -e {tmp_path}/again ] || sleep 100"
    script.write_text(f"#!/bin/sh\necho $SLURM_JOB_ID $VRAMKIT_SHARE_MEMORY\n{wait}\n")
    words = ["--parsable", "--requeue", "--open-mode=append", f"--output={output}"]
    job = slurm.run("sbatch", *words, "--gres=vram:24M", str(script)).stdout.strip()
    until(lambda: output.exists() and output.read_text())
    (tmp_path / "again").touch()
    assert slurm.run("scontrol", "requeue", job).returncode == 0
    # Slurm waits for some time before it runs a job again: now.
    until(lambda: "PENDING" in slurm.run("squeue", "-h", "-j", job, "-o", "%T").stdout)
    assert slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now").returncode == 0
    line = f"{job} {24 * MIB}"
    until(lambda: output.read_text().splitlines().count(line) == 2, output.read_text)


def test_job_without_memory_of_a_card_is_left_alone(slurm: Slurm) -> None:
    done = slurm.run("srun", "-n1", "sh", "-c", "echo ${LD_PRELOAD:-none} ${VRAMKIT_SHARE:-none}")
    assert done.stdout.split() == ["none", "none"], done.stderr


def test_nothing_of_a_job_stays(slurm: Slurm) -> None:
    folder = f"ls -d {slurm.jobs}/$SLURM_JOB_ID/libcuda.so"
    done = slurm.run("srun", "-n1", "--gres=vram:24M", "sh", "-c", folder)
    assert done.returncode == 0, done.stderr
    until(lambda: not list(slurm.jobs.iterdir()), lambda: list(slurm.jobs.iterdir()))


def test_job_whose_limit_cannot_be_kept_to_does_not_run(slurm: Slurm) -> None:
    """And the reason is in its output."""
    done = slurm.run("srun", "-n1", "--gres=vram:24M", "echo", "ran", VRAMKIT_WEIGHT="heavy")
    assert done.returncode != 0 and "ran" not in done.stdout.split()
    assert "weight" in done.stdout, (done.stdout, done.stderr)
