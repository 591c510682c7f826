"""Helpers of the user object tests: an object that sees its own end."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

from .support import name, ok

NO_DESTRUCTOR_SYNC = 1
MOVE = 1
DATA = 4711

# A real driver may run the callback later, in a thread of its own.
PATIENCE_SECONDS = 10

CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Witness:
    """A user object, and what its callback was called with."""

    def __init__(self, cu: Any, references: int = 1) -> None:
        self._cu = cu
        self._called = threading.Event()
        self.seen: list[int] = []
        self.threads: list[int] = []
        self._function = CALLBACK(self._destroyed)  # kept: the driver has its address alone
        address = ctypes.cast(self._function, ctypes.c_void_p).value
        self.handle = ok(
            cu.cuUserObjectCreate(DATA, cu.CUhostFn(address), references, NO_DESTRUCTOR_SYNC)
        )

    def _destroyed(self, data: int) -> None:
        self.seen.append(data)
        self.threads.append(threading.get_ident())
        self._called.set()

    @property
    def alive(self) -> bool:
        """Whether the callback has not been called so far."""
        return not self.seen

    def is_gone(self) -> bool:
        """Waits for the callback; whether it came, once and with its data."""
        self._called.wait(PATIENCE_SECONDS)
        return self.seen == [DATA]

    def release(self, count: int = 1) -> None:
        ok(self._cu.cuUserObjectRelease(self.handle, count))

    def into(self, graph: Any, count: int = 1, flags: int = MOVE) -> Witness:
        ok(self._cu.cuGraphRetainUserObject(graph, self.handle, count, flags))
        return self


def graph_of(cu: Any, stream: Any, *launches: Any) -> Any:
    """A graph of what the functions issue to the stream; the caller destroys it."""
    ok(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode(0)))
    for launch in launches:
        launch(stream)
    return ok(cu.cuStreamEndCapture(stream))


def capture_info(cu: Any, stream: Any) -> tuple[str, int, Any, list[Any]]:
    """Status in a word, id, graph and dependencies."""
    answer = cu.cuStreamGetCaptureInfo(stream)
    assert int(answer[0]) == 0, name(answer)
    status, identity, graph, dependencies = answer[1:5]
    word = str(status.name).removeprefix("CU_STREAM_CAPTURE_STATUS_").lower()
    return word, int(identity), graph, list(dependencies or [])
