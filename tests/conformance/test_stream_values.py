"""Values written and waited for by streams, 32 and 64 bits wide."""

from __future__ import annotations

import ctypes

import pytest

from .support import INVALID_VALUE, NOT_READY, SUCCESS, name, ok

GEQ, EQ, AND, NOR = 0, 1, 2, 3
WIDTHS = [32, 64]


def write(cu, width: int, stream, address: int, value: int, flags: int = 0):
    return getattr(cu, f"cuStreamWriteValue{width}")(stream, address, value, flags)


def wait(cu, width: int, stream, address: int, value: int, flags: int):
    return getattr(cu, f"cuStreamWaitValue{width}")(stream, address, value, flags)


def store(address: int, width: int, value: int) -> None:
    ctypes.memmove(address, value.to_bytes(width // 8, "little"), width // 8)


@pytest.mark.parametrize("width", WIDTHS)
def test_write_without_its_barrier_is_refused(cu, scope, width):
    assert name(write(cu, width, scope.stream(), scope.alloc(4096), 1, flags=1)) == INVALID_VALUE


@pytest.mark.parametrize("kind", ["alloc", "pinned", "registered"])
@pytest.mark.parametrize("width", WIDTHS)
def test_value_lands(cu, scope, width, kind):
    address, stream = getattr(scope, kind)(4096), scope.stream()
    ok(cu.cuMemsetD8Async(address, 0, 32, stream))
    ok(write(cu, width, stream, address + 8, (1 << (width - 1)) + 5))
    ok(cu.cuStreamSynchronize(stream))
    value = ((1 << (width - 1)) + 5).to_bytes(width // 8, "little")
    expected = bytes(8) + value + bytes(24 - len(value))
    assert scope.read(address, 32) == expected


ALL_BITS = {32: (1 << 32) - 1, 64: (1 << 64) - 1}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    ("condition", "held", "asked"),
    [
        (GEQ, 5, 5),
        (GEQ, 6, 5),
        (GEQ, 3, -2),
        (EQ, 7, 7),
        (AND, 0b0110, 0b0100),
        (NOR, 0b0110, 0b1001),
    ],
    ids=["equal", "greater", "greater around zero", "the same", "common bit", "bit in neither"],
)
def test_wait_that_is_met_already(cu, scope, width, condition, held, asked):
    address, stream = scope.pinned(4096), scope.stream()
    store(address, width, held)
    ok(wait(cu, width, stream, address, asked & ALL_BITS[width], condition))
    assert name(cu.cuStreamSynchronize(stream)) == SUCCESS


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    ("condition", "held", "asked", "then"),
    [
        (GEQ, 4, 5, 5),
        (GEQ, -2, 3, 3),
        (EQ, 8, 7, 7),
        (AND, 0b1001, 0b0110, 0b0010),
        (NOR, -1, 0, 1),
    ],
    ids=["less", "less around zero", "another", "no common bit", "every bit"],
)
def test_wait_holds_until_another_stream_writes(cu, scope, width, condition, held, asked, then):
    word = scope.pinned(4096)
    waiting, writing = scope.stream(), scope.stream()
    mask = ALL_BITS[width]
    store(word, width, held & mask)
    # Should the test fail in between, this lets the waiting stream go.
    scope.callback(store, word, width, then & mask)
    ok(wait(cu, width, waiting, word, asked & mask, condition))
    event = scope.recorded(waiting)
    assert name(cu.cuEventQuery(event)) == NOT_READY
    ok(write(cu, width, writing, word, then & mask))
    ok(cu.cuStreamSynchronize(writing))
    assert name(cu.cuEventSynchronize(event)) == SUCCESS


@pytest.mark.parametrize("width", WIDTHS)
def test_wait_on_device_memory_holds_until_another_stream_writes(cu, scope, width):
    word = scope.alloc(4096)
    waiting, writing = scope.stream(), scope.stream()
    ok(cu.cuMemsetD8(word, 0, 4096))
    ok(cu.cuCtxSynchronize())
    ok(wait(cu, width, waiting, word, 9, EQ))
    event = scope.recorded(waiting)
    outcome = name(cu.cuEventQuery(event))
    ok(write(cu, width, writing, word, 9))
    assert outcome == NOT_READY
    assert name(cu.cuEventSynchronize(event)) == SUCCESS


def test_wait_holds_until_the_host_writes(cu, scope):
    word, stream = scope.pinned(4096), scope.stream()
    scope.callback(store, word, 32, 1)
    ok(wait(cu, 32, stream, word, 1, EQ))
    assert name(cu.cuStreamQuery(stream)) == NOT_READY
    store(word, 32, 1)
    assert name(cu.cuStreamSynchronize(stream)) == SUCCESS


def test_wait_holds_until_a_kernel_writes(cu, scope, kernels):
    word = scope.pinned(4096)
    waiting, writing = scope.stream(), scope.stream()
    scope.callback(store, word, 32, 77)
    ok(wait(cu, 32, waiting, word, 77, EQ))
    assert name(cu.cuStreamQuery(waiting)) == NOT_READY
    kernels.run("vk_fill", word, 1, 77, stream=writing)
    assert name(cu.cuStreamSynchronize(waiting)) == SUCCESS


def test_work_before_a_write_is_complete_when_the_wait_ends(cu, scope, kernels):
    word, data, target = scope.pinned(4096), scope.alloc(4096), scope.alloc(4096)
    waiting, writing = scope.stream(), scope.stream()
    scope.callback(store, word, 32, 1)
    ok(wait(cu, 32, waiting, word, 1, GEQ))
    ok(cu.cuMemcpyDtoDAsync(target, data, 4096, waiting))
    kernels.spin(writing, 5_000_000)
    kernels.run("vk_fill", data, 1024, 0x0BADCAFE, stream=writing)
    ok(write(cu, 32, writing, word, 1))
    ok(cu.cuStreamSynchronize(waiting))
    assert scope.read(target, 4096) == (0x0BADCAFE).to_bytes(4, "little") * 1024


def test_wait_and_write_in_one_stream_are_in_order(cu, scope):
    word, stream = scope.pinned(4096), scope.stream()
    for value in range(1, 6):
        ok(write(cu, 32, stream, word, value))
        ok(wait(cu, 32, stream, word, value, EQ))
    assert name(cu.cuStreamSynchronize(stream)) == SUCCESS
    assert ctypes.c_uint32.from_address(word).value == 5


@pytest.mark.parametrize("stream", [0, 1, 2])
def test_write_in_each_default_stream(cu, scope, stream):
    word = scope.pinned(4096)
    ok(write(cu, 32, stream, word, 3))
    ok(cu.cuStreamSynchronize(stream))
    assert ctypes.c_uint32.from_address(word).value == 3


@pytest.mark.parametrize("width", WIDTHS)
def test_null_address(cu, scope, width):
    stream = scope.stream()
    assert name(write(cu, width, stream, 0, 1)) == INVALID_VALUE
    assert name(wait(cu, width, stream, 0, 1, EQ)) == INVALID_VALUE


@pytest.mark.parametrize(("width", "offset"), [(32, 2), (64, 4)])
def test_misaligned_address(cu, scope, width, offset):
    stream, word = scope.stream(), scope.alloc(4096)
    assert name(write(cu, width, stream, word + offset, 1)) == INVALID_VALUE
    assert name(wait(cu, width, stream, word + offset, 1, EQ)) == INVALID_VALUE


def test_unknown_flags(cu, scope):
    stream, word = scope.stream(), scope.alloc(4096)
    assert name(write(cu, 32, stream, word, 1, 0x100)) == INVALID_VALUE
    assert name(wait(cu, 32, stream, word, 1, 0x100)) == INVALID_VALUE


def test_wait_with_remote_flush(cu, scope, observe):
    stream, word = scope.stream(), scope.pinned(4096)
    result = wait(cu, 32, stream, word, 0, EQ | 1 << 30)
    ok(cu.cuStreamSynchronize(stream))
    observe("wait for a value with remote flush", name(result))


def test_addresses_without_memory(isolated, observe):
    outcome = isolated(
        """
        stream, pages, reserved = scope.stream(), scope.pages(4096), scope.reserve(2 * MIB)
        note("write to pageable", name(cu.cuStreamWriteValue32(stream, pages, 1, 0)))
        note("wait on pageable", name(cu.cuStreamWaitValue32(stream, pages, 0, 0)))
        note("write to reserved", name(cu.cuStreamWriteValue32(stream, reserved, 1, 0)))
        note("wait on reserved", name(cu.cuStreamWaitValue32(stream, reserved, 0, 0)))
        note("health", name(cu.cuStreamSynchronize(stream)))
        """
    )
    observe("stream values at addresses without memory", outcome)
