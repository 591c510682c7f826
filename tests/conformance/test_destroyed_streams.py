"""Calls on the handle of a destroyed stream, in a process of their own: undefined in CUDA."""

from __future__ import annotations

import pytest

# What is there beside it, made before and after the destruction.
SETTINGS = {
    "alone": ("None", "None"),
    "another stream alive": ("ok(cu.cuStreamCreate(1))", "None"),
    "a stream created after": ("None", "ok(cu.cuStreamCreate(1))"),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_calls_on_a_destroyed_stream(isolated, undefined, setting):
    before, after = SETTINGS[setting]
    undefined(
        isolated(
            f"""
            event, before = ok(cu.cuEventCreate(0)), {before}
            stream = ok(cu.cuStreamCreate(1))
            ok(cu.cuStreamDestroy(stream))
            after = {after}
            cu.cuStreamGetId(stream)
            cu.cuStreamGetCtx(stream)
            cu.cuStreamIsCapturing(stream)
            cu.cuStreamGetCaptureInfo(stream)
            cu.cuEventRecord(event, stream)
            cu.cuStreamQuery(stream)
            cu.cuStreamDestroy(stream)
            """
        )
    )
