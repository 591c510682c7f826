"""Memory pools as objects: default and current ones, creation, destruction, access, pointers."""

from __future__ import annotations

import ctypes

import pytest

from .pools import Pool, make_pool, properties
from .support import GIB, MIB, OUT_OF_MEMORY, SUCCESS, name, ok


def default_pool(cu):
    return Pool(cu, ok(cu.cuDeviceGetDefaultMemPool(cu.device)))


def test_device_supports_pools(cu):
    attribute = cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED
    assert ok(cu.cuDeviceGetAttribute(attribute, cu.device)) == 1


def test_default_pool_is_current_and_always_the_same(cu):
    handles = [
        int(ok(cu.cuDeviceGetDefaultMemPool(cu.device))),
        int(ok(cu.cuDeviceGetDefaultMemPool(cu.device))),
        int(ok(cu.cuDeviceGetMemPool(cu.device))),
    ]
    assert len(set(handles)) == 1


def test_default_pool_keeps_nothing_by_default(cu):
    assert default_pool(cu).get("RELEASE_THRESHOLD") == 0


def test_pool_of_a_device_that_is_not_there(cu, observe):
    observe("pool: default pool of device 99", name(cu.cuDeviceGetDefaultMemPool(99)))


def test_allocations_come_from_the_current_pool(cu, scope):
    pool, stream = make_pool(cu, scope), scope.stream()
    ok(cu.cuDeviceSetMemPool(cu.device, pool.handle))
    try:
        memory = ok(cu.cuMemAllocAsync(4 * MIB, stream))
        assert pool.used >= 4 * MIB
        assert int(ok(cu.cuDeviceGetMemPool(cu.device))) == int(pool.handle)
        ok(cu.cuMemFreeAsync(memory, stream))
    finally:
        ok(cu.cuDeviceSetMemPool(cu.device, default_pool(cu).handle))
    assert pool.used == 0


def test_destroying_the_current_pool_makes_the_default_one_current(cu):
    handle = ok(cu.cuMemPoolCreate(properties(cu)))
    ok(cu.cuDeviceSetMemPool(cu.device, handle))
    ok(cu.cuMemPoolDestroy(handle))
    assert int(ok(cu.cuDeviceGetMemPool(cu.device))) == int(default_pool(cu).handle)


def test_default_pool_cannot_be_destroyed(isolated, observe):
    outcome = isolated(
        """
        note("destroy", name(cu.cuMemPoolDestroy(ok(cu.cuDeviceGetDefaultMemPool(0)))))
        note("alloc afterwards", name(cu.cuMemAllocAsync(512, 0)))
        """
    )
    assert outcome["destroy"] != SUCCESS
    observe("pool: destruction of the default pool", outcome)


def test_blocks_outlive_their_pool(cu, scope):
    stream = scope.stream()
    pool = Pool(cu, ok(cu.cuMemPoolCreate(properties(cu))))
    memory = pool.alloc(4096, stream)
    assert name(cu.cuMemPoolDestroy(pool.handle)) == SUCCESS
    ok(cu.cuMemsetD8Async(memory, 9, 4096, stream))
    ok(cu.cuStreamSynchronize(stream))
    assert scope.read(memory, 4096) == b"\x09" * 4096
    assert name(cu.cuMemFreeAsync(memory, stream)) == SUCCESS
    ok(cu.cuStreamSynchronize(stream))


@pytest.mark.parametrize("use", ["destroy", "alloc", "attribute", "trim"])
def test_destroyed_pool(isolated, observe, use):
    outcome = isolated(
        f"""
        given = cu.CUmemPoolProps()
        given.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        given.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        pool = ok(cu.cuMemPoolCreate(given))
        ok(cu.cuMemPoolDestroy(pool))
        threshold = cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        note("use", name({{
            "destroy": lambda: cu.cuMemPoolDestroy(pool),
            "alloc": lambda: cu.cuMemAllocFromPoolAsync(512, pool, 0),
            "attribute": lambda: cu.cuMemPoolGetAttribute(pool, threshold),
            "trim": lambda: cu.cuMemPoolTrimTo(pool, 0),
        }}["{use}"]()))
        """
    )
    observe(f"pool: {use} of a destroyed pool", outcome)


