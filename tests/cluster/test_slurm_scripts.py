"""The scripts for Slurm, with a stand-in for Slurm: what they read, print and leave behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from vramkit.share.connect import Controls

from .nodes import MIB, until

pytestmark = pytest.mark.sim_only

SCRIPTS = Path(__file__).parents[2] / "deploy" / "slurm"
GIB = 1 << 30


class Scripts:
    """A copy with an environment of its own, and a `scontrol` that says what the test says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.jobs = folder / "jobs"
        self.socket = folder / "run" / "daemon.sock"
        self.said = folder / "said"
        shutil.copytree(SCRIPTS, folder / "scripts")
        programs = folder / "bin"
        programs.mkdir()
        scontrol = programs / "scontrol"
        scontrol.write_text(f'#!/bin/sh\n[ "$*" = "show job --detail 7" ] && cat {self.said}\n')
        scontrol.chmod(0o755)
        path = os.pathsep.join(
            [str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]
        )
        (folder / "scripts" / "environment").write_text(
            f"export PATH='{path}' VRAMKIT_SOCKET='{self.socket}' VRAMKIT_JOBS='{self.jobs}'\n"
            f"export XDG_CONFIG_HOME='{folder}'\n"
        )

    def run(self, name: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "SLURM_JOB_ID": "7", "SLURM_JOB_UID": str(os.getuid())}
        return subprocess.run(
            [self.folder / "scripts" / name],
            env=environment | variables,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def task(self, job: str, nodes: int = 1, **variables: str) -> subprocess.CompletedProcess[str]:
        """The task prolog for a job that `scontrol` describes so."""
        said = f"JobId=7 JobName=vram:1G\n   NumNodes={nodes} NumCPUs=1\n   {job}\n"
        self.said.write_text(said)
        return self.run("task_prolog", **variables)


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scripts]:
    made = Scripts(tmp_path_factory.mktemp("d"))
    assert made.run("prolog").returncode == 0
    yield made
    with Controls(made.socket) as controls:
        controls.ask("stop")
    until(lambda: not made.socket.exists())


