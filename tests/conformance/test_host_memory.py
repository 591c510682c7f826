"""Pinned and registered host memory."""

from __future__ import annotations

import ctypes

import pytest

from .support import (
    ALREADY_REGISTERED,
    INVALID_VALUE,
    MIB,
    NOT_READY,
    NOT_REGISTERED,
    SUCCESS,
    name,
    ok,
)

PORTABLE = 1
DEVICE_MAP = 2
WRITE_COMBINED = 4


@pytest.mark.parametrize("flags", [0, PORTABLE, DEVICE_MAP, WRITE_COMBINED, 7])
def test_pinned_memory_is_host_memory(cu, scope, flags):
    address = scope.pinned(4096, flags)
    ctypes.memmove(address, b"\x37" * 4096, 4096)
    memory = scope.alloc(4096)
    ok(cu.cuMemcpyHtoD(memory, address, 4096))
    assert scope.read(memory, 4096) == b"\x37" * 4096


@pytest.mark.parametrize("flags", [0, PORTABLE, DEVICE_MAP, WRITE_COMBINED])
def test_flags_of_pinned_memory(cu, scope, observe, flags):
    address = scope.pinned(4096, flags)
    observe(f"flags of pinned memory allocated with {flags}", ok(cu.cuMemHostGetFlags(address)))


def test_flags_of_memory_unknown_to_the_driver(cu):
    host = ctypes.create_string_buffer(64)
    assert name(cu.cuMemHostGetFlags(ctypes.addressof(host))) == INVALID_VALUE


def test_unknown_flags_are_refused(cu):
    assert name(cu.cuMemHostAlloc(4096, 0x100)) == INVALID_VALUE


def test_pinned_allocation_of_nothing(cu, observe):
    observe("cuMemHostAlloc of 0 bytes", name(cu.cuMemHostAlloc(0, 0)))
    observe("cuMemAllocHost of 0 bytes", name(cu.cuMemAllocHost(0)))


def test_pinned_allocation_is_aligned(cu, scope):
    assert all(scope.pinned(100) % 512 == 0 for _ in range(4))


def test_plain_pinned_allocation(cu, scope):
    address = ok(cu.cuMemAllocHost(4096))
    scope.undo(cu.cuMemFreeHost, address)
    assert int(ok(cu.cuMemHostGetDevicePointer(address, 0))) == int(address)


@pytest.mark.parametrize("flags", [0, DEVICE_MAP])
def test_device_pointer_of_pinned_memory_is_its_address(cu, scope, flags):
    address = scope.pinned(4096, flags)
    assert int(ok(cu.cuMemHostGetDevicePointer(address, 0))) == address


def test_device_pointer_of_an_address_inside(cu, scope):
    address = scope.pinned(4096)
    assert int(ok(cu.cuMemHostGetDevicePointer(address + 100, 0))) == address + 100


def test_device_pointer_of_write_combined_memory(cu, scope, observe):
    address = scope.pinned(4096, WRITE_COMBINED)
    same = int(ok(cu.cuMemHostGetDevicePointer(address, 0))) == address
    observe("device pointer of write-combined memory is its address", same)


def test_device_pointer_with_flags(cu, scope):
    assert name(cu.cuMemHostGetDevicePointer(scope.pinned(4096), 1)) == INVALID_VALUE


def test_device_pointer_of_memory_unknown_to_the_driver(cu):
    host = ctypes.create_string_buffer(64)
    assert name(cu.cuMemHostGetDevicePointer(ctypes.addressof(host), 0)) == INVALID_VALUE


def test_kernel_writes_pinned_memory(cu, scope, kernels):
    stream, address = scope.stream(), scope.pinned(4096)
    kernels.run("vk_fill", address, 1024, 0xAABBCCDD, stream=stream)
    ok(cu.cuStreamSynchronize(stream))
    assert ctypes.string_at(address, 4096) == (0xAABBCCDD).to_bytes(4, "little") * 1024


def test_free_of_pinned_memory_twice(cu):
    address = ok(cu.cuMemHostAlloc(4096, 0))
    assert name(cu.cuMemFreeHost(address)) == SUCCESS
    assert name(cu.cuMemFreeHost(address)) == INVALID_VALUE


def test_free_of_an_address_inside_pinned_memory(cu, scope):
    assert name(cu.cuMemFreeHost(scope.pinned(8192) + 4096)) == INVALID_VALUE


def test_free_of_memory_unknown_to_the_driver(cu):
    host = ctypes.create_string_buffer(64)
    assert name(cu.cuMemFreeHost(ctypes.addressof(host))) == INVALID_VALUE


def test_free_of_null_host_memory(cu, observe):
    observe("cuMemFreeHost of null", name(cu.cuMemFreeHost(0)))


def test_free_of_device_memory_as_host_memory(cu, scope, observe):
    observe("cuMemFreeHost of device memory", name(cu.cuMemFreeHost(scope.alloc(4096))))


def test_free_of_registered_memory_as_pinned_memory(cu, scope, observe):
    observe("cuMemFreeHost of registered memory", name(cu.cuMemFreeHost(scope.registered(4096))))


def test_registered_memory_is_copied_from_and_to(cu, scope):
    address, memory = scope.registered(MIB), scope.alloc(MIB)
    ctypes.memset(address, 0x2B, MIB)
    stream = scope.stream()
    ok(cu.cuMemcpyHtoDAsync(memory, address, MIB, stream))
    ok(cu.cuStreamSynchronize(stream))
    ctypes.memset(address, 0, MIB)
    ok(cu.cuMemcpyDtoHAsync(address, memory, MIB, stream))
    ok(cu.cuStreamSynchronize(stream))
    assert ctypes.string_at(address, MIB) == b"\x2b" * MIB


