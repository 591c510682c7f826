"""Real Ray, two nodes and more on one machine: placement, limits, turns, and what is left."""

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
from pathlib import Path
from typing import Any

import pytest

from vramkit.share.connect import Controls, NoDaemonError
from vramkit.share.status import ProgramStatus

from . import actors
from .nodes import ANNOUNCED, MIB, OBJECT_STORE, RayCluster, processes_in, until

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.sim_only,
    pytest.mark.filterwarnings("default"),  # Ray's own
]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """Two nodes with a card each; the tests are connected with it."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: `make test-cluster`")
    # Not in pytest's folder: the paths of Ray's sockets are long.
    folder = Path(tempfile.mkdtemp(prefix="vk-", dir="/tmp"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", str(folder))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # Where this user has a token, Ray would ask for it.
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_health_check_period_ms", "500")
        patch.setenv("RAY_health_check_failure_threshold", "3")
        cluster = RayCluster(folder)
        try:
            for name in ("a", "b"):
                cluster.add(name)
            ray.init(address=cluster.address, log_to_driver=False)
            ray.cloudpickle.register_pickle_by_value(actors)
            yield cluster
        finally:
            try:
                ray.shutdown()
            finally:
                nodes = cluster.shutdown()
    for node in nodes:
        until(lambda node=node: not node.left(), node.left)  # type: ignore[misc]
    until(lambda: not processes_in(folder), lambda: processes_in(folder))
    shutil.rmtree(folder)


@pytest.fixture
def adders(cluster: RayCluster) -> Iterator[Any]:
    """Makes actors, and kills them when the test ends; then no daemon may know one."""
    import ray

    from vramkit.integrations.ray import options

    made: list[Any] = []

    def make(mib: int, memory: str, *, node: str | None = None, **more: Any) -> Any:
        chosen = options(memory, **more.pop("share", {})) | more
        if node is not None:
            chosen["scheduling_strategy"] = on(node)
        made.append(ray.remote(actors.Adder).options(**chosen).remote(mib))
        return made[-1]

    yield make
    for each in made:
        ray.kill(each)
    until(lambda: not programs(), programs)


def on(node: str) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node, soft=False)


def programs() -> dict[int, ProgramStatus]:
    """Of all nodes, by process."""
    from vramkit.integrations.ray import status

    known = [node.status for node in status() if node.status is not None]
    return {program.pid: program for found in known for program in found.programs}


def known(pid: int) -> ProgramStatus:
    """The program, when its daemon has heard of it."""
    found: ProgramStatus = until(lambda: programs().get(pid), programs)
    return found


def swapped(program: ProgramStatus) -> int:
    return sum(card.swapped for card in program.cards)


def free(node: str) -> float:
    """Ray's own count of the resource."""
    import ray

    return float(ray._private.state.available_resources_per_node()[node].get("vram_mib", 0))


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


def test_killed_actor_is_forgotten_and_comes_back_under_the_gate(
    cluster: RayCluster, adders: Any
) -> None:
    import ray

    actor = adders(16, "24MiB", max_restarts=1, max_task_retries=1)
    before, _ = ray.get(actor.who.remote())
    known(before)
    os.kill(before, signal.SIGKILL)
    until(lambda: before not in programs(), programs)
    after, _ = ray.get(actor.who.remote())
    assert after != before
    assert known(after).memory_limit == 24 * MIB


def test_task_of_a_killed_worker_is_retried(cluster: RayCluster, tmp_path: Path) -> None:
    import ray

    from vramkit.integrations.ray import options

    task = ray.remote(max_calls=1)(actors.die_once).options(**options("8MiB"), max_retries=1)
    assert ray.get(task.remote(str(tmp_path / "died")))
    assert (tmp_path / "died").exists()
    until(lambda: not programs(), programs)


def test_daemon_that_was_killed_is_started_again(cluster: RayCluster, adders: Any) -> None:
    import ray

    node, (folders, _) = next(iter(cluster.nodes.items()))
    actor = adders(16, "24MiB", node=node)
    pid, _ = ray.get(actor.who.remote())
    with Controls(folders.socket) as controls:
        daemon = controls.status().daemon.pid
    os.kill(daemon, signal.SIGKILL)
    until(lambda: pid in programs(), programs)
    ray.get(actor.work.remote(5))
    assert ray.get(actor.is_right.remote())


