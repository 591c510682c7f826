"""Device memory: sizes, addresses, what is free, and wrong frees."""

from __future__ import annotations

import ctypes
from itertools import pairwise

import pytest

from .support import INVALID_VALUE, MIB, NOT_READY, OUT_OF_MEMORY, SUCCESS, name, ok


def test_allocation_of_nothing_is_refused(cu):
    assert name(cu.cuMemAlloc(0)) == INVALID_VALUE


@pytest.mark.parametrize("nbytes", [1 << 45, 1 << 50])
def test_allocation_beyond_the_card(cu, nbytes):
    assert name(cu.cuMemAlloc(nbytes)) == OUT_OF_MEMORY


def test_allocation_of_the_largest_size(cu, observe):
    observe("cuMemAlloc of 2^64 - 1 bytes", name(cu.cuMemAlloc((1 << 64) - 1)))


def test_failed_allocation_leaves_the_context_usable(cu, scope):
    assert name(cu.cuMemAlloc(1 << 50)) == OUT_OF_MEMORY
    memory = scope.alloc(256)
    scope.write(memory, b"\x11" * 256)
    assert scope.read(memory, 256) == b"\x11" * 256


@pytest.mark.parametrize("nbytes", [1, 255, 512, 4096, 2 * MIB, 2 * MIB + 1])
def test_allocation_is_aligned_and_usable_to_its_last_byte(cu, scope, nbytes):
    memory = scope.alloc(nbytes)
    assert memory % 256 == 0
    pattern = bytes(index % 251 for index in range(nbytes))
    scope.write(memory, pattern)
    assert scope.read(memory, nbytes) == pattern


def test_alignment_of_small_allocations(cu, scope, observe):
    addresses = [scope.alloc(1) for _ in range(16)]
    observe("one-byte allocations are aligned to 512", all(a % 512 == 0 for a in addresses))


def test_allocations_do_not_overlap(cu, scope):
    blocks = [(scope.alloc(nbytes), nbytes) for nbytes in (1, 513, 4096, 70_000, 3 * MIB) * 3]
    ordered = sorted(blocks)
    for (low, nbytes), (high, _) in pairwise(ordered):
        assert low + nbytes <= high


@pytest.mark.parametrize("nbytes", [1000, 3 * MIB + 5])
def test_address_range_of_any_byte_is_the_allocation(cu, scope, observe, nbytes):
    memory = scope.alloc(nbytes)
    answers = [ok(cu.cuMemGetAddressRange(memory + offset)) for offset in (0, 1, nbytes - 1)]
    assert {int(base) for base, _ in answers} == {memory}
    sizes = {size for _, size in answers}
    assert len(sizes) == 1
    observe(f"size of the address range of {nbytes} bytes", sizes.pop())


def test_address_range_of_host_memory_unknown_to_the_driver(cu, observe):
    host = ctypes.create_string_buffer(64)
    observe(
        "address range of pageable memory", name(cu.cuMemGetAddressRange(ctypes.addressof(host)))
    )


def test_address_range_of_null(cu, observe):
    observe("address range of null", name(cu.cuMemGetAddressRange(0)))


def test_address_range_after_free(cu, observe):
    memory = int(ok(cu.cuMemAlloc(8 * MIB)))
    ok(cu.cuMemFree(memory))
    observe("address range of freed memory", name(cu.cuMemGetAddressRange(memory)))


def test_free_of_null(cu, observe):
    observe("cuMemFree of null", name(cu.cuMemFree(0)))


def test_free_of_an_unknown_address(cu):
    assert name(cu.cuMemFree(0x1234_5678_0000)) == INVALID_VALUE


def test_free_of_pageable_memory(cu):
    host = ctypes.create_string_buffer(64)
    assert name(cu.cuMemFree(ctypes.addressof(host))) == INVALID_VALUE


def test_free_of_pinned_memory(cu, scope, observe):
    observe("cuMemFree of pinned memory", name(cu.cuMemFree(scope.pinned(4096))))


@pytest.mark.parametrize("offset", [1, 512, 4096])
def test_free_of_an_address_inside_a_block(cu, scope, offset):
    assert name(cu.cuMemFree(scope.alloc(MIB) + offset)) == INVALID_VALUE


@pytest.mark.parametrize("nbytes", [256, 8 * MIB])
def test_second_free_is_refused(cu, nbytes):
    memory = int(ok(cu.cuMemAlloc(nbytes)))
    assert name(cu.cuMemFree(memory)) == SUCCESS
    assert name(cu.cuMemFree(memory)) == INVALID_VALUE


def test_free_memory_goes_down_and_comes_back(cu, observe):
    # The first block of a size may also pay for page tables that stay.
    ok(cu.cuMemFree(ok(cu.cuMemAlloc(256 * MIB))))
    before, total = ok(cu.cuMemGetInfo())
    memory = ok(cu.cuMemAlloc(256 * MIB))
    during, same_total = ok(cu.cuMemGetInfo())
    ok(cu.cuMemFree(memory))
    after, _ = ok(cu.cuMemGetInfo())
    assert total == same_total
    assert before - during >= 256 * MIB
    assert after == before
    observe("bytes taken by a block of 256 MiB", before - during)


def test_small_blocks_share_a_larger_one(cu, scope, observe):
    first = scope.alloc(256)
    before, _ = ok(cu.cuMemGetInfo())
    scope.alloc(256)
    after, _ = ok(cu.cuMemGetInfo())
    assert first
    observe("bytes taken by a small block beside another", before - after)


def test_free_of_a_block_of_another_context(cu, scope):
    context = scope.context()
    ok(cu.cuCtxPushCurrent(context))
    memory = ok(cu.cuMemAlloc(4096))
    ok(cu.cuCtxPopCurrent())
    assert name(cu.cuMemFree(memory)) == SUCCESS


def test_free_waits_for_kernels_in_every_stream(cu, scope, kernels):
    stream = scope.stream()
    memory = ok(cu.cuMemAlloc(8 * MIB))
    kernels.spin(stream)
    event = scope.recorded(stream)
    assert name(cu.cuEventQuery(event)) == NOT_READY
    ok(cu.cuMemFree(memory))
    assert name(cu.cuEventQuery(event)) == SUCCESS


def test_free_of_a_small_block_beside_a_kernel(cu, scope, kernels, observe):
    stream = scope.stream()
    keep = scope.alloc(256)
    memory = ok(cu.cuMemAlloc(256))
    kernels.spin(stream)
    event = scope.recorded(stream)
    ok(cu.cuMemFree(memory))
    assert keep
    observe("after cuMemFree of a small block the kernel is", name(cu.cuEventQuery(event)))


def test_allocation_does_not_wait_for_kernels(cu, scope, kernels):
    stream = scope.stream()
    kernels.spin(stream)
    event = scope.recorded(stream)
    scope.alloc(8 * MIB)
    assert name(cu.cuEventQuery(event)) == NOT_READY
