"""Setting device memory to values of one, two and four bytes."""

from __future__ import annotations

import ctypes

import pytest

from .support import INVALID_VALUE, NOT_READY, SUCCESS, name, ok

WIDTHS = {1: 0xAB, 2: 0xABCD, 4: 0xABCDEF01}


def fill(cu, width: int, address: int, count: int, stream=None):
    suffix = {1: "D8", 2: "D16", 4: "D32"}[width]
    if stream is None:
        return getattr(cu, f"cuMemset{suffix}")(address, WIDTHS[width], count)
    return getattr(cu, f"cuMemset{suffix}Async")(address, WIDTHS[width], count, stream)


@pytest.mark.parametrize("form", ["sync", "async"])
@pytest.mark.parametrize("width", WIDTHS)
def test_values_land_and_nothing_else_changes(cu, scope, width, form):
    memory = scope.alloc(4096)
    ok(cu.cuMemsetD8(memory, 0, 4096))
    ok(cu.cuCtxSynchronize())
    ok(fill(cu, width, memory + 64, 100, None if form == "sync" else scope.stream()))
    ok(cu.cuCtxSynchronize())
    value = WIDTHS[width].to_bytes(width, "little") * 100
    assert scope.read(memory, 4096) == bytes(64) + value + bytes(4096 - 64 - len(value))


@pytest.mark.parametrize("form", ["sync", "async"])
@pytest.mark.parametrize(("width", "offset"), [(2, 1), (4, 1), (4, 2)])
def test_misaligned_address_is_refused(cu, scope, width, offset, form):
    memory = scope.alloc(4096)
    stream = None if form == "sync" else scope.stream()
    assert name(fill(cu, width, memory + offset, 10, stream)) == INVALID_VALUE


@pytest.mark.parametrize("width", WIDTHS)
def test_no_values(cu, scope, observe, width):
    memory = scope.alloc(4096)
    observe(
        f"memset of no values of {width} bytes",
        [name(fill(cu, width, memory, 0)), name(fill(cu, width, memory, 0, scope.stream()))],
    )


def test_no_values_at_null(cu, observe):
    observe("memset of no values at null", name(cu.cuMemsetD8(0, 1, 0)))


@pytest.mark.parametrize("width", WIDTHS)
def test_null_address(cu, scope, width):
    assert name(fill(cu, width, 0, 10)) == INVALID_VALUE
    assert name(fill(cu, width, 0, 10, scope.stream())) == INVALID_VALUE


@pytest.mark.parametrize("kind", ["pinned", "registered"])
def test_host_memory_known_to_the_driver(cu, scope, kind):
    address = getattr(scope, kind)(4096)
    ok(cu.cuMemsetD32(address, 0x12345678, 1024))
    ok(cu.cuCtxSynchronize())
    assert ctypes.string_at(address, 4096) == (0x12345678).to_bytes(4, "little") * 1024


def test_memset_in_a_stream_waits_its_turn(cu, scope, kernels):
    stream, memory = scope.stream(), scope.alloc(4096)
    kernels.spin(stream)
    ok(cu.cuMemsetD8Async(memory, 7, 4096, stream))
    assert name(cu.cuStreamQuery(stream)) == NOT_READY
    ok(cu.cuStreamSynchronize(stream))
    assert scope.read(memory, 4096) == b"\x07" * 4096


def test_plain_memset_of_device_memory_returns_before_it_has_run(cu, scope, kernels):
    blocking, memory = scope.stream(0), scope.alloc(4096)
    kernels.spin(blocking)
    event = scope.recorded(blocking)
    assert name(cu.cuMemsetD8(memory, 1, 4096)) == SUCCESS
    assert name(cu.cuEventQuery(event)) == NOT_READY
