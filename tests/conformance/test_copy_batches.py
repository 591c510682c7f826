"""Batches of copies, in the form of CUDA 12.8, which tells what failed, and in that of 13.0."""

from __future__ import annotations

import ctypes
import itertools
import random

import numpy as np
import pytest

from .boxes import KINDS, Memory, all_done
from .capturing import capturing
from .support import INVALID_VALUE, NOT_READY, SUCCESS, Raw, name, ok

STREAM_ORDER, DURING_CALL, ANY_ORDER = 1, 2, 3
NO_COPY = 2**64 - 1
PER_THREAD = 2
FORMS = {"12.8": 12080, "13.0": 13000}


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class Attributes(ctypes.Structure):
    _fields_ = [
        ("order", ctypes.c_int),
        ("source", Location),
        ("destination", Location),
        ("flags", ctypes.c_uint),
    ]


class Operand(ctypes.Structure):
    """Of a pointer; the union has room for an array and its offset."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("pointer", ctypes.c_uint64),
        ("row", ctypes.c_size_t),
        ("rows", ctypes.c_size_t),
        ("location", Location),
    ]


class BoxCopy(ctypes.Structure):
    _fields_ = [
        ("source", Operand),
        ("destination", Operand),
        ("extent", ctypes.c_size_t * 3),
        ("order", ctypes.c_int),
        ("flags", ctypes.c_uint),
    ]


class Batches:
    """The calls in one of their forms. failed: what the form of 12.8 told last."""

    def __init__(self, cu, form: str) -> None:
        self.tells = form == "12.8"
        self._raw = Raw(cu.module, version=FORMS[form])
        self.failed: int | None = None

    def ranges(self, copies, stream, attributes=((0, STREAM_ORDER),)) -> str:
        """copies: (destination, source, bytes). attributes: (first copy, order)."""
        count, kinds = len(copies), len(attributes)
        destinations = (ctypes.c_uint64 * count)(*(copy[0] for copy in copies))
        sources = (ctypes.c_uint64 * count)(*(copy[1] for copy in copies))
        sizes = (ctypes.c_size_t * count)(*(copy[2] for copy in copies))
        given = (Attributes * kinds)(*(Attributes(order=order) for _, order in attributes))
        firsts = (ctypes.c_size_t * kinds)(*(first for first, _ in attributes))
        arrays = (destinations, sources, sizes, ctypes.c_size_t(count), given, firsts)
        return self._call("cuMemcpyBatchAsync", (*arrays, ctypes.c_size_t(kinds)), (), stream)

    def boxes(self, copies, stream, flags: int = 0) -> str:
        given = (BoxCopy * len(copies))(*copies)
        count = ctypes.c_size_t(len(copies))
        rest = (ctypes.c_uint64(flags),)
        return self._call("cuMemcpy3DBatchAsync", (count, given), rest, stream)

    def _call(self, symbol: str, arguments, rest, stream) -> str:
        handle = ctypes.c_void_p(int(stream))
        if not self.tells:
            return str(getattr(self._raw, symbol)(*arguments, *rest, handle))
        index = ctypes.c_size_t(12345)
        answer = str(getattr(self._raw, symbol)(*arguments, ctypes.byref(index), *rest, handle))
        self.failed = index.value
        return answer


@pytest.fixture(params=FORMS)
def batches(cu, request) -> Batches:
    version = int(ok(cu.cuDriverGetVersion()))
    if version < FORMS[request.param]:
        pytest.skip("the driver is older than this form")
    return Batches(cu, request.param)


def box(target: Operand, source: Operand, extent, order: int = STREAM_ORDER) -> BoxCopy:
    return BoxCopy(source, target, (ctypes.c_size_t * 3)(*extent), order, 0)


def operand(address: int, row: int = 0, rows: int = 0) -> Operand:
    return Operand(1, address, row, rows)


@pytest.mark.parametrize("kinds", list(itertools.product(KINDS, KINDS)), ids=" to ".join)
@pytest.mark.parametrize("order", [STREAM_ORDER, DURING_CALL, ANY_ORDER])
def test_each_copy_of_a_batch_arrives(cu, scope, batches, kinds, order):
    dice, stream = random.Random(str(kinds)), scope.stream()
    source, target = (Memory(cu, scope, kind, 8192, dice) for kind in kinds)
    all_done(cu)
    copies, at = [], 0
    for nbytes in (1, 100, 333, 1024):
        copies.append((target.address + 2 * at, source.address + at, nbytes))
        target.model[2 * at : 2 * at + nbytes] = source.model[at : at + nbytes]
        at += nbytes
    assert batches.ranges(copies, stream, [(0, order)]) == SUCCESS
    ok(cu.cuStreamSynchronize(stream))
    assert np.array_equal(target.read(), target.model)


def test_batches_run_in_the_order_of_their_stream(cu, scope, kernels, batches):
    stream, memory = scope.stream(), scope.alloc(4096)
    first, second = scope.pinned(4096), scope.pinned(4096)
    kernels.spin(stream)
    kernels.run("vk_fill", memory, 1024, 3, stream=stream)
    halves = [(first + at, memory + at, 2048) for at in (0, 2048)]
    assert batches.ranges(halves, stream) == SUCCESS
    assert name(cu.cuStreamQuery(stream)) == NOT_READY
    kernels.run("vk_fill", memory, 1024, 4, stream=stream)
    assert batches.ranges([(second, memory, 4096)], stream) == SUCCESS
    ok(cu.cuStreamSynchronize(stream))
    assert ctypes.string_at(first, 4096) == (3).to_bytes(4, "little") * 1024
    assert ctypes.string_at(second, 4096) == (4).to_bytes(4, "little") * 1024


def test_sources_read_during_the_call_are_free_on_return(cu, scope, kernels, batches):
    stream, memory, host = scope.stream(), scope.alloc(8192), scope.pages(8192)
    ctypes.memset(host, 1, 8192)
    kernels.spin(stream)
    copies = [(memory, host, 4096), (memory + 4096, host + 4096, 4096)]
    assert batches.ranges(copies, stream, [(0, DURING_CALL)]) == SUCCESS
    ctypes.memset(host, 2, 8192)
    ok(cu.cuStreamSynchronize(stream))
    assert scope.read(memory, 8192) == b"\x01" * 8192


def test_sources_in_stream_order_are_read_after_what_comes_before(cu, scope, kernels, batches):
    stream, memory, host = scope.stream(), scope.alloc(4096), scope.pinned(4096)
    ok(cu.cuMemsetD8(memory, 6, 4096))
    ok(cu.cuCtxSynchronize())
    kernels.spin(stream)
    ok(cu.cuMemcpyDtoHAsync(host, memory, 4096, stream))
    target = scope.alloc(4096)
    assert batches.ranges([(target, host, 4096)], stream) == SUCCESS
    ok(cu.cuStreamSynchronize(stream))
    assert scope.read(target, 4096) == b"\x06" * 4096


def test_attributes_are_for_the_copies_from_their_first_on(cu, scope, kernels, batches):
    stream, memory, host = scope.stream(), scope.alloc(12288), scope.pages(12288)
    ctypes.memset(host, 1, 12288)
    kernels.spin(stream)
    copies = [(memory + at, host + at, 4096) for at in range(0, 12288, 4096)]
    assert batches.ranges(copies, stream, [(0, DURING_CALL), (2, ANY_ORDER)]) == SUCCESS
    # The first two have been read.
    ctypes.memset(host, 2, 8192)
    ok(cu.cuStreamSynchronize(stream))
    assert scope.read(memory, 12288) == b"\x01" * 12288


@pytest.mark.parametrize(
    "attributes",
    [[(1, STREAM_ORDER)], [(0, STREAM_ORDER), (0, ANY_ORDER)], [(0, STREAM_ORDER), (2, ANY_ORDER)]],
    ids=["not from the first", "not rising", "past the last"],
)
def test_attributes_must_cover_the_copies(cu, scope, batches, attributes):
    memory = scope.alloc(4096)
    copies = [(memory, memory + 2048, 8), (memory + 64, memory + 3000, 8)]
    assert batches.ranges(copies, scope.stream(), attributes) == INVALID_VALUE
    if batches.tells:
        assert batches.failed == NO_COPY


def test_attributes_must_name_an_order(cu, scope, batches):
    memory = scope.alloc(4096)
    assert batches.ranges([(memory, memory + 64, 8)], scope.stream(), [(0, 0)]) == INVALID_VALUE


def test_default_streams(cu, scope, batches, observe):
    """Documented: not the legacy one. The one of the thread is a stream like others."""
    memory = scope.alloc(4096)
    assert batches.ranges([(memory, memory + 64, 8)], PER_THREAD) == SUCCESS
    ok(cu.cuStreamSynchronize(PER_THREAD))
    boxes = [box(operand(memory), operand(memory + 64), (8, 1, 1))]
    answers = [
        [batches.ranges([(memory, memory + 64, 8)], legacy), batches.boxes(boxes, legacy)]
        for legacy in (0, 1)
    ]
    ok(cu.cuCtxSynchronize())
    form = "12.8" if batches.tells else "13.0"
    observe(f"batch of form {form} in the legacy stream", answers)


def test_copy_that_cannot_be_is_told(cu, scope, batches, observe):
    memory, stream = scope.alloc(4096), scope.stream()
    ok(cu.cuMemsetD8(memory, 0, 4096))
    ok(cu.cuCtxSynchronize())
    copies = [(memory, memory + 64, 8), (0, memory + 64, 8), (memory + 128, memory + 64, 8)]
    answer = batches.ranges(copies, stream)
    form = "12.8" if batches.tells else "13.0"
    ok(cu.cuStreamSynchronize(stream))
    observe(f"batch of form {form} with a null destination", [answer, batches.failed])


def test_empty_batches_and_copies(cu, scope, batches, observe):
    memory, stream = scope.alloc(4096), scope.stream()
    answers = {
        "no copies": batches.ranges([], stream),
        "no attributes": batches.ranges([(memory, memory + 64, 8)], stream, []),
        "no bytes": batches.ranges([(memory, memory + 64, 0)], stream),
        "no boxes": batches.boxes([], stream),
    }
    ok(cu.cuStreamSynchronize(stream))
    observe(f"empty batches of form {'12.8' if batches.tells else '13.0'}", answers)


def test_batch_in_a_capture(cu, scope, batches, observe):
    stream, memory = scope.stream(), scope.alloc(4096)
    with capturing(cu, scope, stream) as capture:
        answer = batches.ranges([(memory, memory + 64, 8)], stream)
    form = "12.8" if batches.tells else "13.0"
    observe(f"batch of form {form} in a capture", [answer, capture.ended])


# Boxes


@pytest.mark.parametrize("kinds", list(itertools.product(KINDS, KINDS)), ids=" to ".join)
def test_each_box_of_a_batch_arrives(cu, scope, batches, kinds):
    dice, stream = random.Random(str(kinds)), scope.stream()
    source, target = (Memory(cu, scope, kind, 1 << 16, dice) for kind in kinds)
    all_done(cu)
    copies, at = [], 0
    for width, height, depth in ((1, 1, 1), (10, 4, 3), (64, 5, 2), (100, 30, 1)):
        row, rows = dice.choice([0, width + 3]), dice.choice([0, height + 2])
        copies.append(
            box(
                operand(target.address + at),
                operand(source.address + at, row, rows),
                (width, height, depth),
            )
        )
        packed = []
        for slice_, line in itertools.product(range(depth), range(height)):
            begin = at + ((rows or height) * slice_ + line) * (row or width)
            packed.append(source.model[begin : begin + width])
        target.model[at : at + width * height * depth] = np.concatenate(packed)
        at += 8192
    assert batches.boxes(copies, stream) == SUCCESS
    ok(cu.cuStreamSynchronize(stream))
    assert np.array_equal(target.read(), target.model)


@pytest.mark.parametrize(
    ("label", "target", "extent", "order", "flags"),
    [
        ("a short row", (0, 7, 0), (8, 2, 1), STREAM_ORDER, 0),
        ("a low layer", (0, 8, 1), (8, 2, 2), STREAM_ORDER, 0),
        ("no width", (0, 0, 0), (0, 1, 1), STREAM_ORDER, 0),
        ("no order", (0, 0, 0), (8, 1, 1), 0, 0),
        ("flags", (0, 0, 0), (8, 1, 1), STREAM_ORDER, 1),
    ],
)
def test_boxes_that_are_refused(cu, scope, batches, label, target, extent, order, flags):
    memory = scope.alloc(4096)
    good = box(operand(memory + 2048), operand(memory + 3072), (8, 1, 1))
    offset, row, rows = target
    wrong = box(operand(memory + offset, row, rows), operand(memory + 1024), extent, order)
    assert batches.boxes([good, wrong], scope.stream(), flags) == INVALID_VALUE
