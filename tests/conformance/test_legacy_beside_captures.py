"""What the legacy default stream tells of itself beside captures, and what the question does."""

from __future__ import annotations

from typing import Any

import pytest

from .capturing import IMPLICIT, MODES, capturing
from .support import in_thread, name, ok

HANDLES = (0, 1)
FLAGS = {"blocking": 0, "non-blocking": 1}
QUESTIONS = [
    "cuStreamGetId",
    "cuStreamGetFlags",
    "cuStreamGetCtx",
    "cuStreamGetPriority",
    "cuStreamIsCapturing",
]


def elsewhere(cu: Any, question: str, handle: int) -> str:
    """The answer on another thread, where the same context is current."""

    def ask() -> str:
        ok(cu.cuCtxPushCurrent(cu.primary))
        try:
            return name(getattr(cu, question)(handle))
        finally:
            ok(cu.cuCtxPopCurrent())

    return str(in_thread(ask))


@pytest.mark.parametrize("kind", FLAGS)
@pytest.mark.parametrize("question", QUESTIONS)
def test_question_beside_a_capture(cu, scope, observe, question, kind):
    """The answer, and how the capture ends, by handle, capture mode, and who asks."""
    outcome = {}
    for handle in HANDLES:
        for mode in MODES:
            for whose in ("own", "another"):
                with capturing(cu, scope, scope.stream(FLAGS[kind]), MODES[mode]) as capture:
                    if whose == "own":
                        answer = name(getattr(cu, question)(handle))
                    else:
                        answer = elsewhere(cu, question, handle)
                outcome[f"{handle}, {mode}, {whose} thread"] = f"{answer}, end: {capture.ended}"
    observe(f"legacy stream beside a {kind} capture: {question}", outcome)


@pytest.mark.parametrize("mode", MODES)
def test_no_id_beside_a_blocking_capture(cu, scope, mode):
    with capturing(cu, scope, scope.stream(0), MODES[mode]):
        assert name(cu.cuStreamGetId(0)) == IMPLICIT
        assert elsewhere(cu, "cuStreamGetId", 0) == IMPLICIT
    ok(cu.cuStreamGetId(0))
