"""Virtual memory management: addresses, handles, mappings and access rights."""

from __future__ import annotations

from itertools import pairwise

import pytest

from .support import (
    INVALID_VALUE,
    MIB,
    NOT_READY,
    NOT_SUPPORTED,
    OUT_OF_MEMORY,
    SUCCESS,
    name,
    ok,
)

PAGE = 2 * MIB
UNRESERVED = 0x0123_4560_0000


def granularity(cu, scope, option: str) -> int:
    options = cu.CUmemAllocationGranularity_flags
    member = getattr(options, f"CU_MEM_ALLOC_GRANULARITY_{option}")
    return int(ok(cu.cuMemGetAllocationGranularity(scope.properties(), member)))


def allow(cu, scope, address: int, nbytes: int, **options) -> None:
    ok(cu.cuMemSetAccess(address, nbytes, [scope.access(**options)], 1))


def rights(cu, scope, address: int) -> int:
    return int(ok(cu.cuMemGetAccess(scope.location(), address)))


def test_granularity(cu, scope, observe):
    assert granularity(cu, scope, "MINIMUM") == PAGE
    observe("recommended granularity", granularity(cu, scope, "RECOMMENDED"))


def test_granularity_of_empty_properties(cu, scope):
    minimum = cu.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    assert ok(cu.cuMemGetAllocationGranularity(cu.CUmemAllocationProp(), minimum)) == PAGE


def test_granularity_on_a_device_that_is_not_there(cu, scope, observe):
    minimum = cu.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    result = cu.cuMemGetAllocationGranularity(scope.properties(device=99), minimum)
    observe("granularity on a device that is not there", name(result))


def test_reservation_of_nothing_is_refused(cu):
    assert name(cu.cuMemAddressReserve(0, 0, 0, 0)) == INVALID_VALUE


@pytest.mark.parametrize("nbytes", [1, 4096, 65536, PAGE + 65536])
def test_reservation_of_part_of_a_page(cu, scope, observe, nbytes):
    result = cu.cuMemAddressReserve(nbytes, 0, 0, 0)
    if name(result) == SUCCESS:
        scope.undo(cu.cuMemAddressFree, ok(result), nbytes)
    observe(f"reservation of {nbytes} bytes", name(result))


def test_reservation_is_aligned_to_the_page(cu, scope):
    assert all(scope.reserve(PAGE) % PAGE == 0 for _ in range(4))


@pytest.mark.parametrize("alignment", [PAGE, 64 * MIB, 1 << 30])
def test_reservation_keeps_the_alignment_asked_for(cu, scope, alignment):
    assert scope.reserve(PAGE, alignment) % alignment == 0


@pytest.mark.parametrize("alignment", [3 * MIB, 12345])
def test_alignment_must_be_a_power_of_two(cu, scope, observe, alignment):
    result = cu.cuMemAddressReserve(PAGE, alignment, 0, 0)
    if name(result) == SUCCESS:
        scope.undo(cu.cuMemAddressFree, ok(result), PAGE)
    observe(f"reservation aligned to {alignment}", name(result))


def test_reservation_with_flags_is_refused(cu):
    assert name(cu.cuMemAddressReserve(PAGE, 0, 0, 1 << 8)) == INVALID_VALUE


def test_reservation_far_larger_than_the_card(cu, scope):
    address = scope.reserve(1 << 40)
    scope.map(address + (1 << 39), PAGE, scope.create(PAGE))


def test_reservations_do_not_overlap(cu, scope):
    addresses = sorted(scope.reserve(4 * PAGE) for _ in range(6))
    assert all(high - low >= 4 * PAGE for low, high in pairwise(addresses))


def test_reservation_at_a_wanted_address(cu, scope, observe):
    wanted = int(ok(cu.cuMemAddressReserve(64 * MIB, 0, 0, 0)))
    ok(cu.cuMemAddressFree(wanted, 64 * MIB))
    address = int(ok(cu.cuMemAddressReserve(64 * MIB, 0, wanted, 0)))
    scope.undo(cu.cuMemAddressFree, address, 64 * MIB)
    observe("a free address that is wanted is given", address == wanted)


