"""Sweeps on real Ray, two nodes on one machine: the same tables as here, whatever is lost."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from lab.runs import ends

from vramkit.lab.result import Report, load
from vramkit.sweep import Done, Failed, Place, PlaceError, Task, batches
from vramkit.sweep.run import run
from vramkit.sweep.tasks import Ended, Lost

from .nodes import folder_of_ray, until

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.sim_only,
    pytest.mark.filterwarnings("default"),  # Ray's own
]

LAB = Path(__file__).parents[1] / "lab" / "programs"
HERE = Path(__file__).parent


class Nodes:
    """A head with nothing, and nodes with a CPU and a simulated card each."""

    def __init__(self, folder: Path) -> None:
        from ray.cluster_utils import Cluster

        self.folder = folder
        with socket.create_server(("127.0.0.1", 0)) as unused:
            port = unused.getsockname()[1]
        self._cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 0,
                "include_dashboard": False,
                "ray_client_server_port": port,
            },
        )
        self.on_client = f"ray:ray://127.0.0.1:{port}"
        self.on = f"ray:{self._cluster.address}"
        self.address = str(self._cluster.address)

    def add(self, name: str) -> Any:
        environment = {
            "VRAMKIT_NODE": name,
            "VRAMKIT_DRIVER": "sim",
            "PYTHONPATH": f"{LAB}{os.pathsep}{HERE}",
            "XDG_RUNTIME_DIR": f"{self.folder}/",
        }
        return self._cluster.add_node(
            num_cpus=1, num_gpus=0, resources={"vram_mib": 64}, env_vars=environment
        )

    def remove(self, node: Any) -> None:
        self._cluster.remove_node(node, allow_graceful=False)

    def shutdown(self) -> None:
        self._cluster.shutdown()


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    ray = pytest.importorskip("ray", reason="Ray is not installed: `make test-cluster`")
    with folder_of_ray() as folder:
        nodes = Nodes(folder)
        try:
            for name in ("a", "b"):
                nodes.add(name)
            ray.init(address=nodes.address, log_to_driver=False)
            # The server of Ray's clients begins after the nodes, and fails who comes before.
            asked = ("top", "--cluster", "--count=1", f"--address={nodes.on_client[4:]}")
            until(lambda: vramkit(*asked).returncode == 0)
            yield nodes
        finally:
            ray.shutdown()
            nodes.shutdown()


def vramkit(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "VRAMKIT_SIM"}
    return subprocess.run(
        [sys.executable, "-m", "vramkit.cli", *arguments],
        env={**environment, "PYTHONPATH": str(LAB)},
        capture_output=True,
        text=True,
        check=False,
    )


def raw(document: object) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(document).encode())


def swept(folder: Path, whats: list[str], place: Place, size: int = 3) -> list[Ended]:
    tasks = [Task(number, raw([number, what])) for number, what in enumerate(whats)]
    found = list(run(batches("sweep_tasks:work", raw(str(folder)), tasks, size), place))
    assert sorted(each.number for each in found) == list(range(len(whats)))
    return sorted(found, key=lambda each: each.number)


def values(found: list[Ended]) -> list[int]:
    return [json.loads(bytes(each.value)) for each in found if isinstance(each, Done)]


@contextmanager
def in_background(work: Callable[[], None]) -> Iterator[None]:
    """Beside the block; what it raises is raised at the end."""
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(work)
        yield
        done.result()


PLANS = (
    *("--layers", "4,8", "--attn-bytes", "100MB", "--ffn-bytes", "150MB"),
    *("--attn-ms", "2", "--ffn-ms", "3", "--profile", "h200,pcie4-24gb"),
    *("--budget", "600MB,100MB,1GB,30%", "--policy", "auto,stage1"),
)


def test_plans_are_the_same_as_here_bit_for_bit(nodes: Nodes) -> None:
    here, there = vramkit("plan", *PLANS), vramkit("plan", *PLANS, "--on", nodes.on)
    assert (there.returncode, there.stderr) == (0, ""), there.stderr
    assert there.stdout == here.stdout
    here, there = (
        vramkit("plan", *PLANS, "--json", *more) for more in ((), ("--on", nodes.on_client))
    )
    assert (there.returncode, there.stderr) == (0, ""), there.stderr
    assert there.stdout == here.stdout and len(json.loads(here.stdout)["rows"]) == 32


def test_without_an_address_it_is_that_of_the_variable_or_the_ray_that_runs_here(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = vramkit("plan", *PLANS, "--json")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    # What `ray start` writes; other clusters may run on this machine.
    (nodes.folder / "ray").mkdir(exist_ok=True)
    (nodes.folder / "ray" / "ray_current_cluster").write_text(nodes.address)
    found = vramkit("plan", *PLANS, "--json", "--on", "ray")
    assert (found.returncode, found.stderr) == (0, "") and found.stdout == here.stdout
    monkeypatch.setenv("RAY_TMPDIR", "/nowhere")
    monkeypatch.setenv("RAY_ADDRESS", nodes.address)
    named = vramkit("plan", *PLANS, "--json", "--on", "ray")
    assert (named.returncode, named.stderr) == (0, "") and named.stdout == here.stdout
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    nobody = vramkit("plan", *PLANS, "--json", "--on", "ray")
    assert (nobody.returncode, nobody.stdout) == (1, "")
    assert "--on ray: no Ray cluster answers (nobody answers at 127.0.0.1:1 (" in nobody.stderr


def test_tasks_fail_and_are_lost_as_they_are_here(nodes: Nodes, tmp_path: Path) -> None:
    from vramkit.integrations.ray.places import Cpus

    found = swept(tmp_path, ["", "dies once", "raises", "", "dies", "", ""], Cpus())
    assert values(found) == [0, 1, 9, 25, 36]
    assert found[2] == Failed(2, "KeyError: 'its own error'")
    assert isinstance(found[4], Lost)
    assert found[4].why.startswith("lost 3 times: Ray says: The worker died unexpectedly")


def test_a_node_that_is_removed_costs_no_answer(nodes: Nodes, tmp_path: Path) -> None:
    """Each of three nodes has a task that waits; one node goes, and its task moves."""
    from vramkit.integrations.ray.places import Cpus

    third = nodes.add("c")
    seen: list[str] = []

    def remove() -> None:
        try:
            waiting = until(lambda: list(tmp_path.glob("waiting*-c")))
            seen.extend(each.name.partition("-")[0] for each in waiting)
        finally:
            nodes.remove(third)
            (tmp_path / "go").touch()

    with in_background(remove):
        found = swept(tmp_path, ["waits"] * 6, Cpus(), 1)
    assert values(found) == [0, 1, 4, 9, 16, 25]
    (lost,) = seen
    assert sorted(each.name for each in tmp_path.glob(f"{lost}-*"))[1:] == [f"{lost}-c"]


def lab(on: str, output: Path, *more: str, said: str = "") -> Report:
    place = ("--on", on) if on else ()
    given = ("--subjects", "good,raises,absent", "--repetitions", "3", "--seed", "3")
    done = vramkit("lab", "fake_lab:FAKE", *given, *more, *place, "--output", str(output))
    assert done.returncode == 0 and said in done.stderr, done.stderr
    return load(output)


def test_experiments_have_the_rows_of_one_machine(nodes: Nodes, tmp_path: Path) -> None:
    """Each repetition on one card, which nobody else has meanwhile."""
    note = tmp_path / "note"
    here = lab("", tmp_path / "here.json", "--driver", "sim")
    there = lab(nodes.on, tmp_path / "there.json", "--set", f"note={note}")
    assert msgspec.json.encode(there.rows) == msgspec.json.encode(here.rows)
    assert [site.node for site in there.sites] == ["a", "b"]
    assert sorted(n for site in there.sites for n in site.repetitions) == [0, 1, 2]
    assert here.sites == [] and there.simulated == "h200"
    assert there.command.endswith(f"--case-limit 120 --on {nodes.on}")
    assert "--driver" not in there.command
    shown = vramkit("lab", "show", str(tmp_path / "there.json")).stdout
    assert "Repetitions were measured on 2 cards" in shown


def test_simulated_cards_need_a_cpu_each(nodes: Nodes, tmp_path: Path) -> None:
    chosen = ("--driver", "sim:pcie4-24gb", "--cases", "first")
    here = lab("", tmp_path / "here.json", *chosen)
    there = lab(nodes.on_client, tmp_path / "there.json", *chosen)
    assert msgspec.json.encode(there.rows) == msgspec.json.encode(here.rows)
    assert there.simulated == "pcie4-24gb"


def test_ctrl_c_keeps_what_was_measured_and_ends_it_on_the_cards(
    nodes: Nodes, tmp_path: Path
) -> None:
    wait, output = tmp_path / "wait", tmp_path / "a.json"
    command = ["lab", "fake_lab:FAKE", "--subjects", "hangs", "--repetitions", "1"]
    command += ["--on", nodes.on, "--set", f"wait={wait}", "--output", str(output)]
    process = subprocess.Popen(
        [sys.executable, "-m", "vramkit.cli", *command],
        env={**os.environ, "PYTHONPATH": str(LAB)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until(wait.exists)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130 and "interrupted; 0 of 4 rows have figures" in said
    assert load(output).stopped == "interrupted"
    assert all(ends(int(pid)) for pid in wait.read_text().split())


def test_a_repetition_of_a_lost_worker_is_measured_again(nodes: Nodes, tmp_path: Path) -> None:
    """Killed in its second turn: nothing of it stays, and the rows are those of one machine."""
    note = tmp_path / "note"
    here = lab("", tmp_path / "here.json", "--driver", "sim", "--set", f"note={tmp_path / 'n'}")

    def kill() -> None:
        until(lambda: note.exists() and len(note.read_text().splitlines()) >= 5)
        worker = int(note.read_text().splitlines()[-1].split()[-1])
        os.kill(parent(worker), signal.SIGKILL)

    with in_background(kill):
        said = "1 repetition was measured again: Ray says: The worker died unexpectedly"
        there = lab(nodes.on, tmp_path / "there.json", "--set", f"note={note}", said=said)
    assert msgspec.json.encode(there.rows) == msgspec.json.encode(here.rows)
    lines = [line.split()[:3] for line in note.read_text().splitlines()]
    assert len(lines) > len({tuple(line) for line in lines})


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_card_runs_one_task_at_a_time(nodes: Nodes, tmp_path: Path) -> None:
    import ray

    from vramkit.integrations.ray.places import Cards

    free: list[float] = []

    def look() -> None:
        try:
            until(lambda: len(list(tmp_path.glob("waiting*"))) == 2)
            until(lambda: ray.available_resources().get("vram_mib", 0) < 128)
            free.append(ray.available_resources().get("vram_mib", 0))
            assert {each.name[-1] for each in tmp_path.glob("waiting*")} == {"a", "b"}
        finally:
            (tmp_path / "go").touch()

    with in_background(look):
        found = swept(tmp_path, ["waits"] * 4, Cards(), 1)
    assert free == [0]
    assert values(found) == [0, 1, 4, 9]


def test_another_version_on_a_node_is_told(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    from vramkit.integrations.ray import places

    monkeypatch.setattr(places, "version", lambda name: "9.9")
    with pytest.raises(PlaceError, match=r"node .* has vramkit .*, and this machine vramkit 9\.9"):
        swept(Path(), [""], places.Cpus())


def test_an_address_where_nobody_answers_is_one_line() -> None:
    pytest.importorskip("ray")
    done = vramkit("plan", *PLANS, "--on", "ray:127.0.0.1:1")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no Ray cluster answers (nobody answers at 127.0.0.1:1 (" in done.stderr
    assert len(done.stderr.splitlines()) == 1
