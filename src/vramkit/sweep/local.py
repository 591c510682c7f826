"""Processes of this machine, each of which runs many batches."""

from __future__ import annotations

import os
import select
from collections.abc import Callable

import msgspec

from vramkit.sweep.child import Child
from vramkit.sweep.place import Gone, PlaceError
from vramkit.sweep.tasks import Answer, Batch

STARTS = 3
"""Workers that end before they can begin, one after the other, until the place gives up."""

_ANSWERS: msgspec.json.Decoder[Answer | None] = msgspec.json.Decoder(Answer | None)


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0))


class LocalPlace:
    """A Place. Workers are started when there is something to do."""

    def __init__(self, workers: int | None = None) -> None:
        self._most = cores() if workers is None else workers
        self._workers: list[_Worker] = []
        self._failed_starts = 0

    def workers(self) -> int:
        return self._most

    def room(self) -> bool:
        return len(self._workers) < self._most or any(not each.left for each in self._workers)

    def give(self, key: int, batch: Batch) -> None:
        worker = next((each for each in self._workers if not each.left), None)
        if worker is None:
            worker = _Worker()
            self._workers.append(worker)
        worker.give(key, batch)

    def wait(self, seconds: float) -> list[tuple[int, Answer | Gone]]:
        found: list[tuple[int, Answer | Gone]] = []
        pipes = [pipe for each in self._workers for pipe in each.child.pipes()]
        select.select(pipes, [], [], seconds)
        for worker in list(self._workers):
            found += self._answers(worker)
        return found

    def _answers(self, worker: _Worker) -> list[tuple[int, Answer | Gone]]:
        found: list[tuple[int, Answer | Gone]] = []
        why = ""
        while True:
            try:
                answer = worker.child.look(0)
            except msgspec.DecodeError as error:
                why = f"answered what cannot be read: {error}"
                break
            if answer == "nothing yet":
                return found
            if answer == "the end":
                break
            if answer is None:
                worker.ready, self._failed_starts = True, 0
            else:
                worker.left.discard(answer.number)
                found.append((worker.key, answer))
        worker.child.end(asked=bool(why))  # else it is ending, and its last words say why
        self._workers.remove(worker)
        why = why or worker.child.last_words()
        if not worker.ready:
            self._failed_starts += 1
            if self._failed_starts == STARTS:
                raise PlaceError(f"a worker process cannot begin: {why}")
        if worker.left:
            found.append((worker.key, Gone(f"its process was lost ({why})")))
        return found

    def close(self, hurry: Callable[[], bool]) -> None:
        for worker in self._workers:
            # They hold nothing that is to be cleaned up.
            worker.child.end(asked=True, hurry=lambda: True)
        self._workers.clear()


class _Worker:
    def __init__(self) -> None:
        # -P: a file in the current folder must not stand for a module of ours.
        arguments = ["-P", "-m", "vramkit.sweep.worker", str(os.getpid())]
        self.child: Child[Answer | None] = Child(arguments, _ANSWERS)
        self.ready = False
        self.key = -1
        self.left: set[int] = set()
        """The tasks that it has not answered."""

    def give(self, key: int, batch: Batch) -> None:
        self.key, self.left = key, {task.number for task in batch.tasks}
        self.child.give(msgspec.json.encode(batch))