def test_null_pool(isolated, observe):
    outcome = isolated(
        """
        null = cu.CUmemoryPool(0)
        note("alloc", name(cu.cuMemAllocFromPoolAsync(512, null, 0)))
        note("make current", name(cu.cuDeviceSetMemPool(0, null)))
        note("destroy", name(cu.cuMemPoolDestroy(null)))
        note("trim", name(cu.cuMemPoolTrimTo(null, 0)))
        """
    )
    observe("pool: null handles", outcome)


def test_pool_does_not_grow_beyond_its_maximum(cu, scope):
    pool = make_pool(cu, scope, 64 * MIB)
    answer = cu.cuMemAllocFromPoolAsync(GIB, pool.handle, scope.stream())
    assert name(answer) == OUT_OF_MEMORY


def test_wrong_properties(cu, observe):
    seen = {}
    given = properties(cu)
    given.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_INVALID
    seen["no type"] = name(cu.cuMemPoolCreate(given))
    given = properties(cu)
    given.location.id = 99
    seen["no such device"] = name(cu.cuMemPoolCreate(given))
    given = properties(cu)
    given.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_INVALID
    seen["no place"] = name(cu.cuMemPoolCreate(given))
    observe("pool: wrong properties", seen)


def test_null_properties_and_answers(raw, observe):
    handle = ctypes.c_void_p()
    given = (ctypes.c_char * 88)()
    observe(
        "pool: nulls of cuMemPoolCreate",
        [raw.cuMemPoolCreate(ctypes.byref(handle), None), raw.cuMemPoolCreate(None, given)],
    )


def test_device_reaches_its_own_pool(cu, scope):
    pool = make_pool(cu, scope)
    assert int(ok(cu.cuMemPoolGetAccess(pool.handle, scope.location()))) == 3
    assert name(cu.cuMemPoolSetAccess(pool.handle, [scope.access()], 1)) == SUCCESS


def test_other_rights(cu, scope, observe):
    pool = make_pool(cu, scope)
    forbidden = scope.access()
    forbidden.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_NONE
    seen = {
        "own device, read only": name(
            cu.cuMemPoolSetAccess(pool.handle, [scope.access(writable=False)], 1)
        ),
        "own device, none": name(cu.cuMemPoolSetAccess(pool.handle, [forbidden], 1)),
        "no such device": name(cu.cuMemPoolSetAccess(pool.handle, [scope.access(device=99)], 1)),
        "rights of no such device": name(cu.cuMemPoolGetAccess(pool.handle, scope.location(99))),
    }
    observe("pool: other rights", seen)


def test_pointer_attributes_of_a_block(cu, raw, scope, observe):
    pool, stream = make_pool(cu, scope), scope.stream()
    memory = pool.alloc(1000, stream)

    def ask(attribute: int) -> list[object]:
        value = ctypes.c_uint64(0)
        answer = raw.cuPointerGetAttribute(
            ctypes.byref(value), ctypes.c_int(attribute), ctypes.c_uint64(memory)
        )
        return [answer, value.value]

    assert ask(2) == [SUCCESS, 2]  # device memory
    assert ask(9) == [SUCCESS, 0]  # of the first device
    assert ask(17) == [SUCCESS, int(pool.handle)]
    context, (range_answer, start) = ask(1), ask(11)
    seen = {
        "context": [context[0], "none" if context[1] == 0 else "one"],
        "range start": [range_answer, start == memory],
        "range size": ask(12),
        "device pointer": ask(3)[0],
    }
    ok(cu.cuMemFreeAsync(memory, stream))
    observe("pool: pointer attributes of a block", seen)


def test_address_range_of_a_block(cu, scope, observe):
    pool, stream = make_pool(cu, scope), scope.stream()
    memory = pool.alloc(1000, stream)
    answer = cu.cuMemGetAddressRange(memory + 10)
    start, size = ok(answer) if int(answer[0]) == 0 else (0, 0)
    ok(cu.cuMemFreeAsync(memory, stream))
    observe("pool: address range of a block", [name(answer), int(start) == memory, int(size)])
