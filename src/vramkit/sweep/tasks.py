"""Tasks and their answers, as they travel to workers and back: JSON, so that they go anywhere."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Task(msgspec.Struct, frozen=True):
    """`number` is its place in the order of the sweep, whatever the order of the answers."""

    number: int
    given: msgspec.Raw


class Batch(msgspec.Struct, frozen=True):
    """Tasks for one worker, one after the other.

    `work` is "module:function", called with `common`, what the tasks share; it gives the function
    that is called with what each task has, and gives its answer. All three are JSON.
    """

    work: str
    common: msgspec.Raw
    tasks: list[Task]


class Done(msgspec.Struct, frozen=True, tag="done"):
    number: int
    value: msgspec.Raw


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The task itself raised: another try would do the same."""

    number: int
    why: str


class Lost(msgspec.Struct, frozen=True, tag="lost"):
    """Whoever ran the task is gone, each time that it was run."""

    number: int
    why: str


Answer = Done | Failed
Ended = Done | Failed | Lost


def batches(work: str, common: msgspec.Raw, tasks: Sequence[Task], size: int) -> list[Batch]:
    """Of up to `size` tasks each."""
    return [
        Batch(work, common, list(tasks[start : start + size]))
        for start in range(0, len(tasks), size)
    ]
