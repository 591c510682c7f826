"""Copies in two and three dimensions between memory of every kind, and what refuses them."""

from __future__ import annotations

import ctypes
import itertools
import random

import pytest

from .boxes import KINDS, Corner, Memory, all_done, check_copied, pair, parameters
from .capturing import capturing
from .support import INVALID_VALUE, MIB, NOT_READY, SUCCESS, Raw, name, ok

EXTENTS = [(1, 1, 1), (5, 3, 1), (64, 7, 1), (257, 2, 1), (512, 16, 1)]
BOXES = [(3, 4, 5), (64, 1, 9), (17, 8, 1), (512, 2, 2)]
EACH_PAIR = list(itertools.product(KINDS, KINDS))
# Between two places of a device the plain form may refuse pitches that cuMemAllocPitch does not
# give. Others, and the third dimension, take any.
DEVICE_STEP = 512


def copy_2d(cu, form: str, given, stream) -> str:
    if form == "async":
        return name(cu.cuMemcpy2DAsync(given, stream))
    return name((cu.cuMemcpy2D if form == "sync" else cu.cuMemcpy2DUnaligned)(given))


@pytest.mark.parametrize("kinds", EACH_PAIR, ids=" to ".join)
@pytest.mark.parametrize("form", ["sync", "unaligned", "async"])
def test_two_dimensions(cu, scope, kinds, form):
    stream = scope.stream()
    step = DEVICE_STEP if kinds == ("device", "device") and form != "unaligned" else 1
    for extent in EXTENTS:
        target, source = pair(cu, scope, kinds, extent, (kinds, form, extent), step)
        for memory in (target, source):
            assert memory[0].bytes >= memory[1].bytes(extent)
        all_done(cu)
        assert copy_2d(cu, form, parameters(cu, target, source, extent), stream) == SUCCESS
        all_done(cu)
        check_copied(target, source, extent)


@pytest.mark.parametrize("kinds", EACH_PAIR, ids=" to ".join)
@pytest.mark.parametrize("form", ["sync", "async"])
def test_three_dimensions(cu, scope, kinds, form):
    stream = scope.stream()
    for extent in BOXES:
        target, source = pair(cu, scope, kinds, extent, (kinds, form, extent))
        given = parameters(cu, target, source, extent, dimensions=3)
        all_done(cu)
        ok(cu.cuMemcpy3D(given) if form == "sync" else cu.cuMemcpy3DAsync(given, stream))
        all_done(cu)
        check_copied(target, source, extent)


@pytest.mark.parametrize("kinds", EACH_PAIR, ids=" to ".join)
@pytest.mark.parametrize("dimensions", [2, 3])
def test_unified_memory_types_find_out_themselves(cu, scope, kinds, dimensions):
    extent = (100, 6, 1)
    target, source = pair(cu, scope, kinds, extent, kinds, DEVICE_STEP)
    given = parameters(cu, target, source, extent, dimensions=dimensions, unified=True)
    all_done(cu)
    ok(cu.cuMemcpy2D(given) if dimensions == 2 else cu.cuMemcpy3D(given))
    all_done(cu)
    check_copied(target, source, extent)


def test_height_of_slices_may_be_left_out_of_a_single_one(cu, scope):
    extent = (40, 5, 1)
    target, source = pair(cu, scope, ("pinned", "device"), extent, 1)
    given = parameters(cu, target, source, extent, dimensions=3)
    given.srcHeight = given.dstHeight = 0
    ok(cu.cuMemcpy3D(given))
    all_done(cu)
    check_copied(target, source, extent)


def test_rows_without_gaps_are_a_plain_range(cu, scope):
    dice = random.Random(3)
    corner = Corner(0, 0, 0, 4096, 64)
    target = Memory(cu, scope, "device", 64 * 4096, dice), corner
    source = Memory(cu, scope, "pageable", 64 * 4096, dice), corner
    ok(cu.cuMemcpy2D(parameters(cu, target, source, (4096, 64, 1))))
    all_done(cu)
    check_copied(target, source, (4096, 64, 1))


def test_thousands_of_rows(cu, scope):
    extent = (24, 5000, 1)
    dice = random.Random(4)
    target = Memory(cu, scope, "device", 5000 * 100, dice), Corner(7, 0, 0, 100, 5000)
    source = Memory(cu, scope, "pinned", 5000 * 31, dice), Corner(3, 0, 0, 31, 5000)
    ok(cu.cuMemcpy2D(parameters(cu, target, source, extent)))
    all_done(cu)
    check_copied(target, source, extent)


