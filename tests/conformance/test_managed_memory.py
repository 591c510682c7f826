"""Managed memory: one address for host and card, prefetches, advice, and what ranges say of it.

A card must have room for all of it: a few MiB at most, here and in what is added.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest

from .support import INVALID_DEVICE, INVALID_VALUE, MIB, NOT_READY, SUCCESS, name, ok

GLOBAL, HOST_ONLY, SINGLE = 1, 2, 4
CPU, INVALID = -1, -2
NO_LOCATION, DEVICE_LOCATION, HOST_LOCATION, HOST_NUMA, HOST_NUMA_CURRENT = 0, 1, 2, 3, 4
SET_READ_MOSTLY, UNSET_READ_MOSTLY = 1, 2
SET_PREFERRED, UNSET_PREFERRED = 3, 4
SET_ACCESSED_BY, UNSET_ACCESSED_BY = 5, 6
READ_MOSTLY, PREFERRED, ACCESSED_BY, LAST_PREFETCH = 1, 2, 3, 4
PREFERRED_TYPE, PREFERRED_ID, LAST_PREFETCH_TYPE, LAST_PREFETCH_ID = 5, 6, 7, 8
SIZE = 2 * MIB


class Location(ctypes.Structure):
    """CUmemLocation, passed by value."""

    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


def location(place: int) -> Location:
    return Location(HOST_LOCATION, 0) if place == CPU else Location(DEVICE_LOCATION, place)


class Managed:
    """The calls for managed memory, by pointers of cuGetProcAddress: both forms of each."""

    def __init__(self, cu: Any, scope: Any) -> None:
        self._cu = cu
        self._scope = scope
        self.device = int(cu.device)

    def call(self, base_name: str, version: int, *arguments: Any) -> str:
        """The error name of the form of a call that this version of CUDA has."""
        flags = self._cu.CUdriverProcAddress_flags.CU_GET_PROC_ADDRESS_LEGACY_STREAM
        address, _ = ok(self._cu.cuGetProcAddress(base_name.encode(), version, int(flags)))
        function = ctypes.CFUNCTYPE(ctypes.c_int)(int(address))
        function.argtypes = None
        return str(self._cu.CUresult(function(*arguments)).name)

    def try_alloc(self, nbytes: int, flags: int = GLOBAL) -> tuple[str, int]:
        pointer = ctypes.c_uint64(0)
        answer = self.call(
            "cuMemAllocManaged",
            12020,
            ctypes.byref(pointer),
            ctypes.c_size_t(nbytes),
            ctypes.c_uint(flags),
        )
        return answer, pointer.value

    def alloc(self, nbytes: int = SIZE, flags: int = GLOBAL) -> int:
        answer, pointer = self.try_alloc(nbytes, flags)
        assert answer == SUCCESS
        self._scope.undo(self._cu.cuMemFree, pointer)
        return pointer

    def prefetch(
        self,
        pointer: int,
        nbytes: int,
        where: Location | int,
        stream: Any = 0,
        flags: int = 0,
    ) -> str:
        """An ordinal makes the form of CUDA 8, a location that of 12.2."""
        range_ = (ctypes.c_uint64(pointer), ctypes.c_size_t(nbytes))
        handle = ctypes.c_void_p(int(stream))
        if isinstance(where, int):
            return self.call("cuMemPrefetchAsync", 8000, *range_, ctypes.c_int(where), handle)
        flags_ = ctypes.c_uint(flags)
        return self.call("cuMemPrefetchAsync", 12020, *range_, where, flags_, handle)

    def advise(self, pointer: int, nbytes: int, advice: int, where: Location | int) -> str:
        range_ = (ctypes.c_uint64(pointer), ctypes.c_size_t(nbytes), ctypes.c_int(advice))
        if isinstance(where, int):
            return self.call("cuMemAdvise", 8000, *range_, ctypes.c_int(where))
        return self.call("cuMemAdvise", 12020, *range_, where)

    def ask(
        self, pointer: int, nbytes: int, attribute: int, count: int = 1
    ) -> tuple[str, list[int]]:
        values = (ctypes.c_int * count)()
        answer = self.call(
            "cuMemRangeGetAttribute",
            12020,
            values,
            ctypes.c_size_t(4 * count),
            ctypes.c_int(attribute),
            ctypes.c_uint64(pointer),
            ctypes.c_size_t(nbytes),
        )
        return answer, list(values)

    def value(self, pointer: int, nbytes: int, attribute: int) -> int:
        answer, values = self.ask(pointer, nbytes, attribute)
        assert answer == SUCCESS
        return values[0]


@pytest.fixture
def managed(cu, scope):
    attribute = cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS
    if not ok(cu.cuDeviceGetAttribute(attribute, cu.device)):
        pytest.skip("this card cannot share managed memory with the host while it works")
    return Managed(cu, scope)


# Allocating


@pytest.mark.parametrize("flags", [GLOBAL, HOST_ONLY])
@pytest.mark.parametrize("nbytes", [1, 4096, SIZE, SIZE + 1])
def test_host_and_card_see_the_same_bytes(cu, managed, nbytes, flags):
    memory = managed.alloc(nbytes, flags)
    ok(cu.cuMemsetD8(memory, 0x5A, nbytes))
    ok(cu.cuCtxSynchronize())
    assert ctypes.string_at(memory, nbytes) == b"\x5a" * nbytes


def test_what_the_host_wrote_is_read_by_a_kernel(cu, managed, scope, kernels):
    memory = managed.alloc()
    result = scope.alloc(8)
    stream = scope.stream()
    words = (ctypes.c_uint32 * (SIZE // 4)).from_address(memory)
    for word in range(0, SIZE // 4, 1024):
        words[word] = 3
    total = sum(words)
    ok(cu.cuMemsetD8Async(result, 0, 8, stream))
    kernels.run("vk_checksum", memory, SIZE // 4, result, stream=stream)
    ok(cu.cuStreamSynchronize(stream))
    assert int.from_bytes(scope.read(result, 8), "little") == total


@pytest.mark.parametrize("flags", [0, SINGLE, GLOBAL | HOST_ONLY, 8])
def test_other_flags_are_refused(managed, flags):
    assert managed.try_alloc(SIZE, flags)[0] == INVALID_VALUE


def test_nothing_is_refused(managed):
    assert managed.try_alloc(0)[0] == INVALID_VALUE


def test_no_pointer_to_answer_to(managed):
    answer = managed.call(
        "cuMemAllocManaged", 12020, None, ctypes.c_size_t(SIZE), ctypes.c_uint(GLOBAL)
    )
    assert answer == INVALID_VALUE


def test_it_is_freed_as_other_memory(cu, managed):
    answer, memory = managed.try_alloc(SIZE)
    assert answer == SUCCESS
    ok(cu.cuMemFree(memory))
    assert name(cu.cuMemFree(memory)) == INVALID_VALUE


def test_range_of_the_allocation(cu, managed, observe):
    memory = managed.alloc(SIZE + 5)
    base, nbytes = ok(cu.cuMemGetAddressRange(memory + SIZE))
    assert int(base) == memory
    observe("managed: size of the range of 2 MiB and 5 bytes", int(nbytes))


def test_copies_work_on_it(cu, managed, scope):
    memory, plain = managed.alloc(), scope.alloc(SIZE)
    scope.write(memory, b"\x11" * SIZE)
    ok(cu.cuMemcpyDtoD(plain, memory, SIZE))
    ok(cu.cuMemsetD8(memory, 0, SIZE))
    ok(cu.cuMemcpy(memory, plain, SIZE))
    ok(cu.cuCtxSynchronize())
    assert ctypes.string_at(memory, SIZE) == b"\x11" * SIZE
    assert scope.read(memory, SIZE) == b"\x11" * SIZE


# What a pointer and a card say


def pointer_attribute(raw: Any, attribute: int, address: int) -> int:
    value = ctypes.c_uint64(0)
    assert (
        raw.cuPointerGetAttribute(
            ctypes.byref(value), ctypes.c_int(attribute), ctypes.c_uint64(address)
        )
        == SUCCESS
    )
    return value.value


def test_attributes_of_a_managed_pointer(cu, managed, raw):
    memory = managed.alloc()
    is_managed, device_pointer, host_pointer, start, size = 8, 3, 4, 11, 12
    assert pointer_attribute(raw, is_managed, memory) == 1
    assert pointer_attribute(raw, device_pointer, memory + 5) == memory + 5
    assert pointer_attribute(raw, host_pointer, memory + 5) == memory + 5
    assert pointer_attribute(raw, start, memory + 5) == memory
    assert pointer_attribute(raw, size, memory + 5) == SIZE


def test_kind_and_device_of_a_managed_pointer(cu, managed, raw, observe):
    memory = managed.alloc()
    answers = {"before": pointer_attribute(raw, 2, memory)}
    ok(cu.cuMemsetD8(memory, 0, SIZE))
    ok(cu.cuCtxSynchronize())
    answers["on the card"] = pointer_attribute(raw, 2, memory)
    ctypes.memset(memory, 0, SIZE)
    answers["on the host"] = pointer_attribute(raw, 2, memory)
    answers["ordinal"] = pointer_attribute(raw, 9, memory)
    observe("managed: memory type and ordinal of a pointer", answers)


def test_attributes_of_the_card(cu, managed, observe):
    attributes = cu.CUdevice_attribute
    asked = {
        word: int(
            ok(cu.cuDeviceGetAttribute(getattr(attributes, f"CU_DEVICE_ATTRIBUTE_{word}"), 0))
        )
        for word in (
            "PAGEABLE_MEMORY_ACCESS",
            "PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES",
            "DIRECT_MANAGED_MEM_ACCESS_FROM_HOST",
        )
    }
    managed_memory = attributes.CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY
    assert ok(cu.cuDeviceGetAttribute(managed_memory, 0)) == 1
    observe("managed: attributes of the card", asked)


# Prefetches


@pytest.mark.parametrize("form", ["ordinal", "location"])
def test_prefetch_there_and_back(cu, managed, scope, form):
    memory, stream = managed.alloc(), scope.stream()
    ctypes.memset(memory, 0x21, SIZE)
    for place in (managed.device, CPU, managed.device):
        where = place if form == "ordinal" else location(place)
        assert managed.prefetch(memory, SIZE, where, stream) == SUCCESS
        assert managed.value(memory, SIZE, LAST_PREFETCH) == place
    ok(cu.cuStreamSynchronize(stream))
    assert ctypes.string_at(memory, SIZE) == b"\x21" * SIZE


def test_prefetch_is_work_of_its_stream(cu, managed, scope, kernels):
    memory, stream = managed.alloc(), scope.stream()
    kernels.spin(stream)
    assert managed.prefetch(memory, SIZE, managed.device, stream) == SUCCESS
    assert name(cu.cuStreamQuery(stream)) == NOT_READY
    ok(cu.cuStreamSynchronize(stream))


@pytest.mark.parametrize("kind", [HOST_NUMA, HOST_NUMA_CURRENT])
def test_prefetch_to_a_node_of_the_host(cu, managed, scope, kind):
    memory, stream = managed.alloc(), scope.stream()
    assert managed.prefetch(memory, SIZE, Location(kind, 0), stream) == SUCCESS
    ok(cu.cuStreamSynchronize(stream))


def test_last_prefetch_of_parts(managed, cu, scope):
    memory, stream = managed.alloc(), scope.stream()
    assert managed.value(memory, SIZE, LAST_PREFETCH) == INVALID
    assert managed.prefetch(memory, SIZE // 2, managed.device, stream) == SUCCESS
    assert managed.value(memory, SIZE // 2, LAST_PREFETCH) == managed.device
    assert managed.value(memory, SIZE, LAST_PREFETCH) == INVALID
    assert managed.value(memory, SIZE // 2, LAST_PREFETCH_TYPE) == DEVICE_LOCATION
    assert managed.value(memory, SIZE // 2, LAST_PREFETCH_ID) == managed.device
    assert managed.value(memory, SIZE, LAST_PREFETCH_TYPE) == NO_LOCATION
    ok(cu.cuStreamSynchronize(stream))


def test_prefetch_of_other_memory(managed, scope):
    memory = scope.alloc(SIZE)
    assert managed.prefetch(memory, SIZE, managed.device) == INVALID_VALUE
    assert managed.prefetch(memory, SIZE, location(managed.device)) == INVALID_VALUE


def test_prefetch_with_flags_is_refused(managed):
    memory = managed.alloc()
    where = location(managed.device)
    assert managed.prefetch(memory, SIZE, where, flags=1) == INVALID_VALUE


@pytest.mark.parametrize("place", [1000, -7])
def test_prefetch_to_a_card_that_is_not_there(managed, place):
    memory = managed.alloc()
    assert managed.prefetch(memory, SIZE, place) == INVALID_DEVICE


def test_prefetch_beyond_the_end_and_of_nothing(managed, observe):
    memory = managed.alloc()
    observe(
        "managed: prefetch of odd ranges",
        {
            "beyond the end": managed.prefetch(memory, 2 * SIZE, managed.device),
            "of nothing": managed.prefetch(memory, 0, managed.device),
            "to nowhere": managed.prefetch(memory, SIZE, Location(NO_LOCATION, 0)),
            "to a node that is not there": managed.prefetch(memory, SIZE, Location(HOST_NUMA, 999)),
        },
    )


def test_prefetch_in_a_capture(cu, managed, scope, observe):
    memory, stream = managed.alloc(), scope.stream()
    ok(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    answer = managed.prefetch(memory, SIZE, managed.device, stream)
    ended = cu.cuStreamEndCapture(stream)
    if name(ended) == SUCCESS and int(ended[1]) != 0:
        ok(cu.cuGraphDestroy(ended[1]))
    observe("managed: prefetch in a capture", {"prefetch": answer, "end": name(ended)})


# Advice


def test_read_mostly(managed):
    memory = managed.alloc()
    assert managed.value(memory, SIZE, READ_MOSTLY) == 0
    assert managed.advise(memory, SIZE, SET_READ_MOSTLY, managed.device) == SUCCESS
    assert managed.value(memory, SIZE, READ_MOSTLY) == 1
    half = location(managed.device)
    assert managed.advise(memory, SIZE // 2, UNSET_READ_MOSTLY, half) == SUCCESS
    assert managed.value(memory, SIZE, READ_MOSTLY) == 0
    assert managed.value(memory + SIZE // 2, SIZE // 2, READ_MOSTLY) == 1


@pytest.mark.parametrize("on_host", [False, True])
def test_preferred_location(managed, on_host):
    memory = managed.alloc()
    place = CPU if on_host else managed.device
    kind = HOST_LOCATION if on_host else DEVICE_LOCATION
    assert managed.value(memory, SIZE, PREFERRED) == INVALID
    assert managed.value(memory, SIZE, PREFERRED_TYPE) == NO_LOCATION
    for where in (place, location(place)):
        assert managed.advise(memory, SIZE, SET_PREFERRED, where) == SUCCESS
        assert managed.value(memory, SIZE, PREFERRED) == place
        assert managed.value(memory, SIZE, PREFERRED_TYPE) == kind
        if not on_host:
            assert managed.value(memory, SIZE, PREFERRED_ID) == place
        assert managed.advise(memory, SIZE, UNSET_PREFERRED, where) == SUCCESS
        assert managed.value(memory, SIZE, PREFERRED) == INVALID


def test_accessed_by(managed):
    memory = managed.alloc()
    assert managed.ask(memory, SIZE, ACCESSED_BY, 3) == (SUCCESS, [INVALID] * 3)
    assert managed.advise(memory, SIZE, SET_ACCESSED_BY, managed.device) == SUCCESS
    listed = [managed.device, INVALID, INVALID]
    assert managed.ask(memory, SIZE, ACCESSED_BY, 3) == (SUCCESS, listed)
    assert managed.advise(memory, SIZE, SET_ACCESSED_BY, CPU) == SUCCESS
    answer, both = managed.ask(memory, SIZE, ACCESSED_BY, 3)
    assert (answer, sorted(both)) == (SUCCESS, sorted([managed.device, CPU, INVALID]))
    assert managed.advise(memory, SIZE // 2, UNSET_ACCESSED_BY, managed.device) == SUCCESS
    assert managed.ask(memory, SIZE, ACCESSED_BY, 1) == (SUCCESS, [CPU])


def test_advice_changes_no_bytes(cu, managed, scope, kernels):
    memory, stream = managed.alloc(), scope.stream()
    ctypes.memset(memory, 7, SIZE)
    for advice in (SET_READ_MOSTLY, UNSET_READ_MOSTLY, SET_ACCESSED_BY, SET_PREFERRED):
        assert managed.advise(memory, SIZE, advice, managed.device) == SUCCESS
    kernels.run("vk_fill", memory, SIZE // 8, 0x09090909, stream=stream)
    ok(cu.cuStreamSynchronize(stream))
    half = SIZE // 2
    assert ctypes.string_at(memory, SIZE) == b"\x09" * half + b"\x07" * half


@pytest.mark.parametrize("advice", [0, 99])
def test_advice_that_is_none(managed, advice):
    assert managed.advise(managed.alloc(), SIZE, advice, managed.device) == INVALID_VALUE


def test_advice_about_other_memory(managed, scope):
    assert managed.advise(scope.alloc(SIZE), SIZE, SET_READ_MOSTLY, 0) == INVALID_VALUE


def test_advice_for_a_card_that_is_not_there(managed):
    memory = managed.alloc()
    assert managed.advise(memory, SIZE, SET_PREFERRED, 1000) == INVALID_DEVICE
    assert managed.advise(memory, SIZE, SET_ACCESSED_BY, 1000) == INVALID_DEVICE


def test_only_the_host_as_a_whole_accesses(managed, observe):
    answer = managed.advise(managed.alloc(), SIZE, SET_ACCESSED_BY, Location(HOST_NUMA, 0))
    observe("managed: accessed by a node of the host", answer)


# Attributes of ranges


@pytest.mark.parametrize("attribute", [0, 99])
def test_range_attribute_that_is_none(managed, attribute):
    assert managed.ask(managed.alloc(), SIZE, attribute)[0] == INVALID_VALUE


def test_range_attribute_of_other_memory(managed, scope):
    assert managed.ask(scope.alloc(SIZE), SIZE, READ_MOSTLY)[0] == INVALID_VALUE


def test_range_attribute_of_the_wrong_size(managed):
    assert managed.ask(managed.alloc(), SIZE, READ_MOSTLY, 2)[0] == INVALID_VALUE


def test_several_range_attributes_at_once(managed):
    memory = managed.alloc()
    assert managed.advise(memory, SIZE, SET_READ_MOSTLY, managed.device) == SUCCESS
    values = [ctypes.c_int(-9), ctypes.c_int(-9)]
    data = (ctypes.c_void_p * 2)(*(ctypes.addressof(value) for value in values))
    sizes = (ctypes.c_size_t * 2)(4, 4)
    attributes = (ctypes.c_int * 2)(READ_MOSTLY, PREFERRED)
    answer = managed.call(
        "cuMemRangeGetAttributes",
        12020,
        data,
        sizes,
        attributes,
        ctypes.c_size_t(2),
        ctypes.c_uint64(memory),
        ctypes.c_size_t(SIZE),
    )
    assert (answer, [value.value for value in values]) == (SUCCESS, [1, INVALID])


# Attaching to streams


@pytest.fixture
def attach(managed: Managed) -> Callable[[Any, int, int, int], str]:
    def attach(stream: Any, pointer: int, nbytes: int, flags: int) -> str:
        return managed.call(
            "cuStreamAttachMemAsync",
            12020,
            ctypes.c_void_p(int(stream)),
            ctypes.c_uint64(pointer),
            ctypes.c_size_t(nbytes),
            ctypes.c_uint(flags),
        )

    return attach


@pytest.mark.parametrize("flags", [GLOBAL, HOST_ONLY, SINGLE])
@pytest.mark.parametrize("nbytes", [0, SIZE])
def test_attached_memory_is_used_from_every_stream(cu, managed, scope, attach, flags, nbytes):
    memory, stream, other = managed.alloc(), scope.stream(), scope.stream()
    assert attach(stream, memory, nbytes, flags) == SUCCESS
    ok(cu.cuStreamSynchronize(stream))
    ok(cu.cuMemsetD8Async(memory, 4, SIZE, other))
    ok(cu.cuStreamSynchronize(other))
    assert ctypes.string_at(memory, 8) == b"\x04" * 8


ODD_ATTACHMENTS = {
    "no flags": "stream, memory, SIZE, 0",
    "two flags": "stream, memory, SIZE, GLOBAL | HOST_ONLY",
    "a part": "stream, memory, SIZE // 2, GLOBAL",
    "the legacy stream alone": "0, memory, SIZE, SINGLE",
    "plain memory": "stream, scope.alloc(SIZE), SIZE, GLOBAL",
}


@pytest.mark.parametrize("odd", ODD_ATTACHMENTS)
def test_attaching_oddly(isolated, observe, odd):
    """In a process of its own: a card's driver may die of it."""
    outcome = isolated(f"""
        SIZE, GLOBAL, HOST_ONLY, SINGLE = {SIZE}, {GLOBAL}, {HOST_ONLY}, {SINGLE}
        memory, stream = ok(cu.cuMemAllocManaged(SIZE, GLOBAL)), scope.stream()
        stream, memory, nbytes, flags = {ODD_ATTACHMENTS[odd]}
        note("answer", Raw(cu).cuStreamAttachMemAsync(
            ctypes.c_void_p(int(stream)), ctypes.c_uint64(int(memory)),
            ctypes.c_size_t(nbytes), ctypes.c_uint(flags),
        ))
    """)
    observe(f"managed: attached with {odd}", outcome)