@pytest.mark.parametrize("flags", [0, PORTABLE, DEVICE_MAP])
def test_flags_of_registered_memory(cu, scope, observe, flags):
    address = scope.registered(8192, flags)
    observe(f"flags of memory registered with {flags}", ok(cu.cuMemHostGetFlags(address)))


def test_device_pointer_of_registered_memory(cu, scope):
    address = scope.registered(8192)
    assert int(ok(cu.cuMemHostGetDevicePointer(address, 0))) == address


def test_kernel_writes_registered_memory(cu, scope, kernels):
    stream, address = scope.stream(), scope.registered(8192)
    kernels.run("vk_fill", address, 2048, 5, stream=stream)
    ok(cu.cuStreamSynchronize(stream))
    assert ctypes.string_at(address, 8192) == (5).to_bytes(4, "little") * 2048


def test_registering_twice(cu, scope):
    address = scope.registered(8192)
    assert name(cu.cuMemHostRegister(address, 8192, 0)) == ALREADY_REGISTERED


@pytest.mark.parametrize(
    ("start", "nbytes"),
    [(4096, 4096), (0, 4096), (4096, 8192)],
    ids=["inside", "first half", "beyond the end"],
)
def test_registering_an_overlapping_range(cu, scope, observe, start, nbytes):
    pages = scope.pages(16384)
    ok(cu.cuMemHostRegister(pages, 8192, 0))
    scope.undo(cu.cuMemHostUnregister, pages)
    outcome = cu.cuMemHostRegister(pages + start, nbytes, 0)
    if name(outcome) == SUCCESS:
        ok(cu.cuMemHostUnregister(pages + start))
    observe(f"registering {nbytes} bytes at {start} over 8192 at 0", name(outcome))


def test_registering_neighbouring_ranges(cu, scope):
    pages = scope.pages(16384)
    ok(cu.cuMemHostRegister(pages, 8192, 0))
    scope.undo(cu.cuMemHostUnregister, pages)
    assert name(cu.cuMemHostRegister(pages + 8192, 8192, 0)) == SUCCESS
    scope.undo(cu.cuMemHostUnregister, pages + 8192)


def test_registering_part_of_a_page(cu, scope, observe):
    pages = scope.pages(8192)
    outcome = cu.cuMemHostRegister(pages + 100, 300, 0)
    if name(outcome) == SUCCESS:
        scope.undo(cu.cuMemHostUnregister, pages + 100)
    observe("registering 300 bytes inside a page", name(outcome))


def test_registering_nothing(cu, scope, observe):
    observe("registering 0 bytes", name(cu.cuMemHostRegister(scope.pages(4096), 0, 0)))


def test_registering_null(cu, observe):
    observe("registering null", name(cu.cuMemHostRegister(0, 4096, 0)))


def test_registering_with_unknown_flags(cu, scope):
    assert name(cu.cuMemHostRegister(scope.pages(4096), 4096, 0x100)) == INVALID_VALUE


def test_registering_pinned_memory(cu, scope, observe):
    address = scope.pinned(4096)
    result = cu.cuMemHostRegister(address, 4096, 0)
    if name(result) == SUCCESS:
        ok(cu.cuMemHostUnregister(address))
    observe("registering pinned memory", name(result))


def test_unregistering_memory_that_is_not_registered(cu, scope):
    assert name(cu.cuMemHostUnregister(scope.pages(4096))) == NOT_REGISTERED


def test_unregistering_twice(cu, scope):
    pages = scope.pages(4096)
    ok(cu.cuMemHostRegister(pages, 4096, 0))
    assert name(cu.cuMemHostUnregister(pages)) == SUCCESS
    assert name(cu.cuMemHostUnregister(pages)) == NOT_REGISTERED


def test_unregistering_from_inside_the_range(cu, scope, observe):
    address = scope.registered(8192)
    observe("unregistering inside the range", name(cu.cuMemHostUnregister(address + 4096)))


def test_unregistering_pinned_memory(cu, scope, observe):
    observe("unregistering pinned memory", name(cu.cuMemHostUnregister(scope.pinned(4096))))


def test_memory_can_be_registered_again(cu, scope):
    pages = scope.pages(4096)
    for _ in range(3):
        ok(cu.cuMemHostRegister(pages, 4096, 0))
        ok(cu.cuMemHostUnregister(pages))


def test_freeing_pinned_memory_waits_for_kernels(cu, scope, kernels):
    stream = scope.stream()
    address = ok(cu.cuMemHostAlloc(MIB, 0))
    kernels.spin(stream)
    event = scope.recorded(stream)
    assert name(cu.cuEventQuery(event)) == NOT_READY
    ok(cu.cuMemFreeHost(address))
    assert name(cu.cuEventQuery(event)) == SUCCESS


def test_unregistering_waits_for_kernels(cu, scope, kernels):
    stream, pages = scope.stream(), scope.pages(MIB)
    ok(cu.cuMemHostRegister(pages, MIB, 0))
    kernels.spin(stream)
    event = scope.recorded(stream)
    assert name(cu.cuEventQuery(event)) == NOT_READY
    ok(cu.cuMemHostUnregister(pages))
    assert name(cu.cuEventQuery(event)) == SUCCESS