# Order


def test_copy_in_a_stream_waits_its_turn(cu, scope, kernels):
    stream, extent = scope.stream(), (16, 4, 1)
    target, source = pair(cu, scope, ("pinned", "device"), extent, 5)
    kernels.spin(stream)
    ok(cu.cuMemcpy2DAsync(parameters(cu, target, source, extent), stream))
    assert name(cu.cuStreamQuery(stream)) == NOT_READY
    ok(cu.cuStreamSynchronize(stream))
    check_copied(target, source, extent)


@pytest.mark.parametrize("dimensions", [2, 3])
def test_copy_from_pageable_memory_has_read_its_source_on_return(cu, scope, kernels, dimensions):
    stream, extent = scope.stream(), (16, 4, 1)
    target, source = pair(cu, scope, ("pageable", "device"), extent, 6)
    given = parameters(cu, target, source, extent, dimensions=dimensions)
    kernels.spin(stream)
    before = scope.recorded(stream)
    copy = cu.cuMemcpy2DAsync if dimensions == 2 else cu.cuMemcpy3DAsync
    ok(copy(given, stream))
    assert name(cu.cuEventQuery(before)) == NOT_READY
    ctypes.memset(source[0].address, 0, source[0].bytes)
    ok(cu.cuStreamSynchronize(stream))
    ctypes.memmove(source[0].address, source[0].model.tobytes(), source[0].bytes)
    check_copied(target, source, extent)


def test_copy_to_pageable_memory_is_complete_on_return(cu, scope, kernels):
    stream, extent = scope.stream(), (16, 4, 1)
    target, source = pair(cu, scope, ("device", "pageable"), extent, 7)
    kernels.spin(stream)
    ok(cu.cuMemcpy2DAsync(parameters(cu, target, source, extent), stream))
    check_copied(target, source, extent)


def test_synchronous_copy_from_the_device_is_complete_on_return(cu, scope):
    extent = (16, 4, 1)
    target, source = pair(cu, scope, ("device", "pinned"), extent, 8)
    ok(cu.cuMemcpy2D(parameters(cu, target, source, extent)))
    check_copied(target, source, extent)


def test_per_thread_default_streams(cu, scope, kernels):
    raw, extent = Raw(cu.module, per_thread=True), (16, 4, 1)
    target, source = pair(cu, scope, ("pinned", "device"), extent, 9)
    stream = scope.stream(0)
    kernels.spin(stream)
    given = parameters(cu, target, source, extent)
    assert raw.cuMemcpy2D(ctypes.c_void_p(given.getPtr())) == SUCCESS
    # The legacy stream would have waited for the blocking one.
    assert name(cu.cuStreamQuery(stream)) == NOT_READY
    all_done(cu)
    check_copied(target, source, extent)


@pytest.mark.parametrize("dimensions", [2, 3])
def test_captured_copy_is_one_node_and_reads_at_the_launch(cu, scope, dimensions):
    stream, extent = scope.stream(), (16, 4, 1)
    target, source = pair(cu, scope, ("pinned", "device"), extent, 10)
    given = parameters(cu, target, source, extent, dimensions=dimensions)
    with capturing(cu, scope, stream) as capture:
        copy = cu.cuMemcpy2DAsync if dimensions == 2 else cu.cuMemcpy3DAsync
        ok(copy(given, stream))
    assert capture.nodes() == 1
    executable = capture.executable()
    for value in (1, 2):
        source[0].model[:] = value
        ctypes.memset(source[0].address, value, source[0].bytes)
        ok(cu.cuGraphLaunch(executable, stream))
        ok(cu.cuStreamSynchronize(stream))
        check_copied(target, source, extent)


# What is refused, and what is left open


@pytest.fixture
def given(cu, scope):
    """Parameters of a copy that is right."""
    target, source = pair(cu, scope, ("pinned", "device"), (16, 4, 1), 11)
    all_done(cu)
    return lambda dimensions=2: parameters(cu, target, source, (16, 4, 1), dimensions=dimensions)