def test_reservation_at_a_taken_address(cu, scope, observe):
    taken = scope.reserve(PAGE)
    result = cu.cuMemAddressReserve(PAGE, 0, taken, 0)
    outcome = name(result)
    if outcome == SUCCESS:
        scope.undo(cu.cuMemAddressFree, ok(result), PAGE)
        assert int(ok(result)) != taken
    observe("a taken address that is wanted", outcome)


def test_address_free_twice(cu):
    address = ok(cu.cuMemAddressReserve(PAGE, 0, 0, 0))
    assert name(cu.cuMemAddressFree(address, PAGE)) == SUCCESS
    assert name(cu.cuMemAddressFree(address, PAGE)) == INVALID_VALUE


def test_address_free_of_another_range_and_while_mapped(isolated, observe):
    outcome = isolated(
        """
        for label, offset, nbytes in [("less", 0, 2), ("more", 0, 16), ("the rest", 2, 6)]:
            address = int(ok(cu.cuMemAddressReserve(8 * MIB, 0, 0, 0)))
            note(label, name(cu.cuMemAddressFree(address + offset * MIB, nbytes * MIB)))
            note(label + ", then all", name(cu.cuMemAddressFree(address, 8 * MIB)))
        address = int(ok(cu.cuMemAddressReserve(4 * MIB, 0, 0, 0)))
        handle = ok(cu.cuMemCreate(2 * MIB, scope.properties(), 0))
        ok(cu.cuMemMap(address, 2 * MIB, 0, handle, 0))
        note("while mapped", name(cu.cuMemAddressFree(address, 4 * MIB)))
        note("unmap", name(cu.cuMemUnmap(address, 2 * MIB)))
        note("free afterwards", name(cu.cuMemAddressFree(address, 4 * MIB)))
        note("release", name(cu.cuMemRelease(handle)))
        """
    )
    observe("address free of another range and while mapped", outcome)


@pytest.mark.parametrize("nbytes", [0, 1, 65536, PAGE + 4096])
def test_handle_of_a_size_that_is_no_multiple_of_the_page(cu, scope, nbytes):
    assert name(cu.cuMemCreate(nbytes, scope.properties(), 0)) == INVALID_VALUE


def test_handle_larger_than_the_card(cu, scope):
    assert name(cu.cuMemCreate(1 << 45, scope.properties(), 0)) == OUT_OF_MEMORY


def test_handle_with_flags_is_refused(cu, scope):
    assert name(cu.cuMemCreate(PAGE, scope.properties(), 1 << 8)) == INVALID_VALUE


def test_handle_of_unusable_properties(cu):
    assert name(cu.cuMemCreate(PAGE, cu.CUmemAllocationProp(), 0)) == INVALID_VALUE


def test_handle_on_a_device_that_is_not_there(cu, scope, observe):
    result = cu.cuMemCreate(PAGE, scope.properties(device=99), 0)
    observe("handle on a device that is not there", name(result))


def test_properties_of_a_handle(cu, scope):
    properties = ok(cu.cuMemGetAllocationPropertiesFromHandle(scope.create(PAGE)))
    assert properties.type == cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    assert properties.location.type == cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    assert properties.location.id == int(cu.device)


def test_free_memory_follows_create_and_release(cu, scope):
    ok(cu.cuMemRelease(ok(cu.cuMemCreate(64 * MIB, scope.properties(), 0))))
    before, _ = ok(cu.cuMemGetInfo())
    handle = ok(cu.cuMemCreate(64 * MIB, scope.properties(), 0))
    during, _ = ok(cu.cuMemGetInfo())
    ok(cu.cuMemRelease(handle))
    after, _ = ok(cu.cuMemGetInfo())
    assert [before - during, before - after] == [64 * MIB, 0]


