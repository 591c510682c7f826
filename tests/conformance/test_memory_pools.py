"""Stream-ordered memory: what an allocation gets, who may use freed memory again, and the pools."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from .pools import make_pool
from .support import (
    INVALID_CONTEXT,
    INVALID_VALUE,
    KIB,
    MIB,
    NOT_READY,
    OUT_OF_MEMORY,
    SUCCESS,
    in_thread,
    name,
    ok,
)

KEEP = (1 << 64) - 1  # a release threshold that nothing exceeds
POLICIES = {
    "events": "REUSE_FOLLOW_EVENT_DEPENDENCIES",
    "opportunistic": "REUSE_ALLOW_OPPORTUNISTIC",
    "internal": "REUSE_ALLOW_INTERNAL_DEPENDENCIES",
}


@pytest.fixture
def pool(cu, scope):
    """A pool of the test's own that keeps what it has."""
    pool = make_pool(cu, scope)
    ok(pool.set("RELEASE_THRESHOLD", KEEP))
    return pool


# Allocating


@pytest.mark.parametrize("nbytes", [1, 255, 512, 4096, 2 * MIB, 2 * MIB + 1, 40 * MIB])
def test_block_is_aligned_and_usable_to_its_last_byte(cu, scope, nbytes):
    stream = scope.stream()
    memory = int(ok(cu.cuMemAllocAsync(nbytes, stream)))
    assert memory % 256 == 0
    ok(cu.cuMemsetD8Async(memory, 0x5A, nbytes, stream))
    ok(cu.cuStreamSynchronize(stream))
    assert scope.read(memory, nbytes) == b"\x5a" * nbytes
    ok(cu.cuMemFreeAsync(memory, stream))


@pytest.mark.parametrize("handle", [0, 1, 2])
def test_default_streams_allocate_and_free(cu, scope, handle):
    memory = ok(cu.cuMemAllocAsync(4096, handle))
    ok(cu.cuMemsetD8Async(memory, 3, 4096, handle))
    ok(cu.cuStreamSynchronize(handle))
    assert scope.read(int(memory), 4096) == b"\x03" * 4096
    assert name(cu.cuMemFreeAsync(memory, handle)) == SUCCESS


def test_alignment_of_small_blocks(pool, scope, cu, observe):
    stream = scope.stream()
    blocks = [pool.alloc(1, stream) for _ in range(16)]
    assert len(set(blocks)) == 16
    for block in blocks:
        ok(cu.cuMemFreeAsync(block, stream))
    observe("pool: one-byte blocks are aligned to 512", all(block % 512 == 0 for block in blocks))


def test_block_of_nothing(cu, scope, observe):
    observe("pool: cuMemAllocAsync of 0 bytes", name(cu.cuMemAllocAsync(0, scope.stream())))


@pytest.mark.parametrize("nbytes", [1 << 45, 1 << 50])
def test_block_beyond_the_card(cu, scope, nbytes):
    assert name(cu.cuMemAllocAsync(nbytes, scope.stream())) == OUT_OF_MEMORY


def test_null_pointer_for_the_answer(raw, scope, observe):
    stream = ctypes.c_void_p(int(scope.stream()))
    observe(
        "pool: cuMemAllocAsync into null", raw.cuMemAllocAsync(None, ctypes.c_size_t(512), stream)
    )


def test_default_stream_without_a_context(cu):
    assert in_thread(lambda: name(cu.cuMemAllocAsync(512, 0))) == INVALID_CONTEXT


def test_created_stream_without_a_context(cu, scope, observe):
    stream = scope.stream()

    def other() -> list[str]:
        answer = cu.cuMemAllocAsync(512, stream)
        freed = cu.cuMemFreeAsync(answer[1], stream) if int(answer[0]) == 0 else answer
        return [name(answer), name(freed)]

    observe("pool: alloc and free without a current context", in_thread(other))


def test_neither_call_waits_for_kernels(cu, pool, scope, kernels):
    stream = scope.stream()
    kernels.spin(stream)
    event = scope.recorded(stream)
    ok(cu.cuMemFreeAsync(pool.alloc(8 * MIB, stream), stream))
    assert name(cu.cuEventQuery(event)) == NOT_READY


def test_block_may_be_freed_on_another_stream(cu, pool, scope, kernels):
    one, two = scope.stream(), scope.stream()
    memory = pool.alloc(4 * KIB, one)
    kernels.run("vk_fill", memory, 1024, 7, stream=one)
    ok(cu.cuStreamWaitEvent(two, scope.recorded(one), 0))
    ok(cu.cuMemFreeAsync(memory, two))
    ok(cu.cuStreamSynchronize(two))
    assert pool.used == 0


