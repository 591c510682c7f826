"""A Ray cluster for the tests of a module, and actors on it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from . import actors
from .nodes import folder_of_ray, until
from .ray_cluster import RayCluster, on, programs


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """Two nodes with a card each; the tests are connected with it."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: `make test-cluster`")
    with folder_of_ray() as folder:
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
