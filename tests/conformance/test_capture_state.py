"""Streams that are not being captured, and the capture mode of a thread."""

from __future__ import annotations

import ctypes

import pytest

from .support import SUCCESS, in_thread, ok

GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2


def exchange(cu, mode: int) -> int:
    return int(ok(cu.cuThreadExchangeStreamCaptureMode(cu.CUstreamCaptureMode(mode))))


@pytest.mark.parametrize("handle", [0, 1, 2, None], ids=["0", "1", "2", "created"])
def test_no_stream_is_captured(cu, scope, handle):
    stream = scope.stream() if handle is None else handle
    status = ok(cu.cuStreamIsCapturing(stream))
    assert status == cu.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE


def test_busy_stream_is_not_captured(cu, scope, kernels):
    stream = scope.stream()
    kernels.spin(stream)
    status = ok(cu.cuStreamIsCapturing(stream))
    assert status == cu.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE


def test_new_thread_has_the_global_mode(cu):
    assert in_thread(lambda: exchange(cu, GLOBAL)) == GLOBAL


def test_mode_goes_round(cu):
    def round_trip() -> list[int]:
        return [exchange(cu, mode) for mode in (RELAXED, THREAD_LOCAL, GLOBAL, GLOBAL)]

    assert in_thread(round_trip) == [GLOBAL, RELAXED, THREAD_LOCAL, GLOBAL]


def test_mode_belongs_to_the_thread(cu):
    before = exchange(cu, RELAXED)
    try:
        assert in_thread(lambda: exchange(cu, GLOBAL)) == GLOBAL
    finally:
        assert exchange(cu, before) == RELAXED


def test_unknown_mode_is_not_refused(raw):
    mode = ctypes.c_int(7)
    assert raw.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)) == SUCCESS
    assert raw.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)) == SUCCESS
    assert mode.value == 7