@pytest.mark.parametrize("side", ["src", "dst"])
def test_pitch_must_hold_a_row(cu, given, side):
    wrong = given()
    setattr(wrong, f"{side}Pitch", getattr(wrong, f"{side}XInBytes") + 15)
    assert name(cu.cuMemcpy2D(wrong)) == INVALID_VALUE
    assert name(cu.cuMemcpy2DAsync(wrong, 0)) == INVALID_VALUE


@pytest.mark.parametrize("side", ["src", "dst"])
def test_pitch_has_a_limit(cu, given, side):
    wrong = given()
    limit = cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_PITCH
    setattr(wrong, f"{side}Pitch", int(ok(cu.cuDeviceGetAttribute(limit, cu.device))) + 1)
    assert name(cu.cuMemcpy2D(wrong)) == INVALID_VALUE


@pytest.mark.parametrize("side", ["src", "dst"])
def test_slices_must_hold_their_rows(cu, given, side):
    wrong = given(3)
    setattr(wrong, f"{side}Height", getattr(wrong, f"{side}Y") + 3)
    assert name(cu.cuMemcpy3D(wrong)) == INVALID_VALUE


def test_null_pointers(cu, given):
    wrong = given()
    wrong.dstDevice = 0
    assert name(cu.cuMemcpy2D(wrong)) == INVALID_VALUE
    wrong = given()
    wrong.srcHost = 0
    assert name(cu.cuMemcpy2D(wrong)) == INVALID_VALUE


def test_level_of_detail(cu, given, observe):
    wrong = given(3)
    wrong.srcLOD = 1
    observe("copy of a box with a level of detail", name(cu.cuMemcpy3D(wrong)))


def test_null_parameters(raw, observe):
    null = ctypes.c_void_p()
    observe("copy of a box without parameters", [raw.cuMemcpy2D(null), raw.cuMemcpy3D(null)])


@pytest.mark.parametrize("missing", ["WidthInBytes", "Height"])
def test_empty_box(cu, given, observe, missing):
    empty = given()
    setattr(empty, missing, 0)
    observe(f"copy of a box with no {missing}", name(cu.cuMemcpy2D(empty)))


def test_pitch_of_zero(cu, scope, given, observe):
    target, source = pair(cu, scope, ("pinned", "device"), (16, 4, 1), 12)
    unspecified = parameters(cu, target, source, (16, 4, 1))
    unspecified.srcPitch = 0
    observe("copy of a box with a source pitch of zero", name(cu.cuMemcpy2D(unspecified)))


def test_rows_past_the_end_of_a_block(isolated, observe):
    outcome = isolated(
        """
        memory, host = scope.alloc(4 * MIB), scope.pinned(4 * MIB)
        def copy(pitch, height):
            given = cu.CUDA_MEMCPY2D()
            given.srcMemoryType = cu.CUmemorytype.CU_MEMORYTYPE_HOST
            given.dstMemoryType = cu.CUmemorytype.CU_MEMORYTYPE_DEVICE
            given.srcHost, given.srcPitch = host, 1024
            given.dstDevice, given.dstPitch = memory, pitch
            given.WidthInBytes, given.Height = 1024, height
            return name(cu.cuMemcpy2D(given))
        note("all of it", copy(1 << 12, 1 << 10))
        note("one row more", copy(1 << 12, (1 << 10) + 1))
        note("four times as far apart", copy(1 << 14, 1 << 10))
        note("health", name(cu.cuCtxSynchronize()))
        """
    )
    observe("copy of rows past the end of a block", outcome)


def test_pageable_memory_as_device_memory(cu, scope, observe):
    extent = (16, 4, 1)
    target, source = pair(cu, scope, ("pageable", "device"), extent, 13)
    wrong = parameters(cu, target, source, extent)
    wrong.srcMemoryType = cu.CUmemorytype.CU_MEMORYTYPE_DEVICE
    wrong.srcDevice = source[0].address
    observe("copy of a box of pageable memory as device memory", name(cu.cuMemcpy2D(wrong)))


def test_whole_megabytes(cu, scope):
    extent = (1000, 1024, 2)
    target, source = pair(cu, scope, ("pageable", "device"), extent, 14)
    assert target[0].bytes > MIB
    ok(cu.cuMemcpy3D(parameters(cu, target, source, extent, dimensions=3)))
    all_done(cu)
    check_copied(target, source, extent)
