"""Batches of a sweep as tasks of Ray: on its CPUs, or each on a card of its own.

Ray decides where a task of a CPU runs. A card's is bound to the card's node, because what a whole
card is differs from node to node. Nothing is retried by Ray: a sweep runs lost tasks again itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import msgspec

from vramkit.integrations._frameworks import imported
from vramkit.integrations.ray.node import RESOURCE
from vramkit.sweep.child import GRACE_SECONDS
from vramkit.sweep.code import fingerprint
from vramkit.sweep.place import Gone, PlaceError
from vramkit.sweep.tasks import Answer, Batch

LOOK_SECONDS = 2.0
"""Between two looks at what nodes there are."""
DISTRUST_SECONDS = 5.0
"""A node that lost a task gets no other one for so long: Ray may not know yet that it is gone."""
EMPTY_SECONDS = 60.0
"""A cluster whose nodes are all gone gets new ones within this time, or is given up."""
END_SECONDS = GRACE_SECONDS + 2
"""For the end of tasks that are cancelled."""
LOOK_AT_END_SECONDS = 0.1
"""Between two looks whether there is a hurry meanwhile."""
OWN_WORKERS = {"env_vars": {"VRAMKIT_SWEEP": "1"}}
"""Ray keeps processes for tasks with the same environment: where a simulated GPU was opened, no
program of the user's may run later."""

_ANSWERS = msgspec.json.Decoder(list[Answer])


def run_batch(wanted: str, code: str) -> Callable[[bytes], bytes]:
    """What Ray sends to the nodes, by value: they may have no vramkit, or another one, by its
    version or by its fingerprint, as checkouts of different days are.

    Raises RuntimeError there, which says so.
    """

    def vramkit_sweep(text: bytes) -> bytes:
        import socket
        from importlib.metadata import PackageNotFoundError, version

        try:
            found = "vramkit " + version("vramkit")
        except PackageNotFoundError:
            found = "no vramkit"
        if found != f"vramkit {wanted}":
            raise RuntimeError(
                f"node {socket.gethostname()} has {found}, and this machine vramkit {wanted}; "
                "install the same on all nodes, for the Python that Ray runs with"
            )
        try:
            from vramkit.sweep.code import fingerprint

            same = fingerprint() == code
        except ImportError:
            same = False
        if not same:
            raise RuntimeError(
                f"node {socket.gethostname()} has {found} with other code than this machine; "
                "install the same on all nodes, or the same commit"
            )
        import msgspec

        from vramkit.sweep.tasks import Batch
        from vramkit.sweep.work import answers

        return msgspec.json.encode(list(answers(msgspec.json.decode(text, type=Batch))))

    return vramkit_sweep


class Cpus:
    """A Place: a batch on each CPU of the cluster. After ray.init()."""

    def __init__(self) -> None:
        self._tasks = _Tasks()
        self._cpus = 0
        self._next = 0.0
        self._seen = time.monotonic()
        if not self._look():
            raise PlaceError("the cluster has no CPUs for tasks")

    def workers(self) -> int:
        return max(1, self._cpus)

    def room(self) -> bool:
        # One more for each, so that none waits for this process.
        return len(self._tasks) < 2 * max(1, self._look())

    def give(self, key: int, batch: Batch) -> None:
        self._tasks.submit(key, batch, num_cpus=1)

    def wait(self, seconds: float) -> list[tuple[int, Answer | Gone]]:
        return [each for _, found in self._tasks.wait(seconds) for each in found]

    def close(self, hurry: Callable[[], bool]) -> None:
        self._tasks.cancel(hurry)

    def _look(self) -> int:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + LOOK_SECONDS
            self._cpus = int(self._tasks.resources().get("CPU", 0))
            if self._cpus:
                self._seen = now
            elif now - self._seen > EMPTY_SECONDS:
                raise PlaceError(f"the cluster has had no CPUs for {EMPTY_SECONDS:g} s")
        return self._cpus


@dataclass(frozen=True)
class Card:
    """Of a node, and what a task asks for to have it alone."""

    node: str
    number: int
    gpus: int
    vram_mib: float


