"""The loop of a sweep: gives batches to a place, and lost tasks again."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import count

from msgspec import structs

from vramkit.sweep.place import Gone, Place
from vramkit.sweep.tasks import Batch, Ended, Lost, Task

TRIES = 3
"""Of a task by itself whose worker is lost each time."""
WAIT_SECONDS = 0.1
"""Between two looks whether the sweep is to end."""


def run(
    batches: Iterable[Batch],
    place: Place,
    *,
    check: Callable[[], None] = lambda: None,
    again: Callable[[Task, str], None] = lambda task, why: None,
    hurry: Callable[[], bool] = lambda: False,
) -> Iterator[Ended]:
    """The end of each task, once, as they come.

    A task that was lost with others is run by itself: if it was the one that ended its worker, it
    takes no other with it again. Lost so TRIES times, it ends as Lost. `again` is told of each that
    is run again. `check` is called now and then, and ends the sweep by raising. Closes the place;
    `hurry` says whether what still runs has no time to clean up.
    """
    waiting = deque(batches)
    running: dict[int, tuple[Batch, dict[int, Task]]] = {}
    """By key: the batch, and its tasks without an answer."""
    lost: Counter[int] = Counter()
    keys = count()
    try:
        while waiting or running:
            check()
            while waiting and place.room():
                batch, key = waiting.popleft(), next(keys)
                running[key] = batch, {task.number: task for task in batch.tasks}
                place.give(key, batch)
            for key, what in place.wait(WAIT_SECONDS):
                batch, left = running[key]
                if not isinstance(what, Gone):
                    del left[what.number]
                    yield what
                    if not left:
                        del running[key]
                    continue
                del running[key]
                alone = len(batch.tasks) == 1
                for task in left.values():
                    lost[task.number] += alone
                    if lost[task.number] == TRIES:
                        yield Lost(task.number, f"lost {TRIES} times: {what.why}")
                    else:
                        again(task, what.why)
                        waiting.append(structs.replace(batch, tasks=[task]))
    finally:
        place.close(hurry)
