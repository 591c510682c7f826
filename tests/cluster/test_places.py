"""What Ray's cards are, and what a node says that has no vramkit. No Ray needed."""

from __future__ import annotations

from importlib import metadata

import pytest

from vramkit.cli.errors import UsageError
from vramkit.cli.places import address_of
from vramkit.integrations.ray import places
from vramkit.integrations.ray.places import Card, cards_of, run_batch
from vramkit.sweep import PlaceError

pytestmark = pytest.mark.sim_only


def node(name: str, alive: bool = True, **resources: float) -> dict[str, object]:
    return {"NodeID": name, "Alive": alive, "Resources": {"CPU": 8.0, **resources}}


def test_a_card_is_a_gpu_with_all_its_memory_or_a_whole_node() -> None:
    nodes = [
        node("none"),
        node("gone", False, GPU=2.0),
        node("ray", GPU=2.0),
        node("both", GPU=2.0, vram_mib=2001.0),
        node("memory", vram_mib=500.0),
    ]
    assert cards_of(nodes) == [
        Card("ray", 0, 1, 0),
        Card("ray", 1, 1, 0),
        Card("both", 0, 1, 1000),
        Card("both", 1, 1, 1000),
        Card("memory", 0, 0, 500),
    ]


def test_a_node_without_vramkit_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", version)
    with pytest.raises(
        RuntimeError, match=r"node .* has no vramkit, and this machine vramkit 1\.0"
    ):
        run_batch("1.0")(b"")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("ray", "auto"),
        ("ray:10.0.0.1:6379", "10.0.0.1:6379"),
        ("ray:ray://head:10001", "ray://head:10001"),
    ],
)
def test_on_names_a_cluster(text: str, address: str) -> None:
    assert address_of(text) == address


@pytest.mark.parametrize("text", ["", "ray:", "rays", "10.0.0.1:6379", "slurm:x"])
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="it may be ray "):
        address_of(text)


class Idle:
    """Ray without anything."""

    def cluster_resources(self) -> dict[str, float]:
        return {}

    def nodes(self) -> list[dict[str, object]]:
        return [node("a")]


class NoTasks:
    ray = Idle()


def test_a_cluster_without_cards_or_cpus_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "_Tasks", NoTasks)
    with pytest.raises(PlaceError, match="no node of the cluster has a card: none announces vram"):
        places.Cards()
    with pytest.raises(PlaceError, match="the cluster has no CPUs for tasks"):
        places.Cpus()