# Reuse


def test_stream_reuses_at_once_what_it_freed(cu, pool, scope, kernels, observe):
    stream = scope.stream()
    kernels.spin(stream)
    first = pool.alloc(4 * MIB, stream)
    ok(cu.cuMemFreeAsync(first, stream))
    second = pool.alloc(4 * MIB, stream)
    ok(cu.cuMemFreeAsync(second, stream))
    observe("pool: same stream, free unreached: same address", first == second)


def test_other_stream_does_not_get_memory_before_the_free_is_reached(cu, pool, scope, kernels):
    one, two = scope.stream(), scope.stream()
    first = pool.alloc(4 * MIB, one)
    kernels.spin(one)
    event = scope.recorded(one)
    ok(cu.cuMemFreeAsync(first, one))
    second = pool.alloc(4 * MIB, two)
    assert name(cu.cuEventQuery(event)) == NOT_READY
    assert first != second
    assert name(cu.cuStreamQuery(two)) == SUCCESS
    ok(cu.cuMemFreeAsync(second, two))


@pytest.mark.parametrize("allowed", [True, False], ids=["allowed", "forbidden"])
def test_other_stream_ordered_after_the_free_by_an_event(
    cu, pool, scope, kernels, observe, allowed
):
    ok(pool.set("REUSE_FOLLOW_EVENT_DEPENDENCIES", int(allowed)))
    one, two = scope.stream(), scope.stream()
    first = pool.alloc(4 * MIB, one)
    kernels.spin(one)
    ok(cu.cuMemFreeAsync(first, one))
    ok(cu.cuStreamWaitEvent(two, scope.recorded(one), 0))
    second = pool.alloc(4 * MIB, two)
    ok(cu.cuMemFreeAsync(second, two))
    case = "" if allowed else " though forbidden"
    observe(f"pool: reuse that follows an event{case}", first == second)


@pytest.mark.parametrize("allowed", [True, False], ids=["allowed", "forbidden"])
def test_other_stream_after_the_free_was_reached(cu, pool, scope, kernels, observe, allowed):
    ok(pool.set("REUSE_ALLOW_OPPORTUNISTIC", int(allowed)))
    one, two = scope.stream(), scope.stream()
    first = pool.alloc(4 * MIB, one)
    ok(cu.cuMemFreeAsync(first, one))
    ok(cu.cuStreamSynchronize(one))
    second = pool.alloc(4 * MIB, two)
    ok(cu.cuMemFreeAsync(second, two))
    case = "" if allowed else " though forbidden"
    observe(f"pool: reuse after the host has waited{case}", first == second)


@pytest.mark.parametrize("allowed", [True, False], ids=["allowed", "forbidden"])
def test_full_pool_lets_a_stream_wait_for_the_free_of_another(cu, scope, kernels, observe, allowed):
    pool = make_pool(cu, scope, 64 * MIB)
    ok(pool.set("REUSE_ALLOW_INTERNAL_DEPENDENCIES", int(allowed)))
    one, two = scope.stream(), scope.stream()
    first = pool.alloc(48 * MIB, one)
    kernels.spin(one)
    ok(cu.cuMemFreeAsync(first, one))
    answer = cu.cuMemAllocFromPoolAsync(48 * MIB, pool.handle, two)
    seen: dict[str, Any] = {"alloc": name(answer)}
    if int(answer[0]) == 0:
        seen["same address"] = int(answer[1]) == first
        ok(cu.cuMemFreeAsync(answer[1], two))
        seen["waits"] = name(cu.cuStreamQuery(two))
    case = "" if allowed else " though forbidden"
    observe(f"pool: reuse that waits for another stream{case}", seen)


# Accounting


def test_new_pool_has_the_documented_attributes(cu, scope):
    pool = make_pool(cu, scope)
    assert [pool.get(flag) for flag in POLICIES.values()] == [1, 1, 1]
    amounts = ("RELEASE_THRESHOLD", "RESERVED_MEM_CURRENT", "RESERVED_MEM_HIGH")
    assert [pool.get(amount) for amount in amounts] == [0, 0, 0]
    assert [pool.used, pool.get("USED_MEM_HIGH")] == [0, 0]