def test_removed_node_leaves_nothing_and_its_actor_moves(cluster: RayCluster, adders: Any) -> None:
    import ray

    third = cluster.add("c")
    filling = [adders(4, "128MiB", node=each) for each in cluster.nodes if each != third]
    ray.get([each.who.remote() for each in filling])
    moving = adders(16, "64MiB", max_restarts=-1, max_task_retries=-1)
    before, _ = ray.get(moving.who.remote())
    assert before in processes_in(cluster.nodes[third][0].folder)
    ray.kill(filling[0])
    gone = cluster.remove(third, at_once=True)
    # Its worker may answer until it sees that the node is gone.
    until(lambda: ray.get(moving.who.remote(), timeout=60)[0] != before)
    known(ray.get(moving.who.remote())[0])
    until(lambda: not gone.left(), gone.left)


def test_killed_agent_takes_its_node_and_daemon_along(cluster: RayCluster, adders: Any) -> None:
    """Ray ends a node whose agent has ended; the daemon ends as nobody keeps it."""
    import ray

    number = cluster.add("g")
    node = cluster.nodes[number][0]
    actor = adders(16, "24MiB", node=number)
    ray.get(actor.who.remote())
    (agent,) = [
        pid
        for pid in processes_in(node.folder)
        if b"RuntimeEnvAgent" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    os.kill(agent, signal.SIGKILL)
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(actor.work.remote(1 << 40), timeout=60)
    until(lambda: not node.left(), node.left)
    cluster.remove(number)


def test_task_whose_daemon_cannot_be_started_fails_with_the_reason(cluster: RayCluster) -> None:
    """It does not run without a limit."""
    import ray

    from vramkit.integrations.ray import options, status

    number = cluster.add("h", socket=Path("/dev/null/daemon.sock"))
    try:
        chosen = options("24MiB") | {"scheduling_strategy": on(number)}
        with pytest.raises(ray.exceptions.RuntimeEnvSetupError, match="/dev/null"):
            ray.get(ray.remote(actors.variables).options(**chosen).remote(), timeout=60)
        (problem,) = [node.problem for node in status() if node.node == number]
        assert "no daemon" in problem
    finally:
        cluster.remove(number)


DRIVER = """
import sys, ray
sys.path.insert(0, sys.argv[2])
from cluster import actors
from vramkit.integrations.ray import options
ray.init(address=sys.argv[1], log_to_driver=False)
ray.cloudpickle.register_pickle_by_value(actors)
made = [ray.remote(actors.Adder).options(**options("24MiB")).remote(16) for _ in range(3)]
print(*[pid for pid, _ in ray.get([each.who.remote() for each in made])], flush=True)
for each in made:
    each.work.remote(1 << 40)
sys.stdin.read()
"""


def test_killed_driver_leaves_nothing(cluster: RayCluster) -> None:
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, cluster.address, str(ROOT / "tests")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert driver.stdout is not None and driver.stdin is not None
    pids = set(map(int, driver.stdout.readline().split()))
    assert len(pids) == 3
    until(lambda: pids <= set(programs()), programs)
    driver.kill()
    driver.wait()
    driver.stdin.close()
    driver.stdout.close()
    until(lambda: not programs(), programs)
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


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


def test_start_node_announces_and_enforces() -> None:
    """`vramkit cluster start`, as typed; it serves until it is stopped."""
    from .nodes import Node

    folder = Path(tempfile.mkdtemp(prefix="vk-", dir="/tmp"))
    node = Node(folder / "n")
    environment = {**os.environ, **node.environment, "RAY_TMPDIR": str(folder)}
    environment["RAY_AUTH_MODE"] = "disabled"
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    words = ["--block", "--num-cpus=2", "--include-dashboard=false", f"--port={port}"]
    words += [f"--object-store-memory={OBJECT_STORE}", f"--plasma-directory={folder}"]
    command = [sys.executable, "-m", "vramkit.cli", "cluster", "start"]
    started = subprocess.Popen(
        [*command, "--oversubscription=1.5", "--", *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    source = (
        "import ray\n"
        "from vramkit.integrations.ray import options\n"
        f"ray.init(address='127.0.0.1:{port}', log_to_driver=False)\n"
        "limit = lambda: __import__('vramkit').driver.open().device().memory_info().total\n"
        "task = ray.remote(max_calls=1)(limit).options(**options('24MiB'))\n"
        "print(ray.cluster_resources()['vram_mib'], ray.get(task.remote()))\n"
    )

    def answer() -> str:
        assert started.poll() is None, started.communicate()[0]
        asked = [sys.executable, "-c", source]
        done = subprocess.run(asked, env=environment, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    try:
        assert until(answer) == f"96.0 {24 * MIB}"
    finally:
        started.terminate()
        started.communicate()
    until(lambda: not node.left(), node.left)
    until(lambda: not processes_in(folder), lambda: processes_in(folder))
    shutil.rmtree(folder)


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
