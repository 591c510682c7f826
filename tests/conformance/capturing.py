"""Helpers of the capture tests: a capture that is always ended, and graphs that are destroyed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .support import name, ok

GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
MODES = {"global": GLOBAL, "thread local": THREAD_LOCAL, "relaxed": RELAXED}

UNSUPPORTED = "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
INVALIDATED = "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"
MERGE = "CUDA_ERROR_STREAM_CAPTURE_MERGE"
UNMATCHED = "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED"
UNJOINED = "CUDA_ERROR_STREAM_CAPTURE_UNJOINED"
ISOLATION = "CUDA_ERROR_STREAM_CAPTURE_ISOLATION"
IMPLICIT = "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"
CAPTURED_EVENT = "CUDA_ERROR_CAPTURED_EVENT"
WRONG_THREAD = "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD"


def exchange(cu: Any, mode: int) -> int:
    """Sets the capture mode of this thread; the one before."""
    return int(ok(cu.cuThreadExchangeStreamCaptureMode(cu.CUstreamCaptureMode(mode))))


class Capture:
    """One capture: what its end returned, and the graph it made."""

    def __init__(self, cu: Any, scope: Any, stream: Any, mode: int = GLOBAL) -> None:
        self._cu = cu
        self._scope = scope
        self._stream = stream
        self.ended: str | None = None
        self.graph: Any = None
        ok(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode(mode)))

    def end(self) -> str:
        answer = self._cu.cuStreamEndCapture(self._stream)
        self.ended = name(answer)
        if int(answer[0]) == 0:
            self.graph = answer[1]
            self._scope.undo(self._cu.cuGraphDestroy, self.graph)
        return self.ended

    def nodes(self) -> int:
        return int(ok(self._cu.cuGraphGetNodes(self.graph))[1])

    def executable(self) -> Any:
        made = ok(self._cu.cuGraphInstantiate(self.graph, 0))
        self._scope.undo(self._cu.cuGraphExecDestroy, made)
        return made


@contextmanager
def capturing(cu: Any, scope: Any, stream: Any, mode: int = GLOBAL) -> Iterator[Capture]:
    """Ends the capture at the end of the block, unless the test did; whatever that returns."""
    capture = Capture(cu, scope, stream, mode)
    try:
        yield capture
    finally:
        if capture.ended is None:
            capture.end()


def status(cu: Any, stream: Any) -> str:
    """ "none", "active" or "invalidated"."""
    answer = ok(cu.cuStreamIsCapturing(stream))
    return str(answer.name).removeprefix("CU_STREAM_CAPTURE_STATUS_").lower()