def exported(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    assert done.returncode == 0, done
    return dict(line.removeprefix("export ").split("=", 1) for line in done.stdout.splitlines())


@pytest.mark.parametrize(
    ("job", "limit"),
    [
        ("JOB_GRES=vram:25165824", 24 * MIB),
        ("JOB_GRES=gpu:2,vram:24M", 24 * MIB),
        ("JOB_GRES=gres/vram=56G,gres/gpu=1", 56 * GIB),
        ("JOB_GRES=shard:3,vram:2048K,license:1", 2 * MIB),
        ("JOB_GRES=vram:1T", 1024 * GIB),
    ],
)
def test_amount_is_read_as_versions_of_slurm_write_it(
    scripts: Scripts, job: str, limit: int
) -> None:
    told = exported(scripts.task(job, VRAMKIT_WEIGHT="2", VRAMKIT_PRIORITY="-3"))
    assert told["VRAMKIT_SHARE_MEMORY"] == str(limit)
    assert (told["VRAMKIT_SHARE_WEIGHT"], told["VRAMKIT_SHARE_PRIORITY"]) == ("2000", "-3")
    assert told["LD_LIBRARY_PATH"].split(":")[0] == str(scripts.jobs / "7")


def test_task_of_an_array_has_its_own_amount(scripts: Scripts) -> None:
    """The task with the number of the whole array: Slurm shows all of them, in any order."""
    records = [
        f"JobId={number} ArrayJobId=7 ArrayTaskId={task} JobName=vram:1G\n"
        f"   NumNodes={nodes} NumCPUs=1\n   JOB_GRES=vram:{mib}M\n"
        for number, task, nodes, mib in ((70, 1, 1, 8), (7, 0, 2, 48), (71, 2, 1, 8))
    ]
    scripts.said.write_text("\n".join(records))
    told = exported(scripts.run("task_prolog"))
    assert told["VRAMKIT_SHARE_MEMORY"] == str(24 * MIB)


def test_modules_of_a_job_are_not_those_of_vramkit(scripts: Scripts, tmp_path: Path) -> None:
    (tmp_path / "msgspec.py").write_text("raise RuntimeError('of the job')\n")
    python = {"PYTHONPATH": str(tmp_path), "PYTHONHOME": "/nowhere"}
    told = exported(scripts.task("JOB_GRES=vram:24M", **python))
    # The task still has them.
    assert told["VRAMKIT_SHARE_MEMORY"] == str(24 * MIB) and "PYTHONPATH" not in told


def test_amount_of_several_nodes_is_divided(scripts: Scripts) -> None:
    told = exported(scripts.task("JOB_GRES=vram:64G", SLURM_JOB_NUM_NODES="4"))
    assert told["VRAMKIT_SHARE_MEMORY"] == str(16 * GIB)
    told = exported(scripts.task("JOB_GRES=vram:64G", nodes=2))
    assert told["VRAMKIT_SHARE_MEMORY"] == str(32 * GIB)


@pytest.mark.parametrize(
    "job", ["JOB_GRES=gpu:1", "TRES=cpu=1,node=1,billing=1", "Command=/vram:1G", "JOB_GRES=(null)"]
)
def test_job_that_asks_for_none_is_left_alone(scripts: Scripts, job: str) -> None:
    done = scripts.task(job)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("job", "variables", "reason"),
    [
        ("JOB_GRES=vram:many", {}, "is not to be read from: JOB_GRES=vram:many"),
        ("TresPerNode=gres:vram:24M", {}, "is not to be read from: TresPerNode=gres:vram:24M"),
        # In a name with several lines.
        (
            "Comment=\n   JOB_GRES=vram:1T\n   JOB_GRES=vram:24M",
            {},
            "not to be read from: JOB_GRES",
        ),
        # Meant as GiB.
        ("JOB_GRES=vram:24", {}, "--memory is '24'; it may be 1 MiB or more, such as 24GiB"),
        ("JOB_GRES=vram:24M", {"VRAMKIT_WEIGHT": "heavy"}, "--weight"),
        ("JOB_GRES=vram:24M", {"VRAMKIT_PRIORITY": "9000"}, "--priority is 9000"),
        ("JOB_GRES=vram:24M", {"SLURM_JOB_ID": "8"}, "scontrol does not say"),
    ],
)
def test_job_whose_limit_cannot_be_kept_to_is_refused_with_the_reason(
    scripts: Scripts, job: str, variables: dict[str, str], reason: str
) -> None:
    done = scripts.task(job, **variables)
    assert done.returncode != 0
    (line,) = done.stdout.splitlines()
    assert line.startswith("print vramkit: ") and reason in line


def test_job_that_slurm_does_not_describe_is_refused(scripts: Scripts) -> None:
    """Rather than run without a limit."""
    scripts.said.write_text("JobId=8 JobName=x\n   JOB_GRES=vram:24M\n")
    done = scripts.run("task_prolog")
    assert done.returncode == 1 and done.stdout.startswith("print vramkit: scontrol does not say")


def test_folder_of_a_job_is_its_users_and_goes_with_it(scripts: Scripts) -> None:
    folder = scripts.jobs / "7"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert scripts.jobs.stat().st_mode & 0o777 == 0o755
    exported(scripts.task("JOB_GRES=vram:24M"))
    assert sorted(os.listdir(folder)) == ["libcuda.so", "libcuda.so.1"]
    assert scripts.run("epilog").returncode == 0
    assert list(scripts.jobs.iterdir()) == []
    assert scripts.run("prolog").returncode == 0  # for the other tests


def test_epilog_of_a_job_without_a_prolog_has_nothing_to_do(scripts: Scripts) -> None:
    assert scripts.run("epilog", SLURM_JOB_ID="8").returncode == 0
    assert [each.name for each in scripts.jobs.iterdir()] == ["7"]


def test_without_a_daemon_neither_node_nor_job_is_used(tmp_path: Path) -> None:
    """Slurm drains a node whose prolog fails."""
    scripts = Scripts(tmp_path)
    environment = tmp_path / "scripts" / "environment"
    environment.write_text(environment.read_text() + "VRAMKIT_SOCKET=/dev/null/no.sock\n")
    done = scripts.run("prolog")
    assert done.returncode != 0 and "/dev/null" in done.stderr
    done = scripts.task("JOB_GRES=vram:24M")
    assert done.returncode != 0 and done.stdout.startswith("print vramkit: ")
