"""What becomes of a call on the handle of a destroyed stream, each in a process of its own."""

from __future__ import annotations

import pytest

CALLS = {
    "cuStreamGetId": "cu.cuStreamGetId(stream)",
    "cuStreamGetCtx": "cu.cuStreamGetCtx(stream)",
    "cuStreamIsCapturing": "cu.cuStreamIsCapturing(stream)",
    "cuStreamGetCaptureInfo": "cu.cuStreamGetCaptureInfo(stream)",
    "cuEventRecord": "cu.cuEventRecord(event, stream)",
}

# What is there beside it, made before and after the destruction.
SETTINGS = {
    "alone": ("None", "None"),
    "another stream alive": ("ok(cu.cuStreamCreate(1))", "None"),
    "a stream created after": ("None", "ok(cu.cuStreamCreate(1))"),
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("call", CALLS)
def test_call_on_a_destroyed_stream(isolated, observe, call, setting):
    before, after = SETTINGS[setting]
    outcome = isolated(
        f"""
        event, before = ok(cu.cuEventCreate(0)), {before}
        stream = ok(cu.cuStreamCreate(1))
        handle, identity = int(stream), int(ok(cu.cuStreamGetId(stream)))
        ok(cu.cuStreamDestroy(stream))
        after = {after}
        note("handle came back", after is not None and int(after) == handle)
        answer = {CALLS[call]}
        note("answer", name(answer))
        if "{call}" == "cuStreamGetId" and int(answer[0]) == 0:
            note("id is still its own", int(answer[1]) == identity)
        """
    )
    observe(f"destroyed stream, {setting}: {call}", outcome)
