"""Copies between contexts, and access of one card to another's memory, as far as one card shows."""

from __future__ import annotations

import ctypes

import pytest

from .boxes import all_done, check_copied, pair, parameters
from .capturing import capturing
from .support import INVALID_CONTEXT, INVALID_DEVICE, INVALID_VALUE, NOT_READY, SUCCESS, name, ok

NOT_ENABLED = "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED"


@pytest.mark.parametrize("form", ["sync", "async"])
@pytest.mark.parametrize("other", [False, True], ids=["one context", "two contexts"])
def test_copy_between_contexts(cu, scope, form, other):
    context = scope.context() if other else cu.primary
    target, stream = scope.alloc(4096), scope.stream()
    ok(cu.cuCtxPushCurrent(context))
    source = scope.alloc(4096) if not other else int(ok(cu.cuMemAlloc(4096)))
    scope.write(source, bytes(range(256)) * 16)
    ok(cu.cuCtxPopCurrent())
    if form == "sync":
        ok(cu.cuMemcpyPeer(target, cu.primary, source, context, 4096))
        all_done(cu)
    else:
        ok(cu.cuMemcpyPeerAsync(target, cu.primary, source, context, 4096, stream))
        ok(cu.cuStreamSynchronize(stream))
    assert scope.read(target, 4096) == bytes(range(256)) * 16
    if other:
        ok(cu.cuCtxPushCurrent(context))
        ok(cu.cuMemFree(source))
        ok(cu.cuCtxPopCurrent())


def test_copy_in_a_stream_waits_its_turn_and_is_not_captured(cu, scope, kernels):
    target, source, stream = scope.alloc(4096), scope.alloc(4096), scope.stream()
    ok(cu.cuMemsetD8(source, 4, 4096))
    all_done(cu)
    kernels.spin(stream)
    ok(cu.cuMemcpyPeerAsync(target, cu.primary, source, cu.primary, 4096, stream))
    assert name(cu.cuStreamQuery(stream)) == NOT_READY
    ok(cu.cuStreamSynchronize(stream))
    with capturing(cu, scope, stream) as capture:
        refused = cu.cuMemcpyPeerAsync(target, cu.primary, source, cu.primary, 4096, stream)
        assert name(refused) == "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
    assert capture.nodes() == 0
    assert scope.read(target, 4096) == b"\x04" * 4096


@pytest.mark.parametrize("form", ["sync", "async"])
@pytest.mark.parametrize("kinds", [("device", "device"), ("pinned", "device")], ids=" to ".join)
def test_boxes_between_contexts(cu, scope, kinds, form):
    extent, stream = (33, 5, 3), scope.stream()
    target, source = pair(cu, scope, kinds, extent, kinds)
    given = parameters(cu, target, source, extent, dimensions=3, peer=cu.primary)
    all_done(cu)
    ok(cu.cuMemcpy3DPeer(given) if form == "sync" else cu.cuMemcpy3DPeerAsync(given, stream))
    all_done(cu)
    check_copied(target, source, extent)


def test_null_contexts(raw, scope, observe):
    target, source = scope.alloc(4096), scope.alloc(4096)
    null, size = ctypes.c_void_p(), ctypes.c_size_t(64)
    given = (ctypes.c_uint64(target), null, ctypes.c_uint64(source), null, size)
    observe("copy between null contexts", raw.cuMemcpyPeer(*given))


def test_access_to_oneself_cannot_be_enabled(cu):
    assert name(cu.cuCtxEnablePeerAccess(cu.primary, 0)) == "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"


def test_access_takes_no_flags(cu, scope):
    assert name(cu.cuCtxEnablePeerAccess(scope.context(), 1)) == INVALID_VALUE


def test_access_to_no_context(cu):
    assert name(cu.cuCtxEnablePeerAccess(0, 0)) == INVALID_CONTEXT
    assert name(cu.cuCtxDisablePeerAccess(0)) == INVALID_CONTEXT


def test_access_that_was_not_enabled_cannot_be_disabled(cu, scope):
    assert name(cu.cuCtxDisablePeerAccess(scope.context())) == NOT_ENABLED


def test_access_to_another_context_of_the_device(cu, scope, observe):
    context = scope.context()
    answer = name(cu.cuCtxEnablePeerAccess(context, 0))
    if answer == SUCCESS:
        ok(cu.cuCtxDisablePeerAccess(context))
    observe("peer access to another context of the device", answer)


def test_a_device_has_no_link_to_itself(cu):
    for attribute in cu.CUdevice_P2PAttribute:
        answer = cu.cuDeviceGetP2PAttribute(attribute, cu.device, cu.device)
        if int(attribute) <= 4:
            assert name(answer) == INVALID_DEVICE


def test_no_room_for_an_attribute(cu, raw):
    answer = raw.cuDeviceGetP2PAttribute(
        ctypes.c_void_p(), ctypes.c_int(1), ctypes.c_int(0), ctypes.c_int(0)
    )
    assert answer in (INVALID_VALUE, INVALID_DEVICE)