@pytest.mark.parametrize("policy", POLICIES)
def test_policy_can_be_switched(pool, policy):
    for value in (0, 1):
        ok(pool.set(POLICIES[policy], value))
        assert pool.get(POLICIES[policy]) == value


@pytest.mark.parametrize("nbytes", [1, 513, MIB + 1, 33 * MIB])
def test_bytes_used_and_reserved_by_one_block(cu, pool, scope, observe, nbytes):
    stream = scope.stream()
    memory = pool.alloc(nbytes, stream)
    used, reserved = pool.used, pool.reserved
    assert nbytes <= used <= reserved
    ok(cu.cuMemFreeAsync(memory, stream))
    assert pool.used == 0
    assert pool.reserved == reserved
    observe(f"pool: bytes used and reserved for {nbytes}", [used, reserved])


def test_high_marks_stay_until_they_are_reset(cu, pool, scope):
    stream = scope.stream()
    memory = pool.alloc(8 * MIB, stream)
    ok(cu.cuMemFreeAsync(memory, stream))
    ok(cu.cuStreamSynchronize(stream))
    assert pool.get("USED_MEM_HIGH") >= 8 * MIB
    assert pool.get("RESERVED_MEM_HIGH") >= 8 * MIB
    ok(pool.set("USED_MEM_HIGH", 0))
    ok(cu.cuMemPoolTrimTo(pool.handle, 0))
    ok(pool.set("RESERVED_MEM_HIGH", 0))
    assert pool.get("USED_MEM_HIGH") == pool.used == 0
    assert pool.get("RESERVED_MEM_HIGH") == pool.reserved


@pytest.mark.parametrize("mark", ["RESERVED_MEM_HIGH", "USED_MEM_HIGH"])
def test_high_mark_is_reset_to_nothing_but_zero(pool, mark):
    assert name(pool.set(mark, 4096)) == INVALID_VALUE


@pytest.mark.parametrize("amount", ["RESERVED_MEM_CURRENT", "USED_MEM_CURRENT"])
def test_amounts_cannot_be_set(pool, amount):
    assert name(pool.set(amount, 0)) == INVALID_VALUE


def test_attribute_that_is_not_there(raw, pool, observe):
    value, handle = ctypes.c_uint64(0), ctypes.c_void_p(int(pool.handle))
    wrong = {
        "get": raw.cuMemPoolGetAttribute(handle, ctypes.c_int(99), ctypes.byref(value)),
        "set": raw.cuMemPoolSetAttribute(handle, ctypes.c_int(99), ctypes.byref(value)),
        "get 0": raw.cuMemPoolGetAttribute(handle, ctypes.c_int(0), ctypes.byref(value)),
    }
    observe("pool: unknown attributes", wrong)


@pytest.mark.parametrize("way", ["stream", "event", "context"])
def test_unused_memory_goes_back_when_the_host_synchronises(cu, scope, observe, way):
    pool, stream = make_pool(cu, scope), scope.stream()
    ok(cu.cuMemFreeAsync(pool.alloc(8 * MIB, stream), stream))
    event = scope.recorded(stream)
    before = pool.reserved
    ok(
        {
            "stream": lambda: cu.cuStreamSynchronize(stream),
            "event": lambda: cu.cuEventSynchronize(event),
            "context": cu.cuCtxSynchronize,
        }[way]()
    )
    observe(f"pool: reserved before and after {way} synchronisation", [before, pool.reserved])


def test_query_is_no_synchronisation(cu, scope, observe):
    pool, stream, other = make_pool(cu, scope), scope.stream(), scope.event()
    ok(cu.cuMemFreeAsync(pool.alloc(8 * MIB, stream), stream))
    ok(cu.cuEventRecord(other, stream))
    while name(cu.cuEventQuery(other)) != SUCCESS or name(cu.cuStreamQuery(stream)) != SUCCESS:
        pass
    observe("pool: reserved after queries", pool.reserved)


def test_threshold_keeps_memory(cu, pool, scope):
    stream = scope.stream()
    ok(cu.cuMemFreeAsync(pool.alloc(8 * MIB, stream), stream))
    ok(cu.cuStreamSynchronize(stream))
    assert pool.reserved >= 8 * MIB


def test_trim_gives_unused_memory_back(cu, pool, scope):
    stream = scope.stream()
    ok(cu.cuMemFreeAsync(pool.alloc(100 * MIB, stream), stream))
    ok(cu.cuStreamSynchronize(stream))
    assert pool.reserved >= 100 * MIB
    ok(cu.cuMemPoolTrimTo(pool.handle, 0))
    assert pool.reserved == 0


