"""Wrong programs, each with its correct twin: what the checker must report, and what it must not.

A program is a function of a bench and of `right`: which twin to be. The lines of the two accesses
that race in the wrong one are marked `# first` and `# second`; it returns the memory they meet in,
and who issues them. The expectation stands above it, as the arguments of `program`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext

from vramkit.driver import Stream

from .checker_bench import PROGRAMS as PROGRAMS
from .checker_bench import SIZE, WORDS, Bench, Outcome, met, program

HTOD, DTOH, DTOD = "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuMemcpyDtoDAsync_v2"
SET, KERNEL, HOST_ACCESS = "cuMemsetD8Async", "cuLaunchKernel", "simHostAccess"

# Order between streams


@program("race", (HTOD, "write"), (KERNEL, "read"))
def missing_event_wait(bench: Bench, right: bool) -> Outcome:
    copying, computing, memory, out = bench.stream(), bench.stream(), bench.memory(), bench.memory()
    bench.device.copy(memory, bench.pinned(), stream=copying)  # first
    landed = bench.keep(copying.record())
    if right:
        computing.wait(landed)
    bench.device.kernels.checksum(memory, WORDS, out, stream=computing)  # second
    return met(memory, copying, computing)


@program("race", (HTOD, "write"), (DTOD, "read"))
def wait_for_the_wrong_event(bench: Bench, right: bool) -> Outcome:
    copying, other, computing = bench.stream(), bench.stream(), bench.stream()
    memory, target = bench.memory(), bench.memory()
    bench.device.copy(memory, bench.pinned(), stream=copying)  # first
    landed, unrelated = bench.keep(copying.record()), bench.keep(other.record())
    computing.wait(landed if right else unrelated)
    bench.device.copy(target, memory, stream=computing)  # second
    return met(memory, copying, computing)


@program("race", (HTOD, "write"), (KERNEL, "read"))
def event_recorded_too_early(bench: Bench, right: bool) -> Outcome:
    copying, computing, memory, out = bench.stream(), bench.stream(), bench.memory(), bench.memory()
    landed = bench.keep(copying.record())
    bench.device.copy(memory, bench.pinned(), stream=copying)  # first
    if right:
        landed.record(copying)
    computing.wait(landed)
    bench.device.kernels.checksum(memory, WORDS, out, stream=computing)  # second
    return met(memory, copying, computing)


@program("race", (HTOD, "write"), (KERNEL, "write"))
def event_recorded_again_in_between(bench: Bench, right: bool) -> Outcome:
    copying, other, computing = bench.stream(), bench.stream(), bench.stream()
    memory, landed = bench.memory(), bench.event()
    bench.device.copy(memory, bench.pinned(), stream=copying)  # first
    landed.record(copying)
    (bench.event() if right else landed).record(other)
    computing.wait(landed)
    bench.device.kernels.sweep(memory, WORDS, stream=computing)  # second
    return met(memory, copying, computing)


@program("race", (SET, "write"), (KERNEL, "write"))
def wait_issued_before_the_record(bench: Bench, right: bool) -> Outcome:
    filling, computing = bench.stream(), bench.stream()
    memory, filled = bench.memory(), bench.event()
    if not right:
        computing.wait(filled)  # never recorded yet: waits for nothing
    bench.device.fill(memory, 1, stream=filling)  # first
    filled.record(filling)
    if right:
        computing.wait(filled)
    bench.device.kernels.sweep(memory, WORDS, stream=computing)  # second
    return met(memory, filling, computing)


@program("race", (SET, "write"), (SET, "write"))
def two_fills_of_the_same_memory(bench: Bench, right: bool) -> Outcome:
    one, two, memory = bench.stream(), bench.stream(), bench.memory()
    shared = memory.at(SIZE // 4, SIZE // 4)
    bench.device.fill(memory.at(0, SIZE // 2), 1, stream=one)  # first
    second_half = memory.at(SIZE // 2 if right else SIZE // 4)
    bench.device.fill(second_half, 2, stream=two)  # second
    return met(shared, one, two)


@program("race", (KERNEL, "read"), (HTOD, "write"))
def ring_slot_overwritten_in_use(bench: Bench, right: bool) -> Outcome:
    copying, computing, out = bench.stream(), bench.stream(), bench.memory()
    ring, source = [bench.memory(), bench.memory()], bench.pinned()
    for step in range(2):
        bench.device.copy(ring[step], source, stream=copying)
        computing.wait(copying)
        bench.device.kernels.checksum(ring[step], WORDS, out, stream=computing)  # first
    if right:
        copying.wait(computing)
    bench.device.copy(ring[0], source, stream=copying)  # second
    return met(ring[0], computing, copying)


@program("race", (DTOH, "read"), (SET, "write"))
def source_overwritten_before_it_was_copied_out(bench: Bench, right: bool) -> Outcome:
    copying, filling, memory = bench.stream(), bench.stream(), bench.memory()
    bench.device.copy(bench.pinned(), memory, stream=copying)  # first
    if right:
        filling.wait(copying)
    bench.device.fill(memory, 0, stream=filling)  # second
    return met(memory, copying, filling)


@program("race", (SET, "write"), (KERNEL, "read"))
def kernel_of_two_ranges_with_only_one_ordered(bench: Bench, right: bool) -> Outcome:
    one, two, computing = bench.stream(), bench.stream(), bench.stream()
    a, b, total = bench.memory(), bench.memory(), bench.memory()
    bench.device.fill(a, 1, stream=one)
    bench.device.fill(b, 2, stream=two)  # first
    computing.wait(one)
    if right:
        computing.wait(two)
    bench.device.kernels.add(total, a, b, WORDS, stream=computing)  # second
    return met(b, two, computing)


@program("race", (SET, "write"), (KERNEL, "read"))
def value_written_before_the_work_it_stands_for(bench: Bench, right: bool) -> Outcome:
    filling, computing = bench.stream(), bench.stream()
    memory, out, flag = bench.memory(), bench.memory(), bench.memory()
    if not right:
        filling.write_value(flag, 1)
    bench.device.fill(memory, 1, stream=filling)  # first
    if right:
        filling.write_value(flag, 1)
    computing.wait_value(flag, 1)
    bench.device.kernels.checksum(memory, WORDS, out, stream=computing)  # second
    return met(memory, filling, computing)


@program("race", (HTOD, "write"), (KERNEL, "read"))
def stream_closed_as_if_that_waited(bench: Bench, right: bool) -> Outcome:
    copying, computing = bench.device.stream(), bench.stream()
    memory, out = bench.memory(), bench.memory()
    issuer = copying.id
    bench.device.copy(memory, bench.pinned(), stream=copying)  # first
    if right:
        computing.wait(copying)
    copying.close()
    bench.device.kernels.checksum(memory, WORDS, out, stream=computing)  # second
    return met(memory, issuer, computing)


@program("race", (SET, "write"), (DTOD, "read"))
def aliased_memory_without_order(bench: Bench, right: bool) -> Outcome:
    writing, reading, target = bench.stream(), bench.stream(), bench.memory()
    physical = bench.keep(bench.device.create(bench.device.granularity))
    ranges = [bench.keep(bench.device.reserve(physical.nbytes)) for _ in range(2)]
    for each in ranges:
        each.map(physical)
        each.set_access()
    bench.device.fill(ranges[0].at(0, SIZE), 1, stream=writing)  # first
    if right:
        reading.wait(writing)
    bench.device.copy(target, ranges[1].at(0, SIZE), stream=reading)  # second
    return met(ranges[1], writing, reading)


# Default streams


@program("race", ("cuMemsetD8_v2", "write"), (KERNEL, "write"))
def non_blocking_stream_taken_for_ordered_with_the_legacy_one(bench: Bench, right: bool) -> Outcome:
    stream, memory = bench.stream(blocking=right), bench.memory()
    bench.device.fill(memory, 1)  # first
    bench.device.kernels.sweep(memory, WORDS, stream=stream)  # second
    return met(memory, bench.device.legacy_stream, stream)


@program("race", (KERNEL, "write"), ("cuMemcpyDtoD_v2", "read"))
def legacy_stream_taken_for_ordered_with_a_non_blocking_one(bench: Bench, right: bool) -> Outcome:
    stream, memory, target = bench.stream(blocking=right), bench.memory(), bench.memory()
    bench.device.kernels.sweep(memory, WORDS, stream=stream)  # first
    bench.device.copy(target, memory)  # second
    return met(memory, stream, bench.device.legacy_stream)


@program("race", (SET, "write"), (SET, "write"))
def per_thread_default_stream_taken_for_the_legacy_one(bench: Bench, right: bool) -> Outcome:
    device, memory, streams = bench.device, bench.memory(), []

    def use(fill: Callable[[Stream], None]) -> None:
        stream = device.legacy_stream if right else device.per_thread_stream
        streams.append(stream.id)
        fill(stream)

    for fill in (
        lambda stream: device.fill(memory, 1, stream=stream),  # first
        lambda stream: device.fill(memory, 2, stream=stream),  # second
    ):
        thread = threading.Thread(target=use, args=(fill,))
        thread.start()
        thread.join()
    return met(memory, *streams)


@program("race", (HTOD, "write"), (KERNEL, "write"))
def pageable_copy_taken_for_complete(bench: Bench, right: bool) -> Outcome:
    copying, computing, memory = bench.stream(), bench.stream(), bench.memory()
    bench.device.copy(memory, bytes(SIZE), stream=copying)  # first
    if right:
        computing.wait(copying)
    bench.device.kernels.sweep(memory, WORDS, stream=computing)  # second
    return met(memory, copying, computing)


@program("race", ("cuMemcpyHtoD_v2", "write"), (KERNEL, "write"))
def synchronous_pageable_copy_taken_for_complete(bench: Bench, right: bool) -> Outcome:
    computing, memory, source = bench.stream(), bench.memory(), bench.pinned()
    bench.device.copy(memory, source if right else bytes(SIZE))  # first
    bench.device.kernels.sweep(memory, WORDS, stream=computing)  # second
    return met(memory, bench.device.legacy_stream, computing)


# The host


@program("race", (DTOH, "write"), (HOST_ACCESS, "read"))
def host_read_before_synchronisation(bench: Bench, right: bool) -> Outcome:
    stream, memory, result = bench.stream(), bench.memory(), bench.pinned()
    bench.device.copy(result, memory, stream=stream)  # first
    if right:
        stream.synchronize()
    result.read(16, 16)  # second
    return met(result.at(16, 16), stream, None)


@program("race", (HTOD, "read"), (HOST_ACCESS, "write"))
def pinned_source_written_while_it_is_copied(bench: Bench, right: bool) -> Outcome:
    stream, memory, source = bench.stream(), bench.memory(), bench.pinned()
    bench.device.copy(memory, source, stream=stream)  # first
    if right:
        bench.keep(stream.record()).synchronize()
    source.write(b"next")  # second
    return met(source, stream, None)


@program("race", (DTOH, "write"), (HTOD, "read"))
def pinned_buffer_sent_on_before_it_was_received(bench: Bench, right: bool) -> Outcome:
    receiving, sending, buffer = bench.stream(), bench.stream(), bench.pinned()
    bench.device.copy(buffer, bench.memory(), stream=receiving)  # first
    if right:
        sending.wait(receiving)
    bench.device.copy(bench.memory(), buffer, stream=sending)  # second
    return met(buffer, receiving, sending)


@program("race", (DTOH, "write"), (HOST_ACCESS, "read"))
def wrong_stream_synchronised(bench: Bench, right: bool) -> Outcome:
    stream, other, result = bench.stream(), bench.stream(), bench.pinned()
    bench.device.copy(result, bench.memory(), stream=stream)  # first
    (stream if right else other).synchronize()
    result.read()  # second
    return met(result, stream, None)


@program("race", (DTOH, "write"), (HOST_ACCESS, "read"))
def legacy_stream_synchronised_for_a_non_blocking_one(bench: Bench, right: bool) -> Outcome:
    stream, result = bench.stream(blocking=right), bench.pinned()
    bench.device.copy(result, bench.memory(), stream=stream)  # first
    bench.device.legacy_stream.synchronize()
    result.read()  # second
    return met(result, stream, None)


@program("race", (DTOH, "write"), (HOST_ACCESS, "read"))
def answer_of_a_query_ignored(bench: Bench, right: bool) -> Outcome:
    stream, result = bench.stream(), bench.pinned()
    bench.device.copy(result, bench.memory(), stream=stream)  # first
    while not stream.query() and right:
        bench.sim.advance(1e-6)
    result.read()  # second
    return met(result, stream, None)


@program("race", (KERNEL, "write"), (HOST_ACCESS, "read"))
def time_taken_for_completion(bench: Bench, right: bool) -> Outcome:
    stream, result = bench.stream(), bench.pinned()
    bench.device.kernels.fill(result, WORDS, 7, stream=stream)  # first
    bench.sim.advance(1.0)  # long over by then, which promises nothing
    if right:
        assert stream.query()
    result.read()  # second
    return met(result, stream, None)


@program("race", (SET, "write"), (HOST_ACCESS, "read"))
def fill_of_pinned_memory_taken_for_complete(bench: Bench, right: bool) -> Outcome:
    stream, result = bench.stream(), bench.pinned()
    # Without a stream the call waits for host memory, and only for that.
    bench.device.fill(result, 1, stream=None if right else stream)  # first
    result.read()  # second
    return met(result, stream, None)


@program("race", (DTOH, "write"), (HOST_ACCESS, "read"))
def host_function_queued_as_if_it_had_run(bench: Bench, right: bool) -> Outcome:
    stream, result, seen = bench.stream(), bench.pinned(), threading.Event()
    bench.device.copy(result, bench.memory(), stream=stream)  # first
    stream.host_function(seen.set)
    if right:
        stream.synchronize()
        assert seen.is_set()
    result.read()  # second
    return met(result, stream, None)


# Memory that goes away


@program("free_in_use", (SET, "write"), ("cuMemUnmap", "free"))
def unmapped_in_use(bench: Bench, right: bool) -> Outcome:
    stream, other, nbytes = bench.stream(), bench.stream(), bench.device.granularity
    physical = bench.keep(bench.device.create(nbytes))
    addresses = bench.keep(bench.device.reserve(nbytes))
    addresses.map(physical)
    addresses.set_access()
    bench.device.fill(addresses, 1, stream=stream)  # first
    # It is over by then, or it would fault; only the right twin has made sure.
    bench.sim.advance(1.0)
    (stream if right else other).synchronize()
    addresses.unmap()  # second
    return met(addresses, stream, None)


@program("free_in_use", (KERNEL, "write"), ("cuMemUnmap", "free"))
def one_of_two_mappings_unmapped_in_use(bench: Bench, right: bool) -> Outcome:
    stream, nbytes = bench.stream(), bench.device.granularity
    physical = bench.keep(bench.device.create(nbytes))
    used, spare = (bench.keep(bench.device.reserve(nbytes)) for _ in range(2))
    for each in (used, spare):
        each.map(physical)
        each.set_access()
    bench.device.kernels.sweep(used, WORDS, stream=stream)  # first
    bench.sim.advance(1.0)
    bench.stream().synchronize()
    (spare if right else used).unmap()  # second
    return met(used, stream, None)


@program("implicit_wait", (KERNEL, "write"), ("cuMemFree_v2", "free"))
def freed_in_use(bench: Bench, right: bool) -> Outcome:
    stream, memory = bench.stream(), bench.device.alloc(SIZE)
    outcome = met(memory, stream, None)
    bench.device.kernels.sweep(memory, WORDS, stream=stream)  # first
    if right:
        stream.synchronize()
    memory.close()  # second
    return outcome


@program("implicit_wait", (DTOH, "write"), (HOST_ACCESS, "read"))
def free_of_another_block_taken_for_a_barrier(bench: Bench, right: bool) -> Outcome:
    stream, result, other = bench.stream(), bench.pinned(), bench.device.alloc(SIZE)
    bench.device.copy(result, bench.memory(), stream=stream)  # first
    other.close()
    if right:
        stream.synchronize()
    result.read()  # second
    return met(result, stream, None)


@program("implicit_wait", (DTOH, "write"), (HOST_ACCESS, "read"))
def free_of_another_block_taken_for_a_barrier_unsaid(bench: Bench, right: bool) -> Outcome:
    stream, result, other = bench.stream(), bench.pinned(), bench.device.alloc(SIZE)
    bench.device.copy(result, bench.memory(), stream=stream)  # first
    with bench.sim.relying_on_waits() if right else nullcontext():
        other.close()
    result.read()  # second
    return met(result, stream, None)


@program("race", (DTOH, "write"), (HOST_ACCESS, "read"))
def work_issued_after_the_free_that_is_relied_on(bench: Bench, right: bool) -> Outcome:
    stream, result, memory = bench.stream(), bench.pinned(), bench.memory()
    with bench.sim.relying_on_waits():
        if not right:
            bench.device.alloc(SIZE).close()
        bench.device.copy(result, memory, stream=stream)  # first
        if right:
            bench.device.alloc(SIZE).close()
    result.read()  # second
    return met(result, stream, None)


@program("implicit_wait", (HTOD, "read"), ("cuMemFreeHost", "free"))
def pinned_memory_freed_in_use(bench: Bench, right: bool) -> Outcome:
    stream, source = bench.stream(), bench.device.alloc_pinned(SIZE)
    outcome = met(source, stream, None)
    bench.device.copy(bench.memory(), source, stream=stream)  # first
    if right:
        stream.synchronize()
    source.close()  # second
    return outcome


@program("implicit_wait", (DTOH, "write"), ("cuMemHostUnregister", "free"))
def registered_memory_unregistered_in_use(bench: Bench, right: bool) -> Outcome:
    stream, target = bench.stream(), bench.device.register(bytearray(SIZE))
    outcome = met(target, stream, None)
    bench.device.copy(target, bench.memory(), stream=stream)  # first
    if right:
        stream.synchronize()
    target.close()  # second
    return outcome


# Blocks of a pool


@program("use_after_free", ("simBlockFree", "free"), (SET, "write"))
def pool_block_used_after_it_was_freed(bench: Bench, right: bool) -> Outcome:
    stream, memory = bench.stream(), bench.memory()
    bench.sim.block_alloc(memory.address, 4096, stream)
    bench.sim.block_free(memory.address, 4096, stream)  # first
    if right:
        bench.sim.block_alloc(memory.address, 4096, stream)
    bench.device.fill(memory.at(1024, 1024), 1, stream=stream)  # second
    return met(memory.at(1024, 1024), stream, stream)


@program("use_after_free", ("simBlockFree", "free"), ("simBlockFree", "free"))
def pool_block_freed_twice(bench: Bench, right: bool) -> Outcome:
    stream, memory = bench.stream(), bench.memory()
    bench.sim.block_alloc(memory.address, 4096, stream)
    bench.sim.block_free(memory.address, 4096, stream)  # first
    again = memory.at(4096 if right else 0, 4096)
    bench.sim.block_free(again.address, again.nbytes, stream)  # second
    return met(memory.at(0, 4096), stream, stream)


@program("race", ("simBlockFree", "free"), ("simBlockAlloc", "alloc"))
def pool_block_reused_on_another_stream(bench: Bench, right: bool) -> Outcome:
    one, two, memory = bench.stream(), bench.stream(), bench.memory()
    bench.sim.block_alloc(memory.address, 4096, one)
    bench.sim.block_free(memory.address, 4096, one)  # first
    if right:
        two.wait(one)
    bench.sim.block_alloc(memory.address, 2048, two)  # second
    return met(memory.at(0, 2048), one, two)


@program("race", (KERNEL, "write"), ("simBlockFree", "free"))
def pool_block_freed_while_another_stream_uses_it(bench: Bench, right: bool) -> Outcome:
    owner, borrower, memory = bench.stream(), bench.stream(), bench.memory()
    bench.sim.block_alloc(memory.address, 4096, owner)
    borrower.wait(owner)
    bench.device.kernels.sweep(memory, 1024, stream=borrower)  # first
    if right:
        owner.wait(borrower)
    bench.sim.block_free(memory.address, 4096, owner)  # second
    return met(memory.at(0, 4096), borrower, owner)


@program("use_after_free", ("simBlockHold", "free"), (SET, "write"))
def pool_block_used_while_the_pool_holds_it(bench: Bench, right: bool) -> Outcome:
    owner, borrower, memory = bench.stream(), bench.stream(), bench.memory()
    bench.sim.block_alloc(memory.address, 4096, owner)
    borrower.wait(owner)
    if right:
        bench.device.fill(memory.at(0, 4096), 1, stream=borrower)
    bench.sim.block_hold(memory.address, 4096, owner)  # first
    if not right:
        bench.device.fill(memory.at(0, 4096), 1, stream=borrower)  # second
    borrower.synchronize()
    bench.sim.block_free(memory.address, 4096, owner)
    return met(memory.at(0, 4096), owner, borrower)


@program("out_of_bounds", ("simBlockAlloc", "alloc"), (SET, "write"))
def access_beyond_the_end_of_a_block(bench: Bench, right: bool) -> Outcome:
    stream, memory = bench.stream(), bench.memory()
    bench.sim.block_alloc(memory.address, 4096, stream)  # first
    bench.sim.block_alloc(memory.address + 4096, 4096, stream)
    bench.device.fill(memory.at(1024, 3072 if right else 4096), 1, stream=stream)  # second
    return met(memory.at(4096, 1024), stream, stream)


@program("out_of_bounds", ("simBlockAlloc", "alloc"), (DTOH, "read"))
def access_to_memory_of_a_pool_that_is_no_block(bench: Bench, right: bool) -> Outcome:
    stream, memory, result = bench.stream(), bench.memory(), bench.pinned()
    bench.sim.block_region(memory.address, SIZE)
    bench.sim.block_alloc(memory.address, 4000, stream)  # first
    where = memory.at(0 if right else 4032, 64)
    bench.device.copy(result, where, stream=stream)  # second
    return met(memory.at(4032, 64), stream, stream)


@program("out_of_bounds", ("simBlockAlloc", "alloc"), (SET, "write"))
def access_beyond_a_block_inside_another(bench: Bench, right: bool) -> Outcome:
    stream, memory = bench.stream(), bench.memory()
    bench.sim.block_alloc(memory.address, 8192, stream)
    bench.sim.block_alloc(memory.address, 4096, stream)  # first
    bench.device.fill(memory.at(4096, 4096), 1, stream=stream)
    bench.device.fill(memory.at(0, 4096 if right else 8192), 1, stream=stream)  # second
    return met(memory.at(4096, 4096), stream, stream)


# Host functions


@program("race", (DTOH, "write"), (HOST_ACCESS, "read"))
def host_function_that_reads_what_another_stream_writes(bench: Bench, right: bool) -> Outcome:
    writing, calling, result = bench.stream(), bench.stream(), bench.pinned()

    def look() -> None:
        result.read(0, 4)  # second

    bench.device.copy(result, bench.memory(), stream=writing)  # first
    if right:
        calling.wait(writing)
    calling.host_function(look)
    calling.synchronize()
    return met(result, writing, calling)


@program("race", (DTOH, "write"), (HOST_ACCESS, "read"))
def result_overwritten_before_a_host_function_has_read_it(bench: Bench, right: bool) -> Outcome:
    """The copy is issued before the function runs, and in the right twin ordered after it."""
    writing, calling, result = bench.stream(), bench.stream(), bench.pinned()

    def look() -> None:
        result.read()  # second

    bench.device.kernels.spin(10_000_000, stream=calling)
    calling.host_function(look)
    if right:
        writing.wait(calling)
    bench.device.copy(result, bench.memory(), stream=writing)  # first
    calling.synchronize()
    return met(result, writing, calling)


@program("race", (HOST_ACCESS, "write"), (HTOD, "read"))
def source_sent_that_a_host_function_fills(bench: Bench, right: bool) -> Outcome:
    sending, calling, source = bench.stream(), bench.stream(), bench.pinned()
    filled = threading.Event()

    def fill() -> None:
        source.write(b"filled")  # first
        filled.set()

    calling.host_function(fill)
    bench.sim.advance(1.0)
    bench.stream().query()
    assert filled.wait(10)
    if right:
        sending.wait(calling)
    bench.device.copy(bench.memory(), source, stream=sending)  # second
    return met(source, calling, sending)


# Additions in place, and the time between events


@program("race", (KERNEL, "atomic"), (DTOH, "read"))
def sum_fetched_before_it_is_complete(bench: Bench, right: bool) -> Outcome:
    adding, fetching, memory, out = bench.stream(), bench.stream(), bench.memory(), bench.memory()
    bench.device.kernels.checksum(memory, WORDS, out, stream=adding)  # first
    if right:
        fetching.wait(adding)
    bench.device.copy(bench.pinned(), out.at(0, 8), 8, stream=fetching)  # second
    return met(out, adding, fetching)


@program("race", (SET, "write"), (KERNEL, "atomic"))
def sum_cleared_beside_the_addition(bench: Bench, right: bool) -> Outcome:
    adding, clearing, memory, out = bench.stream(), bench.stream(), bench.memory(), bench.memory()
    bench.device.fill(out, 0, stream=clearing)  # first
    if right:
        adding.wait(clearing)
    bench.device.kernels.checksum(memory, WORDS, out, stream=adding)  # second
    return met(out, clearing, adding)


@program("race", (SET, "write"), (SET, "write"))
def time_between_events_not_asked_for(bench: Bench, right: bool) -> Outcome:
    one, two, memory = bench.stream(), bench.stream(), bench.memory()
    before = bench.keep(one.record())
    bench.device.fill(memory, 1, stream=one)  # first
    after = bench.keep(one.record())
    bench.sim.advance(1.0)
    if right:
        after.elapsed_since(before)  # an answer says that both were reached
    bench.device.fill(memory, 2, stream=two)  # second
    return met(memory, one, two)
