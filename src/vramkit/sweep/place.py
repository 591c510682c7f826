"""Where batches of tasks run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from vramkit.sweep.tasks import Answer, Batch


class PlaceError(Exception):
    """Nothing can run there; says why and what to do."""


class Gone(msgspec.Struct, frozen=True):
    """The worker that had the batch: what it has not answered, it will not."""

    why: str


class Place(Protocol):
    """A place
    1. takes batches while room() says so, and runs each in one worker, in any order;
    2. tells the answers as they come, each once, by the key that the batch was given with;
    3. says where a worker was lost, and runs nothing a second time by itself;
    4. leaves nothing behind after close(), whatever was running.
    """

    def room(self) -> bool:
        """Whether another batch would not only wait. Raises PlaceError."""
        ...

    def give(self, key: int, batch: Batch) -> None: ...

    def wait(self, seconds: float) -> list[tuple[int, Answer | Gone]]:
        """What has come; waits up to so many seconds for something. Raises PlaceError."""
        ...

    def workers(self) -> int:
        """How many batches run at the same time, as far as is known; at least one."""
        ...

    def close(self, hurry: Callable[[], bool]) -> None:
        """Ends what still runs, and gives it some seconds to clean up, unless there is a hurry."""
        ...