def test_trim_keeps_what_is_in_use_and_what_it_is_told(cu, pool, scope, observe):
    stream = scope.stream()
    blocks = [pool.alloc(64 * MIB, stream) for _ in range(4)]
    for block in blocks[1:]:
        ok(cu.cuMemFreeAsync(block, stream))
    ok(cu.cuStreamSynchronize(stream))
    ok(cu.cuMemPoolTrimTo(pool.handle, 100 * MIB))
    some = pool.reserved
    assert some >= 100 * MIB
    ok(cu.cuMemPoolTrimTo(pool.handle, 0))
    assert pool.reserved >= pool.used >= 64 * MIB
    ok(cu.cuMemFreeAsync(blocks[0], stream))
    observe("pool: reserved after trims to 100 MiB and to 0", [some, pool.reserved])


def test_memory_information_counts_what_pools_reserve(cu, pool, scope, observe):
    stream = scope.stream()
    before, _ = ok(cu.cuMemGetInfo())
    memory = pool.alloc(256 * MIB, stream)
    during, _ = ok(cu.cuMemGetInfo())
    ok(cu.cuMemFreeAsync(memory, stream))
    observe("pool: free memory falls by what is reserved", before - during == pool.reserved)


def test_idle_pool_memory_is_there_for_cumemalloc(cu, pool, scope, observe):
    stream = scope.stream()
    free, _ = ok(cu.cuMemGetInfo())
    share = free // 5 * 3 // (2 * MIB) * 2 * MIB
    ok(cu.cuMemFreeAsync(pool.alloc(share, stream), stream))
    ok(cu.cuStreamSynchronize(stream))
    answer = cu.cuMemAlloc(share)
    held = pool.reserved >= share
    if int(answer[0]) == 0:
        ok(cu.cuMemFree(answer[1]))
    observe("pool: cuMemAlloc of what an idle pool holds", [name(answer), held])


# Freeing the other way, and wrongly


def test_cumemfree_takes_a_pool_block(cu, pool, scope):
    stream = scope.stream()
    memory = pool.alloc(4 * KIB, stream)
    ok(cu.cuStreamSynchronize(stream))
    assert name(cu.cuMemFree(memory)) == SUCCESS
    # Counted until the pool looks at it again; freed all the same, as a second free would show.
    assert pool.used == 4 * KIB


def test_cumemfree_of_a_pool_block_does_not_wait(cu, pool, scope, kernels):
    stream, other = scope.stream(), scope.stream()
    memory = pool.alloc(4 * KIB, stream)
    ok(cu.cuStreamSynchronize(stream))
    kernels.spin(other)
    event = scope.recorded(other)
    ok(cu.cuMemFree(memory))
    assert name(cu.cuEventQuery(event)) == NOT_READY


WRONG_FREES = {
    "null": "0",
    "nobody's address": "0x1234_5678_0000",
    "block of cuMemAlloc": "ok(cu.cuMemAlloc(4096))",
    "pinned memory": "scope.pinned(4096)",
    "inside a block": "int(ok(cu.cuMemAllocAsync(4096, stream))) + 512",
    "mapped virtual memory": "scope.mapped(2 * MIB)",
}


@pytest.mark.parametrize("what", WRONG_FREES)
def test_wrong_free(isolated, observe, what):
    outcome = isolated(
        f"""
        stream = scope.stream()
        note("free", name(cu.cuMemFreeAsync({WRONG_FREES[what]}, stream)))
        note("synchronize", name(cu.cuStreamSynchronize(stream)))
        """
    )
    observe(f"pool: cuMemFreeAsync of {what}", outcome)


@pytest.mark.parametrize("first", ["cuMemFree(memory)", "cuMemFreeAsync(memory, stream)"])
@pytest.mark.parametrize("second", ["cuMemFree(memory)", "cuMemFreeAsync(memory, stream)"])
def test_second_free(isolated, observe, first, second):
    outcome = isolated(
        f"""
        stream = scope.stream()
        memory = ok(cu.cuMemAllocAsync(4096, stream))
        ok(cu.cuStreamSynchronize(stream))
        note("first", name(cu.{first}))
        note("second", name(cu.{second}))
        note("synchronize", name(cu.cuStreamSynchronize(stream)))
        """
    )
    observe(f"pool: {first}, then {second}", outcome)