def cards_of(nodes: list[Mapping[str, Any]]) -> list[Card]:
    """Of nodes as ray.nodes() describes them.

    A card is one GPU with all its memory. Where a node announces memory and no GPUs, nobody counts
    its cards, and it is taken as a whole.
    """
    found = []
    for node in nodes:
        resources = node["Resources"]
        gpus, memory = int(resources.get("GPU", 0)), resources.get(RESOURCE, 0.0)
        if node["Alive"] and (gpus or memory):
            count = max(1, gpus)
            found += [
                Card(node["NodeID"], number, min(1, gpus), memory // count)
                for number in range(count)
            ]
    return found


class Cards:
    """A Place: one batch on each card of the cluster, which it has alone. After ray.init()."""

    def __init__(self) -> None:
        self._tasks = _Tasks()
        self._busy: dict[int, Card] = {}
        """By the key of the batch."""
        self._distrusted: dict[str, float] = {}
        self._known: list[Card] = []
        self._next = 0.0
        self._look()

    def workers(self) -> int:
        return max(1, len(self._known))

    def room(self) -> bool:
        return self._free() is not None

    def give(self, key: int, batch: Batch) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        card = self._free()
        assert card is not None, "room() was not asked"
        self._busy[key] = card
        self._tasks.submit(
            key,
            batch,
            num_cpus=0,
            num_gpus=card.gpus,
            resources={RESOURCE: card.vram_mib} if card.vram_mib else {},
            scheduling_strategy=NodeAffinitySchedulingStrategy(card.node, soft=False),
        )

    def wait(self, seconds: float) -> list[tuple[int, Answer | Gone]]:
        found: list[tuple[int, Answer | Gone]] = []
        for key, answers in self._tasks.wait(seconds):
            card = self._busy.pop(key)
            if any(isinstance(what, Gone) for _, what in answers):
                self._distrusted[card.node] = time.monotonic() + DISTRUST_SECONDS
                self._next = 0.0
            found += answers
        return found

    def close(self, hurry: Callable[[], bool]) -> None:
        self._tasks.cancel(hurry)
        self._busy.clear()

    def _free(self) -> Card | None:
        self._look()
        now, busy = time.monotonic(), set(self._busy.values())
        for card in self._known:
            if card not in busy and self._distrusted.get(card.node, 0.0) <= now:
                return card
        return None

    def _look(self) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + LOOK_SECONDS
        self._known = cards_of(self._tasks.nodes())
        if not self._known and not self._busy:
            raise PlaceError(
                "no node of the cluster has a card: none announces vram_mib (`vramkit cluster "
                "start`) or GPU; --driver sim measures on simulated ones"
            )


class _Tasks:
    """Batches that Ray has."""

    def __init__(self) -> None:
        self.ray: Any = imported("ray", "vramkit[ray]")
        self._function = self.ray.remote(max_retries=0, runtime_env=OWN_WORKERS)(
            run_batch(version("vramkit"), fingerprint())
        )
        self._running: dict[Any, int] = {}
        """The key of each batch, by Ray's reference."""

    def __len__(self) -> int:
        return len(self._running)

    def resources(self) -> dict[str, float]:
        with _still_connected():
            return dict(self.ray.cluster_resources())

    def nodes(self) -> list[Mapping[str, Any]]:
        with _still_connected():
            return list(self.ray.nodes())

    def submit(self, key: int, batch: Batch, **options: Any) -> None:
        with _still_connected():
            reference = self._function.options(**options).remote(msgspec.json.encode(batch))
        self._running[reference] = key

    def wait(self, seconds: float) -> list[tuple[int, list[tuple[int, Answer | Gone]]]]:
        """By key: what has come of batches that have ended."""
        if not self._running:
            time.sleep(seconds)
            return []
        references = list(self._running)
        with _still_connected():
            self.ray.wait(references, num_returns=1, timeout=seconds)
            ready, _ = self.ray.wait(references, num_returns=len(references), timeout=0)
            return [self._end(reference) for reference in ready]

    def _end(self, reference: Any) -> tuple[int, list[tuple[int, Answer | Gone]]]:
        key = self._running.pop(reference)
        errors = self.ray.exceptions
        try:
            text = self.ray.get(reference)
        except errors.RayTaskError as error:
            # Of the function itself: what a task raises is an answer.
            raise PlaceError(str(error.cause)) from None
        except errors.RayError as error:
            return key, [(key, Gone(_short(error)))]
        return key, [(key, answer) for answer in _ANSWERS.decode(text)]

    def cancel(self, hurry: Callable[[], bool]) -> None:
        """First as Ctrl-C would, so that an experiment ends what it has started: Ray kills the
        children of a worker that it kills, and nobody further down. In a hurry it is killed at
        once."""
        left = list(self._running)
        self._running.clear()
        with suppress(ConnectionError):  # Ray ends the tasks of who has gone
            for force in (False, True):
                for reference in left:
                    self.ray.cancel(reference, force=force)
                left = self._ended(left, (lambda: False) if force else hurry)

    def _ended(self, left: list[Any], hurry: Callable[[], bool]) -> list[Any]:
        """Waits for their end; gives those that go on."""
        end = time.monotonic() + END_SECONDS
        while left and time.monotonic() < end and not hurry():
            _, left = self.ray.wait(left, num_returns=len(left), timeout=LOOK_AT_END_SECONDS)
        return left


@contextmanager
def _still_connected() -> Iterator[None]:
    """What there is of a sweep is kept. Raises PlaceError."""
    try:
        yield
    except ConnectionError as error:
        raise PlaceError(f"the connection with Ray is lost: {_short(error)}") from error


def _short(error: Exception) -> str:
    """Its first sentence; Ray adds where its logs are."""
    text = " ".join(str(error).split())
    return f"Ray says: {text.partition('. ')[0][:200]}"
