"""Real Ray: a worker, a node, an agent, a daemon or a driver is lost, and nothing stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vramkit.share.connect import Controls

from . import actors
from .nodes import MIB, processes_in, until
from .ray_cluster import RayCluster, known, on, programs

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.sim_only,
    pytest.mark.filterwarnings("default"),  # Ray's own
]

ROOT = Path(__file__).parents[2]


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

    def commands() -> dict[int, bytes]:
        found = {pid: Path(f"/proc/{pid}/cmdline") for pid in processes_in(node.folder)}
        return {pid: each.read_bytes().strip(b"\0")[:100] for pid, each in found.items()}

    def agents() -> list[int]:
        return [pid for pid, each in commands().items() if each == b"ray::RuntimeEnvAgent"]

    (agent,) = until(agents, commands)
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
