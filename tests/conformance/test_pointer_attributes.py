"""What the driver says about an address: its kind, context, bounds and device."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from .support import INVALID_VALUE, MIB, SUCCESS, ok

CONTEXT = 1
MEMORY_TYPE = 2
DEVICE_POINTER = 3
HOST_POINTER = 4
BUFFER_ID = 7
IS_MANAGED = 8
DEVICE_ORDINAL = 9
RANGE_START = 11
RANGE_SIZE = 12
MAPPED = 13

HOST, DEVICE = 1, 2
ALL = {
    "context": CONTEXT,
    "memory type": MEMORY_TYPE,
    "device pointer": DEVICE_POINTER,
    "host pointer": HOST_POINTER,
    "is managed": IS_MANAGED,
    "device ordinal": DEVICE_ORDINAL,
    "range start": RANGE_START,
    "range size": RANGE_SIZE,
    "mapped": MAPPED,
}


def ask(raw: Any, attribute: int, address: int) -> tuple[str, int]:
    """Error name and value; the value is 0 where the driver wrote nothing."""
    value = ctypes.c_uint64(0)
    answer = raw.cuPointerGetAttribute(
        ctypes.byref(value), ctypes.c_int(attribute), ctypes.c_uint64(address)
    )
    return answer, value.value


def value_of(raw: Any, attribute: int, address: int) -> int:
    answer, value = ask(raw, attribute, address)
    assert answer == SUCCESS
    return value


def whose(cu: Any, answer: str, context: int) -> list[str]:
    """A context in words that are the same in every process."""
    owner = {0: "none", int(cu.primary): "the primary"}.get(context, "another")
    return [answer, owner]


def test_device_memory(cu, scope, raw):
    memory = scope.alloc(4096)
    assert value_of(raw, MEMORY_TYPE, memory) == DEVICE
    assert value_of(raw, CONTEXT, memory) == int(cu.primary)
    assert value_of(raw, DEVICE_POINTER, memory + 100) == memory + 100
    assert value_of(raw, DEVICE_ORDINAL, memory) == int(cu.device)
    assert value_of(raw, IS_MANAGED, memory) == 0


def test_device_memory_has_no_host_pointer(scope, raw):
    assert ask(raw, HOST_POINTER, scope.alloc(4096))[0] == INVALID_VALUE


@pytest.mark.parametrize("nbytes", [1000, 3 * MIB + 5])
def test_range_of_device_memory_from_inside(scope, raw, observe, nbytes):
    memory = scope.alloc(nbytes)
    assert value_of(raw, RANGE_START, memory + nbytes - 1) == memory
    observe(
        f"range size attribute of {nbytes} bytes", value_of(raw, RANGE_SIZE, memory + nbytes - 1)
    )


def test_mapped_attribute(scope, raw, observe):
    outcome = {
        "device": ask(raw, MAPPED, scope.alloc(4096)),
        "pinned": ask(raw, MAPPED, scope.pinned(4096)),
        "virtual": ask(raw, MAPPED, scope.mapped(2 * MIB)),
        "reserved": ask(raw, MAPPED, scope.reserve(2 * MIB)),
    }
    observe("mapped attribute", {kind: list(answer) for kind, answer in outcome.items()})


def test_buffer_id_belongs_to_the_allocation(cu, scope, raw):
    first, second = scope.alloc(4096), scope.alloc(4096)
    assert value_of(raw, BUFFER_ID, first) == value_of(raw, BUFFER_ID, first + 4095)
    assert value_of(raw, BUFFER_ID, first) != value_of(raw, BUFFER_ID, second)


def test_buffer_id_is_not_reused(cu, raw):
    identifiers = []
    for _ in range(3):
        memory = int(ok(cu.cuMemAlloc(4096)))
        identifiers.append(value_of(raw, BUFFER_ID, memory))
        ok(cu.cuMemFree(memory))
    assert len(set(identifiers)) == 3


def test_context_of_memory_of_another_context(cu, scope, raw):
    context = scope.context()
    ok(cu.cuCtxPushCurrent(context))
    memory = scope.alloc(4096)
    ok(cu.cuCtxPopCurrent())
    assert value_of(raw, CONTEXT, memory) == int(context)


@pytest.mark.parametrize("kind", ["pinned", "registered"])
def test_host_memory_known_to_the_driver(cu, scope, raw, kind):
    address = getattr(scope, kind)(8192)
    assert value_of(raw, MEMORY_TYPE, address) == HOST
    assert value_of(raw, CONTEXT, address) == int(cu.primary)
    assert value_of(raw, HOST_POINTER, address + 10) == address + 10
    assert value_of(raw, DEVICE_POINTER, address + 10) == address + 10
    assert value_of(raw, IS_MANAGED, address) == 0
    assert value_of(raw, DEVICE_ORDINAL, address) == int(cu.device)


@pytest.mark.parametrize("kind", ["pinned", "registered"])
def test_range_of_host_memory(scope, raw, observe, kind):
    address = getattr(scope, kind)(8000)
    start, size = ask(raw, RANGE_START, address + 4000), ask(raw, RANGE_SIZE, address + 4000)
    observe(
        f"range of {kind} memory",
        {"start": start[0], "start is its own": start[1] == address, "size": list(size)},
    )


@pytest.mark.parametrize("attribute", sorted(ALL))
def test_memory_unknown_to_the_driver(raw, observe, attribute):
    host = ctypes.create_string_buffer(64)
    answer, _ = ask(raw, ALL[attribute], ctypes.addressof(host))
    if attribute in ("context", "memory type", "is managed"):
        assert answer == INVALID_VALUE
    observe(f"{attribute} of pageable memory", answer)


def test_null_pointer(raw, observe):
    observe("memory type of null", ask(raw, MEMORY_TYPE, 0)[0])


def test_freed_memory(cu, raw, observe):
    memory = int(ok(cu.cuMemAlloc(8 * MIB)))
    ok(cu.cuMemFree(memory))
    observe("memory type of freed memory", ask(raw, MEMORY_TYPE, memory)[0])


def test_unregistered_memory_is_unknown_again(cu, scope, raw):
    pages = scope.pages(4096)
    ok(cu.cuMemHostRegister(pages, 4096, 0))
    ok(cu.cuMemHostUnregister(pages))
    assert ask(raw, MEMORY_TYPE, pages)[0] == INVALID_VALUE


def test_virtual_memory(cu, scope, raw, observe):
    nbytes = 4 * MIB
    address = scope.reserve(nbytes)
    scope.map(address, 2 * MIB, scope.create(2 * MIB))
    assert value_of(raw, RANGE_START, address + 100) == address
    assert value_of(raw, RANGE_SIZE, address + 100) == nbytes
    outcome = {
        "memory type": list(ask(raw, MEMORY_TYPE, address)),
        "context": whose(cu, *ask(raw, CONTEXT, address)),
        "ordinal": list(ask(raw, DEVICE_ORDINAL, address)),
        "device pointer": ask(raw, DEVICE_POINTER, address)[0],
        "host pointer": ask(raw, HOST_POINTER, address)[0],
    }
    observe("attributes of mapped virtual memory", outcome)


def test_reserved_address_without_memory(cu, scope, raw, observe):
    address = scope.reserve(2 * MIB)
    outcome = {
        "memory type": list(ask(raw, MEMORY_TYPE, address)),
        "context": whose(cu, *ask(raw, CONTEXT, address)),
        "ordinal": list(ask(raw, DEVICE_ORDINAL, address)),
        "device pointer": ask(raw, DEVICE_POINTER, address)[0],
        "range size": list(ask(raw, RANGE_SIZE, address)),
    }
    observe("attributes of a reserved address", outcome)


def test_attribute_that_does_not_exist(scope, raw):
    assert ask(raw, 9999, scope.alloc(4096))[0] == INVALID_VALUE


def ask_several(raw: Any, attributes: list[int], address: int) -> tuple[str, list[int]]:
    values = [ctypes.c_uint64(0) for _ in attributes]
    places = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
    answer = raw.cuPointerGetAttributes(
        ctypes.c_uint(len(attributes)),
        (ctypes.c_int * len(attributes))(*attributes),
        places,
        ctypes.c_uint64(address),
    )
    return answer, [value.value for value in values]


def test_several_attributes_at_once(cu, scope, raw):
    memory = scope.alloc(4096)
    answer, values = ask_several(
        raw, [MEMORY_TYPE, CONTEXT, DEVICE_POINTER, HOST_POINTER, RANGE_START], memory + 8
    )
    assert answer == SUCCESS
    assert values == [DEVICE, int(cu.primary), memory + 8, 0, memory]


def test_several_attributes_of_unknown_memory(raw, observe):
    host = ctypes.create_string_buffer(64)
    answer, values = ask_several(
        raw, [MEMORY_TYPE, CONTEXT, DEVICE_POINTER, IS_MANAGED], ctypes.addressof(host)
    )
    assert answer == SUCCESS
    assert values[:2] == [0, 0]
    observe(
        "device pointer and managed flag of unknown memory",
        ["none" if values[2] == 0 else "its address", values[3]],
    )


def test_ordinal_of_unknown_memory_among_several(raw, observe):
    host = ctypes.create_string_buffer(64)
    answer, values = ask_several(raw, [DEVICE_ORDINAL], ctypes.addressof(host))
    observe("ordinal of unknown memory among several", [answer, values[0] & 0xFFFFFFFF])


def test_several_attributes_with_one_that_does_not_exist(scope, raw):
    assert ask_several(raw, [MEMORY_TYPE, 9999], scope.alloc(4096))[0] == INVALID_VALUE
