"""Real Ray, two nodes and more on one machine: placement, limits, turns, and the commands."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from vramkit.share.connect import Controls, NoDaemonError
from vramkit.share.status import ProgramStatus

from . import actors
from .nodes import ANNOUNCED, MIB, processes_in, until
from .ray_cluster import OBJECT_STORE, RayCluster, free, known, on, programs

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.sim_only,
    pytest.mark.filterwarnings("default"),  # Ray's own
]

ROOT = Path(__file__).parents[2]


def swapped(program: ProgramStatus) -> int:
    return sum(card.swapped for card in program.cards)


def test_actors_are_placed_by_memory(cluster: RayCluster, adders: Any) -> None:
    """128 MiB a node: three of 40 MiB each; the seventh waits until one has ended."""
    import ray

    six = [adders(8, "40MiB") for _ in range(6)]
    cards = [card for _, card in ray.get([each.who.remote() for each in six])]
    assert sorted(map(cards.count, set(cards))) == [3, 3]
    seventh = adders(8, "40MiB")
    asked = seventh.who.remote()
    until(lambda: all(free(node) == ANNOUNCED - 120 for node in cluster.nodes))
    assert ray.wait([asked], timeout=0.3)[0] == []
    ray.kill(six[2])
    assert ray.get(asked, timeout=60)[1] == cards[2]


def test_more_than_fit_take_turns_with_right_results(cluster: RayCluster, adders: Any) -> None:
    """Three of 36 MiB on 64 MiB: turns until each was out many times, and no byte is wrong."""
    import ray

    node = next(iter(cluster.nodes))
    three = [adders(36, "40MiB", node=node) for _ in range(3)]
    pids = [pid for pid, _ in ray.get([each.who.remote() for each in three])]

    def worked() -> bool:
        ray.get([each.work.remote(20) for each in three])
        return all(programs()[pid].turns >= 10 for pid in pids)

    until(worked, programs)
    assert all(ray.get([each.is_right.remote() for each in three]))
    assert all(card.out_bytes for pid in pids for card in programs()[pid].cards)


def test_an_idle_actor_gives_its_memory_up(cluster: RayCluster, adders: Any) -> None:
    import ray

    node = next(iter(cluster.nodes))
    idle, busy = (adders(40, "44MiB", node=node) for _ in range(2))
    pid, _ = ray.get(idle.who.remote())
    ray.get(idle.work.remote(5))
    ray.get(busy.work.remote(50))
    assert swapped(programs()[pid]) >= 16 * MIB
    assert ray.get(idle.is_right.remote())


def test_limit_is_shown_and_enforced(cluster: RayCluster, adders: Any) -> None:
    import ray

    shown = adders(8, "24MiB", share={"weight": 2.5, "priority": 3})
    assert ray.get(shown.memory.remote())[1] == 24 * MIB
    program = known(ray.get(shown.who.remote())[0])
    assert (program.memory_limit, program.weight, program.priority) == (24 * MIB, 2.5, 3)
    too_large = adders(32, "24MiB")
    with pytest.raises(ray.exceptions.RayActorError, match="OUT_OF_MEMORY"):
        ray.get(too_large.who.remote())


def test_limit_holds_in_processes_that_a_worker_starts(cluster: RayCluster) -> None:
    import ray

    from vramkit.integrations.ray import options

    task = ray.remote(max_calls=1)(actors.child_of_a_child).options(**options("24MiB"))
    assert ray.get(task.remote()) == [str(24 * MIB), "CUDA_ERROR_OUT_OF_MEMORY"]
    until(lambda: not programs(), programs)


def test_own_variables_of_a_task_are_kept(cluster: RayCluster) -> None:
    """But for those that would change its limit."""
    import ray

    from vramkit.integrations.ray import options

    mine = {"MINE": "1", "LD_LIBRARY_PATH": "/there", "VRAMKIT_SHARE_MEMORY": "0"}
    chosen = options("24MiB", runtime_env={"env_vars": mine})
    told = ray.get(ray.remote(max_calls=1)(actors.variables).options(**chosen).remote())
    assert told["MINE"] == "1" and told["LD_LIBRARY_PATH"].endswith(":/there")
    assert told["VRAMKIT_SHARE_MEMORY"] == str(24 * MIB)


def test_task_without_options_is_left_alone(cluster: RayCluster) -> None:
    import ray

    told = ray.get(ray.remote(actors.variables).remote())
    assert not {"LD_PRELOAD", "VRAMKIT_SHARE"} & set(told)


def test_top_shows_all_nodes(cluster: RayCluster, adders: Any) -> None:
    import ray

    pids = [ray.get(adders(8, "24MiB", node=each).who.remote())[0] for each in cluster.nodes]
    until(lambda: set(pids) <= set(programs()), programs)
    command = [sys.executable, "-m", "vramkit.cli", "top", "--cluster", "--count=1"]
    command += [f"--address={cluster.address}"]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
    nodes = json.loads(done.stdout)["nodes"]
    assert {node["node"] for node in nodes} == set(cluster.nodes)
    assert {each["pid"] for node in nodes for each in node["status"]["programs"]} == set(pids)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = [line.split() for line in done.stdout.splitlines()]
    assert {int(row[1]) for row in rows if len(row) > 2 and row[1].isdigit()} == set(pids)


def test_node_that_would_not_enforce_is_named(cluster: RayCluster) -> None:
    from vramkit.integrations.ray import status

    number = cluster.add("d", enforced=False)
    try:
        problems = {node.node: node.problem for node in status() if node.problem}
        assert "Ray ignores memory limits here" in problems[number]
    finally:
        cluster.remove(number)


@pytest.fixture
def starting() -> Iterator[Starting]:
    """A node that is still to be started. Nothing of it may be left when the test ends."""
    from .nodes import Node

    folder = Path(tempfile.mkdtemp(prefix="vk-", dir="/tmp"))
    # Nothing in its environment is there already of what the start is to add.
    node = Node(folder / "n", enforced=False)
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    environment = {"RAY_TMPDIR": str(folder), "RAY_AUTH_MODE": "disabled"}
    yield Starting(folder, port, {**os.environ, **node.environment, **environment})
    until(lambda: not node.left(), node.left)
    until(lambda: not processes_in(folder), lambda: processes_in(folder))
    shutil.rmtree(folder)


class Starting(NamedTuple):
    folder: Path
    port: int
    environment: dict[str, str]

    @property
    def arguments(self) -> list[str]:
        """Of `ray start`."""
        words = ["--num-cpus=2", "--include-dashboard=false", f"--port={self.port}"]
        words += [f"--object-store-memory={OBJECT_STORE}", f"--plasma-directory={self.folder}"]
        return words

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *words],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def stop(self) -> None:
        """As `ray stop` does, which would end every Ray of the machine: the server comes last."""

        def others() -> list[int]:
            return [each for each in processes_in(self.folder) if not is_server(each)]

        def is_server(process: int) -> bool:
            with suppress(OSError):
                return b"/gcs_server" in Path(f"/proc/{process}/cmdline").read_bytes()
            return False

        for find in (others, lambda: processes_in(self.folder)):
            for each in find():
                with suppress(ProcessLookupError):
                    os.kill(each, signal.SIGTERM)
            until(lambda find=find: not find(), find)  # type: ignore[misc]

    def answer(self) -> str:
        """What a node announces, and the memory that a task of it sees; "" without a node."""
        source = (
            "import ray\n"
            "from vramkit.integrations.ray import options\n"
            f"ray.init(address='127.0.0.1:{self.port}', log_to_driver=False)\n"
            "limit = lambda: __import__('vramkit').driver.open().device().memory_info().total\n"
            "task = ray.remote(max_calls=1)(limit).options(**options('24MiB'))\n"
            "announced = ray.cluster_resources()\n"
            "print(announced['vram_mib'], announced.get('disk'), ray.get(task.remote()))\n"
        )
        asked = [sys.executable, "-c", source]
        done = subprocess.run(
            asked, env=self.environment, capture_output=True, text=True, check=False
        )
        return done.stdout.strip()


def test_command_starts_a_node_that_announces_and_enforces(starting: Starting) -> None:
    """`vramkit cluster start`, as typed; with --block it serves until it is stopped."""
    words = ["cluster", "start", "--oversubscription=1.5", "--", "--block", *starting.arguments]
    started = starting.start("-m", "vramkit.cli", *words)

    def answer() -> str:
        assert started.poll() is None, started.communicate()[0]
        return starting.answer()

    try:
        assert until(answer) == f"96.0 None {24 * MIB}"
    finally:
        started.terminate()
        started.communicate()


START = """
import json, sys
from vramkit.integrations.ray import start_node
start_node(oversubscription=1.5, resources={"disk": 3}, arguments=json.loads(sys.argv[1]))
"""


def test_start_node_returns_with_a_node_that_announces_and_enforces(starting: Starting) -> None:
    """What was started does not end with the program that started it."""
    try:
        started = starting.start("-c", START, json.dumps(starting.arguments))
        said = started.communicate()[0]
        assert started.returncode == 0, said
        assert starting.answer() == f"96.0 3.0 {24 * MIB}", said
    finally:
        starting.stop()


def test_ray_that_does_not_start_is_an_error_of_start_node(starting: Starting) -> None:
    started = starting.start("-c", START, json.dumps(["--no-such-option"]))
    said = started.communicate()[0]
    assert started.returncode == 1
    assert "No such option" in said and "RuntimeError: `ray start` ended with status 2" in said


def test_cards_of_a_node_get_no_more_than_each_announced(cluster: RayCluster) -> None:
    """Two cards of 128 MiB: 80 and 80 are on two, 40 and 40 beside them, and 80 more nowhere."""
    import ray

    from vramkit.integrations.ray import options

    node = cluster.add("f", cards=2)
    try:

        def make(memory: str) -> Any:
            chosen = options(memory) | {"scheduling_strategy": on(node), "num_cpus": 0}
            return ray.remote(actors.Visible).options(**chosen).remote()

        four = [make(memory) for memory in ("80MiB", "80MiB", "40MiB", "40MiB")]
        seen = ray.get([each.cards.remote() for each in four])
        assert sorted(seen[:2]) == sorted(seen[2:]) == ["0", "1"]
        for each in four[2:]:
            ray.kill(each)
        # The node has 96 MiB left, and no card has more than 48.
        until(lambda: free(node) == 96)
        late = make("80MiB")
        asked = late.cards.remote()
        assert ray.wait([asked], timeout=0.5)[0] == []
        ray.kill(four[1])
        assert ray.get(asked, timeout=60) == seen[1]
        for each in (four[0], late):
            ray.kill(each)
    finally:
        cluster.remove(node)


def test_unknown_word_in_the_field_fails_the_task(cluster: RayCluster) -> None:
    """As from another version of vramkit: nothing runs with a part of its limits."""
    import ray

    broken = {"vramkit": {"memory": 8 * MIB, "unknown": 1}}
    task = ray.remote(actors.stay).options(runtime_env=broken)
    with pytest.raises(ray.exceptions.RuntimeEnvSetupError, match="has unknown=1"):
        ray.get(task.remote(0))


def test_no_daemon_without_a_gated_worker(cluster: RayCluster) -> None:
    """A node that nobody asked for memory has none, and starts none."""
    number = cluster.add("e")
    node = cluster.nodes[number][0]
    try:
        with pytest.raises(NoDaemonError):
            Controls(node.socket)
    finally:
        cluster.remove(number)
