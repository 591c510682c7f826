"""Memory with a pitch, and sets in two dimensions."""

from __future__ import annotations

import ctypes
import random

import numpy as np
import pytest

from .boxes import Memory, all_done
from .capturing import capturing
from .support import INVALID_VALUE, NOT_READY, name, ok

WIDTHS = {1: 0xAB, 2: 0xABCD, 4: 0xABCDEF01}
FORMS = ["sync", "async"]


def fill(cu, width: int, address: int, pitch: int, count: int, height: int, stream=None):
    call = getattr(cu, f"cuMemsetD2D{8 * width}{'' if stream is None else 'Async'}")
    more = () if stream is None else (stream,)
    return call(address, pitch, WIDTHS[width], count, height, *more)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    ("count", "height", "more"), [(1, 1, 0), (7, 5, 0), (10, 3, 1), (100, 20, 33), (3, 3000, 2)]
)
def test_rows_land_and_nothing_else_changes(cu, scope, width, form, count, height, more):
    pitch, start = (count + more) * width, 5 * width
    memory = Memory(cu, scope, "device", start + pitch * height, random.Random(count))
    all_done(cu)
    stream = None if form == "sync" else scope.stream()
    ok(fill(cu, width, memory.address + start, pitch, count, height, stream))
    all_done(cu)
    value = np.frombuffer(WIDTHS[width].to_bytes(width, "little") * count, dtype=np.uint8)
    for row in range(height):
        begin = start + row * pitch
        memory.model[begin : begin + len(value)] = value
    assert np.array_equal(memory.read(), memory.model)


@pytest.mark.parametrize("kind", ["pinned", "registered"])
def test_host_memory_known_to_the_driver(cu, scope, kind):
    address = getattr(scope, kind)(4096)
    ok(cu.cuMemsetD2D8(address, 16, 9, 8, 256))
    all_done(cu)
    assert ctypes.string_at(address, 4096) == (b"\x09" * 8 + bytes(8)) * 256


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("width", "address", "pitch"), [(2, 1, 64), (4, 2, 64), (2, 0, 63), (4, 0, 62)]
)
def test_misaligned_address_or_pitch_is_refused(cu, scope, width, address, pitch, form):
    memory = scope.alloc(4096)
    stream = None if form == "sync" else scope.stream()
    assert name(fill(cu, width, memory + address, pitch, 10, 4, stream)) == INVALID_VALUE


def test_pitch_of_a_single_row_is_not_used(cu, scope):
    memory = scope.alloc(64)
    ok(cu.cuMemsetD8(memory, 0, 64))
    ok(cu.cuMemsetD2D8(memory, 0, 7, 64, 1))
    all_done(cu)
    assert scope.read(memory, 64) == b"\x07" * 64


@pytest.mark.parametrize("width", WIDTHS)
def test_null_address(cu, width):
    assert name(fill(cu, width, 0, 64, 10, 2)) == INVALID_VALUE


def test_pitch_smaller_than_a_row(cu, scope, observe):
    memory = scope.alloc(4096)
    observe("memset of rows with a smaller pitch", name(cu.cuMemsetD2D8(memory, 8, 1, 16, 4)))


def test_no_rows(cu, scope, observe):
    memory = scope.alloc(4096)
    answers = [name(cu.cuMemsetD2D8(memory, 64, 1, *size)) for size in ((0, 4), (4, 0))]
    observe("memset of no rows", answers)


def test_set_in_a_stream_waits_its_turn_and_is_one_node_of_a_graph(cu, scope, kernels):
    stream, memory = scope.stream(), scope.alloc(4096)
    ok(cu.cuMemsetD8(memory, 0, 4096))
    kernels.spin(stream)
    ok(cu.cuMemsetD2D8Async(memory, 64, 1, 32, 64, stream))
    assert name(cu.cuStreamQuery(stream)) == NOT_READY
    ok(cu.cuStreamSynchronize(stream))
    with capturing(cu, scope, stream) as capture:
        ok(cu.cuMemsetD2D8Async(memory + 32, 64, 2, 32, 64, stream))
    assert capture.nodes() == 1
    assert scope.read(memory, 4096) == (b"\x01" * 32 + bytes(32)) * 64
    ok(cu.cuGraphLaunch(capture.executable(), stream))
    ok(cu.cuStreamSynchronize(stream))
    assert scope.read(memory, 4096) == (b"\x01" * 32 + b"\x02" * 32) * 64


# Memory with a pitch


@pytest.mark.parametrize("element", [4, 8, 16])
@pytest.mark.parametrize(("width", "height"), [(1, 1), (512, 3), (513, 100), (100_000, 7)])
def test_pitched_memory_has_all_its_rows(cu, scope, element, width, height):
    address, pitch = ok(cu.cuMemAllocPitch(width, height, element))
    scope.undo(cu.cuMemFree, address)
    assert pitch >= width
    ok(cu.cuMemsetD2D8(address, pitch, 5, width, height))
    all_done(cu)
    last = int(address) + (height - 1) * pitch
    assert scope.read(last, width) == b"\x05" * width


def test_pitch(cu, scope, observe):
    pitches = {}
    for width in (1, 512, 513, 1000, 4097):
        address, pitch = ok(cu.cuMemAllocPitch(width, 4, 4))
        scope.undo(cu.cuMemFree, address)
        pitches[str(width)] = int(pitch)
    observe("pitch by width", pitches)


def test_elements_of_other_sizes(cu, scope, observe):
    answers = {}
    for element in (0, 1, 2, 3, 12, 32):
        answer = cu.cuMemAllocPitch(512, 4, element)
        if int(answer[0]) == 0:
            scope.undo(cu.cuMemFree, answer[1])
        answers[str(element)] = name(answer)
    observe("pitched memory by size of its elements", answers)


def test_pitched_memory_without_rows(cu, observe):
    answers = [name(cu.cuMemAllocPitch(*size, 4)) for size in ((0, 4), (4, 0))]
    observe("pitched memory without rows", answers)
