"""Prometheus asks the daemons of two nodes at once: no series of one is one of the other's."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from .machine import Machine, Started, until

pytestmark = pytest.mark.sim_only

NAMES = "gpu1", "gpu2"
PROGRAM_BYTES = 8 << 20


class Node(NamedTuple):
    name: str
    machine: Machine
    port: int

    def scrape(self) -> dict[str, float]:
        """By the name of the metric with its labels; nothing while nobody listens."""
        text = ""
        with suppress(URLError), urlopen(f"http://127.0.0.1:{self.port}/metrics") as answer:
            text = answer.read().decode()
        samples = (line.rpartition(" ") for line in text.splitlines() if line[0] != "#")
        return {series: float(value) for series, _, value in samples}


@pytest.fixture
def nodes(tmp_path_factory: pytest.TempPathFactory, works: Path) -> Iterator[list[Node]]:
    """Each with a daemon process, settings and a simulated card of its own. The cards have one
    name, and so one UUID: what tells their series apart is the label of the node."""
    made: list[Node] = []
    try:
        for name in NAMES:
            folder = tmp_path_factory.mktemp(name)
            folder.chmod(0o700)
            machine = Machine(folder, works)
            machine.card = made[0].machine.card if made else machine.card
            machine.variables = {"VRAMKIT_NODE": name, "XDG_CONFIG_HOME": str(folder / "config")}
            with socket.create_server(("127.0.0.1", 0)) as free:
                made.append(Node(name, machine, free.getsockname()[1]))
            machine.start_daemon(metrics_port=str(made[-1].port))
        yield made
    finally:
        for node in made:
            node.machine.finish()
    for node in made:
        node.machine.check_nothing_is_left()


def labels(series: str) -> dict[str, str]:
    return dict(re.findall(r'([a-z_]+)="((?:[^"\\]|\\.)*)"', series))


def of(metric: str, found: dict[str, float]) -> list[str]:
    return [series for series in found if series.startswith(f"{metric}{{")]


def test_series_of_two_nodes_are_told_apart(nodes: list[Node]) -> None:
    programs: list[Started] = [
        node.machine.start("rounds", PROGRAM_BYTES >> 20, 10**9) for node in nodes
    ]
    with ThreadPoolExecutor(len(nodes)) as threads:

        def scraped(ready: Callable[[dict[str, float]], bool]) -> list[dict[str, float]]:
            found: list[dict[str, float]] = []

            def all_ready() -> bool:
                found[:] = threads.map(Node.scrape, nodes)
                return all(map(ready, found))

            until(all_ready, lambda: (found, [node.machine.daemon_log for node in nodes]))
            return found

        one, two = scraped(
            lambda found: any(
                found[series] >= PROGRAM_BYTES
                for series in of("vramkit_program_resident_bytes", found)
            )
        )
    assert {labels(series)["node"] for series in one} == {NAMES[0]}
    assert {labels(series)["node"] for series in two} == {NAMES[1]}
    # In one Prometheus: as many series as both have, of which each program has its own.
    assert len(one | two) == len(one) + len(two)
    held = of("vramkit_program_held_bytes", one | two)
    assert {labels(each)["node"]: labels(each)["pid"] for each in held} == {
        name: str(program.pid) for name, program in zip(NAMES, programs, strict=True)
    }
    # Without the label their cards and daemons would be one series.
    for metric in ("vramkit_card_total_bytes", "vramkit_uptime_seconds"):
        each = of(metric, one | two)
        assert len(each) == 2
        assert len({re.sub(r'node="[^"]*",?', "", series) for series in each}) == 1
