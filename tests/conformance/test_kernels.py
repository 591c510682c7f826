"""Modules, and launches of the built-in kernels with their results."""

from __future__ import annotations

import ctypes
import struct

import pytest

from .kernels import PARAMETERS, image
from .support import INVALID_VALUE, NOT_FOUND, SUCCESS, name, ok

MODULUS = 1 << 32


def words(values) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def swept(value: int, rounds: int) -> int:
    for _ in range(rounds):
        value = (value * 1664525 + 1013904223) % MODULUS
    return value


def test_module_with_the_built_in_kernels_loads(cu, scope):
    module = ok(cu.cuModuleLoadData(image()))
    scope.undo(cu.cuModuleUnload, module)
    for entry in PARAMETERS:
        assert int(ok(cu.cuModuleGetFunction(module, entry.encode()))) != 0


def test_function_that_is_not_there(cu, kernels):
    assert name(cu.cuModuleGetFunction(kernels.module, b"vk_nothing")) == NOT_FOUND


def test_function_handle_is_stable(cu, kernels):
    again = ok(cu.cuModuleGetFunction(kernels.module, b"vk_fill"))
    assert int(again) == int(kernels.functions["vk_fill"])


def test_loading_twice_gives_two_modules(cu, scope, kernels):
    module = ok(cu.cuModuleLoadData(image()))
    scope.undo(cu.cuModuleUnload, module)
    assert int(module) != int(kernels.module)


@pytest.mark.parametrize(
    ("label", "text"),
    [
        ("plain words", b"this is no module\0"),
        ("an empty text", b"\0"),
        ("a broken PTX text", b".version 6.4\n.target sm_52\n.address_size 64\nnonsense\n\0"),
    ],
    ids=["words", "empty", "broken"],
)
def test_image_that_is_no_module(cu, observe, label, text):
    observe(f"module of {label}", name(cu.cuModuleLoadData(text)))


@pytest.mark.parametrize("count", [1, 31, 1000, 100_003])
@pytest.mark.parametrize("blocks", [1, 7])
def test_fill(cu, scope, kernels, count, blocks):
    stream, data = scope.stream(), scope.alloc(4 * count + 4)
    ok(cu.cuMemsetD8Async(data, 0, 4 * count + 4, stream))
    kernels.run("vk_fill", data, count, 0xC0FFEE01, stream=stream, blocks=blocks)
    ok(cu.cuStreamSynchronize(stream))
    assert scope.read(data, 4 * count + 4) == words([0xC0FFEE01] * count) + bytes(4)


@pytest.mark.parametrize("blocks", [1, 5])
def test_add_wraps_around(cu, scope, kernels, blocks):
    stream = scope.stream()
    left, right, total = (scope.alloc(4096) for _ in range(3))
    first = [(index * 2654435761) % MODULUS for index in range(1024)]
    second = [(MODULUS - 1 - index * 12345) % MODULUS for index in range(1024)]
    scope.write(left, words(first))
    scope.write(right, words(second))
    kernels.run("vk_add", total, left, right, 1024, stream=stream, blocks=blocks)
    ok(cu.cuStreamSynchronize(stream))
    expected = [(a + b) % MODULUS for a, b in zip(first, second, strict=True)]
    assert scope.read(total, 4096) == words(expected)


def test_add_in_place(cu, scope, kernels):
    stream, data = scope.stream(), scope.alloc(4096)
    scope.write(data, words(range(1024)))
    kernels.run("vk_add", data, data, data, 1024, stream=stream)
    ok(cu.cuStreamSynchronize(stream))
    assert scope.read(data, 4096) == words([2 * index for index in range(1024)])


@pytest.mark.parametrize("rounds", [0, 1, 17])
def test_sweep(cu, scope, kernels, rounds):
    stream, data = scope.stream(), scope.alloc(4096)
    scope.write(data, words(range(1024)))
    kernels.run("vk_sweep", data, 1000, rounds, stream=stream, blocks=3)
    ok(cu.cuStreamSynchronize(stream))
    expected = [swept(index, rounds) for index in range(1000)] + list(range(1000, 1024))
    assert scope.read(data, 4096) == words(expected)


@pytest.mark.parametrize("blocks", [1, 9])
def test_checksum_adds_to_what_is_there(cu, scope, kernels, blocks):
    stream, data, out = scope.stream(), scope.alloc(4096), scope.alloc(8)
    values = [MODULUS - 1 - index for index in range(1024)]
    scope.write(data, words(values))
    scope.write(out, (1000).to_bytes(8, "little"))
    kernels.run("vk_checksum", data, 1024, out, stream=stream, blocks=blocks)
    ok(cu.cuStreamSynchronize(stream))
    assert int.from_bytes(scope.read(out, 8), "little") == 1000 + sum(values)


def mixed(x, shifts, factors):
    for shift, factor in zip(shifts, factors, strict=False):
        x = (x ^ x >> shift) * factor % 2**64
    return x ^ x >> shifts[2]