def test_handle_released_while_mapped_lives_until_the_unmap(cu, scope):
    address = scope.reserve(64 * MIB)
    before, _ = ok(cu.cuMemGetInfo())
    handle = ok(cu.cuMemCreate(64 * MIB, scope.properties(), 0))
    scope.map(address, 64 * MIB, handle)
    allow(cu, scope, address, 64 * MIB)
    ok(cu.cuMemRelease(handle))
    scope.write(address, b"\x66" * 4096)
    assert scope.read(address, 4096) == b"\x66" * 4096
    mapped, _ = ok(cu.cuMemGetInfo())
    ok(cu.cuMemUnmap(address, 64 * MIB))
    after, _ = ok(cu.cuMemGetInfo())
    assert [before - mapped, before - after] == [64 * MIB, 0]


def test_mapped_memory_is_read_and_written(cu, scope, kernels):
    address, stream = scope.mapped(2 * PAGE), scope.stream()
    assert rights(cu, scope, address) == 3
    kernels.run("vk_fill", address, 2 * PAGE // 4, 0x55AA55AA, stream=stream, blocks=64)
    ok(cu.cuStreamSynchronize(stream))
    assert scope.read(address + PAGE - 8, 16) == (0x55AA55AA).to_bytes(4, "little") * 4


def test_mapping_with_an_offset_is_not_supported(cu, scope):
    address, handle = scope.reserve(4 * PAGE), scope.create(4 * PAGE)
    assert name(cu.cuMemMap(address, PAGE, PAGE, handle, 0)) == NOT_SUPPORTED


def test_mapping_less_than_the_handle_is_not_supported(cu, scope):
    address, handle = scope.reserve(4 * PAGE), scope.create(4 * PAGE)
    assert name(cu.cuMemMap(address, PAGE, 0, handle, 0)) == NOT_SUPPORTED


def test_mapping_more_than_the_handle(cu, scope, observe):
    address, handle = scope.reserve(4 * PAGE), scope.create(PAGE)
    observe("mapping more than the handle", name(cu.cuMemMap(address, 2 * PAGE, 0, handle, 0)))


def test_mapping_at_an_address_inside_a_page(cu, scope):
    address, handle = scope.reserve(4 * PAGE), scope.create(PAGE)
    assert name(cu.cuMemMap(address + 65536, PAGE, 0, handle, 0)) == INVALID_VALUE


def test_mapping_with_flags_is_refused(cu, scope):
    address, handle = scope.reserve(PAGE), scope.create(PAGE)
    assert name(cu.cuMemMap(address, PAGE, 0, handle, 1 << 8)) == INVALID_VALUE


def test_mapping_at_an_address_that_is_not_reserved(cu, scope):
    assert name(cu.cuMemMap(UNRESERVED, PAGE, 0, scope.create(PAGE), 0)) == INVALID_VALUE


def test_mapping_over_a_mapping(cu, scope, observe):
    address, handle = scope.reserve(2 * PAGE), scope.create(PAGE)
    scope.map(address, PAGE, scope.create(PAGE))
    observe("mapping over a mapping", name(cu.cuMemMap(address, PAGE, 0, handle, 0)))


def test_mapping_over_half_a_mapping(cu, scope, observe):
    address, handle = scope.reserve(4 * PAGE), scope.create(2 * PAGE)
    scope.map(address + PAGE, PAGE, scope.create(PAGE))
    observe("mapping over half a mapping", name(cu.cuMemMap(address, 2 * PAGE, 0, handle, 0)))


def test_two_addresses_of_one_handle_share_its_bytes(cu, scope):
    handle, first, second = scope.create(PAGE), scope.reserve(PAGE), scope.reserve(PAGE)
    for address in (first, second):
        scope.map(address, PAGE, handle)
        allow(cu, scope, address, PAGE)
    scope.write(first, b"\x99" * 4096)
    assert scope.read(second, 4096) == b"\x99" * 4096


def test_bytes_stay_with_the_handle(cu, scope):
    handle, first, second = scope.create(PAGE), scope.reserve(PAGE), scope.reserve(PAGE)
    scope.map(first, PAGE, handle)
    allow(cu, scope, first, PAGE)
    scope.write(first, b"\x42" * 4096)
    ok(cu.cuMemUnmap(first, PAGE))
    scope.map(second, PAGE, handle)
    allow(cu, scope, second, PAGE)
    assert scope.read(second, 4096) == b"\x42" * 4096


def test_address_can_be_mapped_again(cu, scope):
    address = scope.reserve(PAGE)
    for value in (b"\x01", b"\x02"):
        handle = scope.create(PAGE)
        scope.map(address, PAGE, handle)
        allow(cu, scope, address, PAGE)
        scope.write(address, value * 64)
        assert scope.read(address, 64) == value * 64
        ok(cu.cuMemUnmap(address, PAGE))


def test_rights_before_they_are_set(cu, scope, observe):
    address = scope.reserve(2 * PAGE)
    scope.map(address, PAGE, scope.create(PAGE))
    location = scope.location()
    outcome = {"mapped": name(cu.cuMemGetAccess(location, address))}
    if outcome["mapped"] == SUCCESS:
        outcome["rights"] = str(rights(cu, scope, address))
    outcome["reserved"] = name(cu.cuMemGetAccess(location, address + PAGE))
    outcome["nobody's"] = name(cu.cuMemGetAccess(location, UNRESERVED))
    observe("access rights before they are set", outcome)


def test_rights_can_be_changed(cu, scope):
    address = scope.mapped(PAGE)
    allow(cu, scope, address, PAGE, writable=False)
    assert rights(cu, scope, address) == 1
    allow(cu, scope, address, PAGE)
    assert rights(cu, scope, address) == 3


def test_rights_of_part_of_a_mapping(cu, scope):
    address = scope.mapped(2 * PAGE)
    assert name(cu.cuMemSetAccess(address, PAGE, [scope.access()], 1)) == INVALID_VALUE


def test_rights_where_nothing_is_mapped(cu, scope):
    address = scope.reserve(PAGE)
    assert name(cu.cuMemSetAccess(address, PAGE, [scope.access()], 1)) == INVALID_VALUE


def test_rights_over_a_gap(cu, scope):
    address = scope.reserve(3 * PAGE)
    for offset in (0, 2 * PAGE):
        scope.map(address + offset, PAGE, scope.create(PAGE))
    assert name(cu.cuMemSetAccess(address, 3 * PAGE, [scope.access()], 1)) == SUCCESS


def test_rights_for_a_device_that_is_not_there(cu, scope, observe):
    address = scope.mapped(PAGE)
    result = cu.cuMemSetAccess(address, PAGE, [scope.access(device=99)], 1)
    observe("access rights for a device that is not there", name(result))


def test_one_call_covers_several_whole_mappings(cu, scope):
    address = scope.reserve(3 * PAGE)
    for index in range(3):
        scope.map(address + index * PAGE, PAGE, scope.create(PAGE))
    allow(cu, scope, address, 3 * PAGE)
    pattern = bytes(range(256)) * 32
    scope.write(address + PAGE - 4096, pattern)
    assert scope.read(address + PAGE - 4096, len(pattern)) == pattern
    assert name(cu.cuMemUnmap(address, 3 * PAGE)) == SUCCESS


def test_unmapping_part_of_a_mapping(cu, scope):
    address = scope.mapped(2 * PAGE)
    assert name(cu.cuMemUnmap(address, PAGE)) == INVALID_VALUE
    scope.write(address, b"\x10" * 64)
    assert scope.read(address, 64) == b"\x10" * 64


def test_unmapping_twice(cu, scope):
    address = scope.mapped(PAGE)
    assert name(cu.cuMemUnmap(address, PAGE)) == SUCCESS
    assert name(cu.cuMemUnmap(address, PAGE)) == SUCCESS


def test_unmapping_what_was_never_mapped(cu, scope, observe):
    outcome = {
        "reserved": name(cu.cuMemUnmap(scope.reserve(PAGE), PAGE)),
        "nobody's": name(cu.cuMemUnmap(UNRESERVED, PAGE)),
        "a block of cuMemAlloc": name(cu.cuMemUnmap(scope.alloc(2 * PAGE), PAGE)),
    }
    observe("unmapping what was never mapped", outcome)


def test_unmapping_over_a_gap(cu, scope, observe):
    address = scope.reserve(3 * PAGE)
    for offset in (0, 2 * PAGE):
        scope.map(address + offset, PAGE, scope.create(PAGE))
    observe("unmapping over a gap", name(cu.cuMemUnmap(address, 3 * PAGE)))


def test_handle_found_by_its_address(cu, scope):
    address, handle = scope.reserve(PAGE), scope.create(PAGE)
    scope.map(address, PAGE, handle)
    found = ok(cu.cuMemRetainAllocationHandle(address + 100))
    assert int(found) == int(handle)
    ok(cu.cuMemRelease(found))
    assert name(cu.cuMemGetAllocationPropertiesFromHandle(handle)) == SUCCESS


def test_handle_of_an_address_without_one(cu, scope, observe):
    outcome = {
        "reserved": name(cu.cuMemRetainAllocationHandle(scope.reserve(PAGE))),
        "nobody's": name(cu.cuMemRetainAllocationHandle(UNRESERVED)),
        "a block of cuMemAlloc": name(cu.cuMemRetainAllocationHandle(scope.alloc(PAGE))),
    }
    observe("handle of an address without one", outcome)


def test_address_range_of_a_mapping(cu, scope, observe):
    address = scope.reserve(4 * PAGE)
    for index in range(2):
        scope.map(address + index * PAGE, PAGE, scope.create(PAGE))
    outcome = {
        "before rights are set": name(cu.cuMemGetAddressRange(address + PAGE + 100)),
        "reserved": name(cu.cuMemGetAddressRange(address + 3 * PAGE)),
    }
    allow(cu, scope, address, 2 * PAGE)
    result = cu.cuMemGetAddressRange(address + PAGE + 100)
    outcome["with rights"] = name(result)
    if name(result) == SUCCESS:
        outcome["range"] = [int(result[1]) - address, int(result[2])]
    observe("address range of mapped virtual memory", outcome)


def test_mapped_memory_is_no_block_to_free(cu, scope):
    assert name(cu.cuMemFree(scope.mapped(PAGE))) == INVALID_VALUE


def test_use_without_rights(isolated, observe):
    outcome = isolated(
        """
        loaded = kernels()
        address, handle = scope.reserve(2 * MIB), scope.create(2 * MIB)
        scope.map(address, 2 * MIB, handle)
        host = scope.pinned(4096)
        note("HtoD", name(cu.cuMemcpyHtoD(address, host, 4096)))
        note("DtoH", name(cu.cuMemcpyDtoH(host, address, 4096)))
        note("memset", name(cu.cuMemsetD8(address, 1, 4096)))
        note("HtoD in a stream", name(cu.cuMemcpyHtoDAsync(address, host, 4096, 0)))
        note("health", name(cu.cuCtxSynchronize()))
        note("kernel", name(loaded.launch("vk_fill", address, 1024, 1, stream=0)))
        note("health after the kernel", name(cu.cuCtxSynchronize()))
        """
    )
    observe("use of memory without access rights", outcome)


def test_writes_to_read_only_memory(isolated, observe):
    outcome = isolated(
        """
        loaded, address, host = kernels(), scope.mapped(2 * MIB), scope.pinned(4096)
        ok(cu.cuMemSetAccess(address, 2 * MIB, [scope.access(writable=False)], 1))
        note("DtoH", name(cu.cuMemcpyDtoH(host, address, 4096)))
        note("HtoD", name(cu.cuMemcpyHtoD(address, host, 4096)))
        note("health", name(cu.cuCtxSynchronize()))
        note("kernel", name(loaded.launch("vk_fill", address, 1024, 1, stream=0)))
        note("health after the kernel", name(cu.cuCtxSynchronize()))
        """
    )
    observe("writes to read-only memory", outcome)


def test_calls_do_not_wait_for_kernels(cu, scope, kernels):
    stream = scope.stream()
    mapped = scope.mapped(PAGE)
    kernels.spin(stream)
    event = scope.recorded(stream)
    address, handle = scope.reserve(PAGE), scope.create(PAGE)
    scope.map(address, PAGE, handle)
    allow(cu, scope, address, PAGE)
    ok(cu.cuMemUnmap(mapped, PAGE))
    assert name(cu.cuEventQuery(event)) == NOT_READY
