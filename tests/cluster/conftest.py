"""A Ray cluster for the tests of a module, and actors on it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from . import actors
from .nodes import processes_in, until
from .ray_cluster import RayCluster, on, programs


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
