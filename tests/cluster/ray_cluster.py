"""A Ray cluster on this machine, and what its tests ask it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vramkit.share.status import ProgramStatus

from .nodes import ANNOUNCED, MIB, Node, until

# The least that Ray takes, on disk: /dev/shm of a container is small, and what is there is seen.
OBJECT_STORE = 75 * MIB


class RayCluster:
    """A head without a card, and nodes."""

    def __init__(self, folder: Path) -> None:
        from ray.cluster_utils import Cluster

        self.folder = folder
        self.nodes: dict[str, tuple[Node, Any]] = {}
        self._cluster = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 0, "include_dashboard": False, **self._store()},
        )

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def _store(self) -> dict[str, Any]:
        return {"object_store_memory": OBJECT_STORE, "plasma_directory": str(self.folder)}

    def add(self, name: str, *, cards: int = 1, **options: Any) -> str:
        """A node; its id in the cluster. With several cards Ray counts them. `options`: of Node."""
        node = Node(self.folder / name, **options)
        started = self._cluster.add_node(
            num_cpus=8,
            num_gpus=cards if cards > 1 else 0,
            resources={"vram_mib": cards * ANNOUNCED},
            env_vars=node.environment,
            **self._store(),
        )
        self.nodes[started.node_id] = node, started
        return str(started.node_id)

    def remove(self, number: str, *, at_once: bool = False) -> Node:
        node, started = self.nodes.pop(number)
        self._cluster.remove_node(started, allow_graceful=not at_once)
        return node

    def shutdown(self) -> list[Node]:
        self._cluster.shutdown()
        return [node for node, _ in self.nodes.values()]


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


def free(node: str) -> float:
    """Ray's own count of the resource."""
    import ray

    return float(ray._private.state.available_resources_per_node()[node].get("vram_mib", 0))
