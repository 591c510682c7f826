"""What a worker does with a batch, wherever it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module

import msgspec

from vramkit.sweep.tasks import Answer, Batch, Done, Failed

LONGEST = 500
"""Characters of an error."""


def answers(batch: Batch) -> Iterator[Answer]:
    """One for each task."""
    one: Callable[[bytes], bytes] | None = None
    for task in batch.tasks:
        try:
            if one is None:
                module, _, name = batch.work.partition(":")
                one = getattr(import_module(module), name)(bytes(batch.common))
            value = one(bytes(task.given))
        except Exception as error:
            yield Failed(task.number, words(error))
        else:
            yield Done(task.number, msgspec.Raw(value))


def words(error: Exception) -> str:
    """In one line."""
    text = " ".join(str(error).split())[:LONGEST]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