@pytest.mark.parametrize("blocks", [1, 9])
def test_hash_is_the_sum_of_all_slots(cu, scope, kernels, blocks):
    """As native/swap/hash.h defines it."""
    stream, data, out = scope.stream(), scope.alloc(4096), scope.alloc(1024)
    content = words([(index * 2654435761 + 5) % MODULUS for index in range(1024)])
    a = b = 0
    for number, (word,) in enumerate(struct.iter_unpack("<Q", content), 1):
        one = (word + number * 0x9E3779B97F4A7C15) % 2**64
        other = word ^ number * 0xC2B2AE3D27D4EB4F % 2**64
        a += mixed(one, (32, 32, 32), (0xD6E8FEB86659FD93, 0xD6E8FEB86659FD93))
        b += mixed(other, (30, 27, 31), (0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
    scope.write(data, content)
    ok(cu.cuMemsetD8(out, 0, 1024))
    ok(cu.cuStreamSynchronize(0))
    kernels.run("vk_hash128", data, 512, out, stream=stream, blocks=blocks)
    ok(cu.cuStreamSynchronize(stream))
    sums = struct.unpack("<128Q", scope.read(out, 1024))
    assert (sum(sums[::2]) % 2**64, sum(sums[1::2]) % 2**64) == (a % 2**64, b % 2**64)


def test_spin_takes_its_time(cu, scope, kernels):
    stream = scope.stream()
    before = scope.recorded(stream)
    kernels.spin(stream, 10_000_000)
    kernels.spin(stream, 10_000_000)
    after = scope.recorded(stream)
    ok(cu.cuEventSynchronize(after))
    assert 19.9 <= ok(cu.cuEventElapsedTime(before, after)) < 30


def test_small_kernels_of_two_streams_run_at_once(cu, scope, kernels):
    streams = [scope.stream(), scope.stream()]
    before = scope.recorded(streams[0])
    ok(cu.cuEventSynchronize(before))
    for stream in streams:
        kernels.spin(stream, 50_000_000)
    events = [scope.recorded(stream) for stream in streams]
    for event in events:
        ok(cu.cuEventSynchronize(event))
    assert max(ok(cu.cuEventElapsedTime(before, event)) for event in events) < 90


@pytest.mark.parametrize("stream", [0, 1, 2])
def test_launch_in_each_default_stream(cu, scope, kernels, stream):
    data = scope.alloc(4096)
    kernels.run("vk_fill", data, 1024, 9, stream=stream)
    ok(cu.cuStreamSynchronize(stream))
    assert scope.read(data, 4096) == words([9] * 1024)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_empty_grid_is_refused(scope, kernels, axis):
    grid = [1, 1, 1]
    grid[axis] = 0
    assert name(kernels.launch("vk_spin", 1, stream=scope.stream(), grid=grid)) == INVALID_VALUE


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_empty_block_is_refused(scope, kernels, axis):
    block = [1, 1, 1]
    block[axis] = 0
    assert name(kernels.launch("vk_spin", 1, stream=scope.stream(), block=block)) == INVALID_VALUE


@pytest.mark.parametrize(
    "block",
    [(1025, 1, 1), (1, 1025, 1), (1, 1, 65), (32, 32, 2)],
    ids=["x", "y", "z", "product"],
)
def test_block_with_too_many_threads(scope, kernels, block):
    assert name(kernels.launch("vk_spin", 1, stream=scope.stream(), block=block)) == INVALID_VALUE


@pytest.mark.parametrize("grid", [(1 << 31, 1, 1), (1, 65536, 1), (1, 1, 65536)], ids="xyz")
def test_grid_with_too_many_blocks(scope, kernels, grid):
    assert name(kernels.launch("vk_spin", 1, stream=scope.stream(), grid=grid)) == INVALID_VALUE


def test_largest_block(cu, scope, kernels):
    stream = scope.stream()
    assert name(kernels.launch("vk_spin", 1, stream=stream, block=(1024, 1, 1))) == SUCCESS
    assert name(cu.cuStreamSynchronize(stream)) == SUCCESS


def test_too_much_shared_memory(scope, kernels):
    result = kernels.launch("vk_spin", 1, stream=scope.stream(), shared_bytes=1 << 20)
    assert name(result) == INVALID_VALUE


def test_launch_without_a_function(isolated, undefined):
    undefined(isolated("cu.cuLaunchKernel(0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)"))


def test_launch_without_parameters(isolated, observe):
    outcome = isolated(
        """
        spin = kernels().functions["vk_spin"]
        shape = (1, 1, 1, 1, 1, 1, 0, 0)
        note("no parameters", name(cu.cuLaunchKernel(spin, *shape, 0, 0)))
        note("health", name(cu.cuCtxSynchronize()))
        """
    )
    observe("launch without parameters", outcome)


def test_parameters_in_one_buffer(cu, scope, kernels, observe):
    stream, data = scope.stream(), scope.alloc(4096)
    packed = ctypes.create_string_buffer(struct.pack("<QQI", data, 1024, 12), 20)
    size = ctypes.c_size_t(20)
    # CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE, CU_LAUNCH_PARAM_END.
    extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(packed), 2, ctypes.addressof(size), 0)
    function = kernels.functions["vk_fill"]
    result = cu.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, 0, ctypes.addressof(extra))
    ok(cu.cuStreamSynchronize(stream))
    observe("parameters in one buffer", name(result))
