"""What Ray's cards are, and what a node says that has no vramkit. No Ray needed."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from vramkit.cli.errors import UsageError
from vramkit.cli.lab.prepare import Waiting
from vramkit.cli.places import address_of
from vramkit.integrations.ray import places
from vramkit.integrations.ray.places import Card, cards_of, run_batch
from vramkit.sweep import Batch, PlaceError, code
from vramkit.sweep.code import fingerprint

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
        run_batch("1.0", "")(b"")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("ray", None),
        ("ray:10.0.0.1:6379", "10.0.0.1:6379"),
        ("ray:ray://head:10001", "ray://head:10001"),
    ],
)
def test_on_names_a_cluster(text: str, address: str | None) -> None:
    assert address_of(text) == address


@pytest.mark.parametrize("text", ["", "ray:", "rays", "10.0.0.1:6379", "slurm:x"])
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="it may be ray "):
        address_of(text)


class FakeRay:
    """Ray whose tasks end when they are killed. Notes what it is asked, in order."""

    def __init__(self) -> None:
        self.asked: list[object] = []
        self.lost = False

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2.0}

    def nodes(self) -> list[dict[str, object]]:
        return [node("a")]

    def remote(self, **options: object) -> Any:
        return lambda function: self

    def options(self, **options: object) -> Any:
        return SimpleNamespace(remote=lambda text: f"task {len(self.asked)}")

    def wait(
        self, references: list[str], *, num_returns: int, timeout: float
    ) -> tuple[list[str], list[str]]:
        if self.lost:
            raise ConnectionError("Client is shutting down. It is.")
        if ("cancel", True) in self.asked:
            return references, []
        self.asked.append("wait")
        return [], references

    def cancel(self, reference: str, *, force: bool) -> None:
        self.asked.append(("cancel", force))


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    made = FakeRay()
    monkeypatch.setattr(places, "imported", lambda name, extra: made)
    return made


def test_a_cluster_without_cards_or_cpus_is_told(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PlaceError, match="no node of the cluster has a card: none announces vram"):
        places.Cards()
    monkeypatch.setattr(ray, "cluster_resources", dict)
    with pytest.raises(PlaceError, match="the cluster has no CPUs for tasks"):
        places.Cpus()


def test_a_cluster_that_has_lost_all_cpus_is_waited_for_a_while(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(places, "time", SimpleNamespace(monotonic=lambda: now))
    place = places.Cpus()
    with monkeypatch.context() as without:
        without.setattr(ray, "cluster_resources", dict)
        now += 50
        assert place.room()  # one task at a time, for the nodes that may come
    now += 50
    assert place.room()
    monkeypatch.setattr(ray, "cluster_resources", dict)
    now += 50
    assert place.room()
    now += 50
    with pytest.raises(PlaceError, match="the cluster has had no CPUs for 60 s"):
        place.room()


BATCH = Batch("work", msgspec.Raw(b"0"), [])


def test_in_a_hurry_tasks_are_killed_at_once(ray: FakeRay) -> None:
    """Two tasks; the hurry comes in the third look whether they have ended."""
    place = places.Cpus()
    place.give(0, BATCH)
    ray.asked.append("given")
    place.give(1, BATCH)
    ray.asked.clear()
    looks = iter([False, False, True])
    place.close(lambda: next(looks))
    assert next(looks, None) is None
    killed = [("cancel", True)] * 2
    assert ray.asked == [("cancel", False)] * 2 + ["wait"] * 2 + killed


def test_without_a_hurry_tasks_have_time_to_clean_up(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    def wait(
        references: list[str], *, num_returns: int, timeout: float
    ) -> tuple[list[str], list[str]]:
        nonlocal now
        now += timeout
        return [], references

    place = places.Cpus()
    place.give(0, BATCH)
    ray.wait = wait  # type: ignore[method-assign]
    times: list[tuple[bool, float]] = []
    ray.cancel = lambda _, force: times.append((force, now))  # type: ignore[method-assign]
    monkeypatch.setattr(places, "time", SimpleNamespace(monotonic=lambda: now))
    place.close(lambda: False)
    assert times[0] == (False, 0.0)
    assert times[1] == (True, pytest.approx(places.END_SECONDS, abs=0.2))
    assert now == pytest.approx(2 * places.END_SECONDS, abs=0.4)


def test_a_lost_connection_ends_the_sweep_and_keeps_what_there_is(ray: FakeRay) -> None:
    place = places.Cpus()
    place.give(0, BATCH)
    ray.lost = True
    with pytest.raises(PlaceError, match=r"the connection with Ray is lost: .* is shutting down$"):
        place.wait(0.1)
    place.close(lambda: False)  # nor does that raise


def test_a_node_with_other_code_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the same version, as two checkouts are."""
    here = metadata.version("vramkit")
    empty = msgspec.json.encode(BATCH)
    assert run_batch(here, fingerprint())(empty) == b"[]"
    with pytest.raises(RuntimeError, match=f"has vramkit {here} with other code than this machine"):
        run_batch(here, "0" * 64)(empty)
    # One that is older than the comparison.
    monkeypatch.setitem(sys.modules, "vramkit.sweep.code", None)
    with pytest.raises(RuntimeError, match="with other code than this machine"):
        run_batch(here, fingerprint())(empty)


def test_a_fingerprint_is_of_names_and_contents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.setattr(code, "__file__", str(tmp_path / "a" / "code.py"))

    def taken(name: str, text: str) -> str:
        for each in tmp_path.rglob("*.*"):
            each.unlink()
        (tmp_path / "a" / name).write_text(text)
        return code.fingerprint.__wrapped__()

    found = [taken(*each) for each in (("x.py", "1"), ("x.py", "2"), ("y.py", "1"), ("x.so", "1"))]
    assert len(set(found)) == 4 and taken("x.py", "1") == found[0]
    assert found[3] == taken("x.so", "2")


def test_a_run_that_waits_for_its_first_card_says_so_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = 100.0
    waiting = Waiting(lambda: now)
    for seconds, lines in ((0, 0), (9, 0), (2, 1), (5, 0), (100, 0)):
        now += seconds
        waiting()
        assert len(said := capsys.readouterr().err.splitlines()) == lines
        assert not said or "waiting for a card of the cluster" in said[0]
