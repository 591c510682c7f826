"""Pieces that are free as a whole are mapped where they are needed before the pool grows."""

from __future__ import annotations

import random

import pytest

from vramkit import Pool
from vramkit.driver import Device, Simulator, Stream

from .graphs import Graphs
from .support import KIB, MIB, Foreign, all_ended, calls

pytestmark = pytest.mark.sim_only

SIZE = 4 * MIB  # of a block that has one piece


@pytest.fixture
def stream(streams: list[Stream]) -> Stream:
    return streams[0]


def pieces(pool: Pool, count: int, stream: Stream) -> list[int]:
    """Blocks of one piece each, side by side."""
    blocks = [pool.malloc(SIZE, stream) for _ in range(count)]
    assert blocks == [blocks[0] + SIZE * number for number in range(count)]
    assert pool.stats().pieces == count
    return blocks


def free(pool: Pool, blocks: list[int]) -> None:
    for address in blocks:
        pool.free(address)


def mappings(sim: Simulator) -> int:
    return sim.live_objects()["mappings"]


# What moves


def test_pieces_of_the_stream_move_before_the_pool_grows(
    pool: Pool, device: Device, sim: Simulator, stream: Stream
) -> None:
    blocks = pieces(pool, 8, stream)
    free(pool, blocks[::2])
    before = pool.stats()
    calls(sim)
    large = pool.malloc(4 * SIZE, stream)
    made = calls(sim)
    assert (made["cuMemMap"], made["cuMemSetAccess"]) == (4, 1)
    assert not made.keys() & {"cuMemCreate", "cuMemUnmap", "cuMemRelease"}
    stats = pool.stats()
    assert (stats.remap_hits, stats.remapped_bytes) == (1, 4 * SIZE)
    assert (stats.device_growths, stats.reserved) == (before.device_growths, 8 * SIZE)
    device.fill(large, 1, 4 * SIZE, stream=stream)
    free(pool, [large, *blocks[1::2]])


@pytest.mark.parametrize(("count", "of_the_stream"), [(2, 0), (3, 1)])
def test_idle_pieces_move_before_those_of_the_stream(
    pool: Pool, device: Device, stream: Stream, count: int, of_the_stream: int
) -> None:
    with device.stream() as gone:
        others = [pool.malloc(SIZE, gone) for _ in range(4)]
        own = [pool.malloc(SIZE, stream) for _ in range(4)]
        free(pool, others[::2] + own[::2])
    assert (pool.stats().idle, pool.stats().waiting) == (2 * SIZE, 2 * SIZE)
    large = pool.malloc(count * SIZE, stream)
    stats = pool.stats()
    assert (stats.idle, stats.waiting) == (0, (2 - of_the_stream) * SIZE)
    assert (stats.remapped_bytes, stats.reserved) == (count * SIZE, 8 * SIZE)
    free(pool, [large, *others[1::2], *own[1::2]])


def test_what_pieces_do_not_give_is_new(pool: Pool, sim: Simulator, stream: Stream) -> None:
    blocks = pieces(pool, 4, stream)
    free(pool, blocks[::2])
    calls(sim)
    large = pool.malloc(4 * SIZE, stream)
    made = calls(sim)
    assert (made["cuMemMap"], made["cuMemCreate"], made["cuMemSetAccess"]) == (4, 2, 1)
    stats = pool.stats()
    assert (stats.growth_hits, stats.remap_hits) == (5, 0)
    assert (stats.remapped_bytes, stats.reserved) == (2 * SIZE, 6 * SIZE)
    free(pool, [large, *blocks[1::2]])


def test_a_free_range_is_lengthened_where_it_is(pool: Pool, sim: Simulator, stream: Stream) -> None:
    blocks = pieces(pool, 3, stream)
    free(pool, [blocks[0], blocks[2]])
    calls(sim)
    large = pool.malloc(2 * SIZE, stream)
    assert large == blocks[2]  # behind which nothing is mapped
    assert calls(sim)["cuMemMap"] == 1
    assert (pool.stats().remapped_bytes, pool.stats().reserved) == (SIZE, 3 * SIZE)
    free(pool, [large, blocks[1]])


def test_the_largest_pieces_of_short_ranges_move_first(
    pool: Pool, sim: Simulator, stream: Stream
) -> None:
    blocks = pieces(pool, 11, stream)
    large = pool.malloc(128 * MIB, stream)  # pieces of 6 MiB, the last one of 2
    last = pool.malloc(SIZE, stream)
    free(pool, [*blocks[:10], large])
    rest = pool.malloc(96 * MIB, stream)  # of which 32 MiB are left
    calls(sim)
    moved = pool.malloc(41 * MIB, stream)
    assert calls(sim)["cuMemMap"] == 5 + 3  # of 6 and 4 MiB
    assert pool.check_invariants() == ""
    free(pool, [blocks[10], last, rest, moved])


def test_short_ranges_move_before_long_ones(pool: Pool, stream: Stream) -> None:
    """What is left of the long one serves the next request without a move."""
    blocks = pieces(pool, 11, stream)
    free(pool, [blocks[0], blocks[2], *blocks[4:8], *blocks[9:]])
    moved = pool.malloc(5 * SIZE, stream)
    assert moved == blocks[9]  # which is lengthened by both short ranges and a part of the long one
    assert pool.stats().remapped_bytes == 3 * SIZE
    rest = pool.malloc(3 * SIZE, stream)
    assert rest == blocks[5]
    assert pool.stats().remapped_bytes == 3 * SIZE
    assert pool.stats().reserved == 11 * SIZE
    free(pool, [moved, rest, blocks[1], blocks[3], blocks[8]])


def test_addresses_between_blocks_are_filled(pool: Pool, stream: Stream) -> None:
    blocks = pieces(pool, 8, stream)
    free(pool, [blocks[1], blocks[3]])
    moved = pool.malloc(2 * SIZE, stream)
    assert moved == blocks[7] + SIZE
    pool.step()  # the old mappings are gone
    pool.free(blocks[0])
    filling = pool.malloc(2 * SIZE, stream)
    assert filling == blocks[0]
    free(pool, [moved, filling, blocks[2], *blocks[4:]])


MOST = 64  # pieces that a request moves if it need not


@pytest.mark.parametrize("limited", [False, True])
def test_a_request_moves_so_many_pieces_unless_it_must(
    pool: Pool, stream: Stream, limited: bool
) -> None:
    count = MOST + 20
    blocks = pieces(pool, 2 * count, stream)
    free(pool, blocks[::2])
    if limited:
        pool.configure(limit=2 * count * SIZE)
    large = pool.malloc(count * SIZE, stream)
    assert pool.stats().remapped_bytes == (count if limited else MOST) * SIZE
    if not limited:
        assert pool.stats().reserved == (2 * count + 20) * SIZE
        more = pool.malloc(20 * SIZE, stream)  # moves the others
        assert pool.stats().remapped_bytes == count * SIZE
        assert pool.stats().reserved == (2 * count + 20) * SIZE
        pool.free(more)
    free(pool, [large, *blocks[1::2]])


def test_a_larger_request_moves_more_pieces(pool: Pool, stream: Stream) -> None:
    blocks = pieces(pool, 2 * (MOST + 20), stream)
    free(pool, blocks[::2])
    large = pool.malloc(2 << 30, stream)
    assert pool.stats().remapped_bytes == (MOST + 20) * SIZE
    free(pool, [large, *blocks[1::2]])


@pytest.mark.sim(data=True)
def test_a_piece_with_a_block_in_use_stays(pool: Pool, device: Device, stream: Stream) -> None:
    first, second = pool.malloc(3 * MIB, stream), pool.malloc(3 * MIB, stream)
    assert second == first + 3 * MIB  # begins on the last part of the first piece
    device.fill(second, 7, 3 * MIB, stream=stream)
    pool.free(first)
    large = pool.malloc(SIZE, stream)
    assert pool.stats().remapped_bytes == 0
    device.fill(large, 1, SIZE, stream=stream)
    content = bytearray(3 * MIB)
    device.copy(content, second, len(content), stream=stream)
    stream.synchronize()
    assert content == b"\7" * len(content)
    free(pool, [second, large])


@pytest.mark.sim(data=True)
def test_blocks_in_use_keep_what_is_in_them(pool: Pool, device: Device, stream: Stream) -> None:
    blocks = pieces(pool, 8, stream)
    pool.configure(limit=8 * SIZE)
    for number, address in enumerate(blocks):
        device.fill(address, number, SIZE, stream=stream)
    free(pool, blocks[::2])
    large = pool.malloc(4 * SIZE, stream)
    device.fill(large, 99, 4 * SIZE, stream=stream)
    for number, address in list(enumerate(blocks))[1::2]:
        content = bytearray(SIZE)
        device.copy(content, address, SIZE, stream=stream)
        stream.synchronize()
        assert content == bytes([number]) * SIZE
    free(pool, [large, *blocks[1::2]])


def test_a_request_with_a_rest_leaves_it_to_its_stream(pool: Pool, stream: Stream) -> None:
    blocks = pieces(pool, 4, stream)
    free(pool, blocks[::2])
    large = pool.malloc(6 * MIB, stream)
    assert (pool.stats().waiting, pool.stats().idle) == (2 * MIB, 0)
    rest = pool.malloc(2 * MIB, stream)
    assert rest == large + 6 * MIB
    assert pool.stats().reserved == 4 * SIZE
    free(pool, [large, rest, *blocks[1::2]])


def test_small_blocks_in_a_piece_keep_it(pool: Pool, stream: Stream) -> None:
    blocks = pieces(pool, 4, stream)
    free(pool, blocks[::2])
    small = pool.malloc(64 * KIB, stream)
    assert small in blocks[::2]
    large = pool.malloc(2 * SIZE, stream)
    assert (pool.stats().remapped_bytes, pool.stats().reserved) == (SIZE, 5 * SIZE)
    free(pool, [small, large, *blocks[1::2]])


# In the stream's order


def test_memory_of_a_busy_stream_moves_without_a_wait_and_its_old_mapping_stays(
    pool: Pool, device: Device, sim: Simulator, stream: Stream
) -> None:
    blocks = pieces(pool, 8, stream)
    device.kernels.spin(10**9, stream=stream)
    for address in blocks:
        device.fill(address, 1, SIZE, stream=stream)  # the checker looks at the old addresses
    free(pool, blocks[::2])
    before = sim.now()
    large = pool.malloc(4 * SIZE, stream)
    device.fill(large, 2, 4 * SIZE, stream=stream)
    assert pool.stats().remapped_bytes == 4 * SIZE
    pool.step()
    pool.trim()
    assert sim.now() - before < 0.001
    assert not stream.query()
    assert mappings(sim) == 12
    stream.synchronize()
    pool.step()
    assert mappings(sim) == 8
    free(pool, [large, *blocks[1::2]])


def test_memory_of_another_busy_stream_does_not_move(
    pool: Pool, device: Device, sim: Simulator, streams: list[Stream]
) -> None:
    busy, other, _ = streams
    blocks = pieces(pool, 8, busy)
    device.kernels.spin(10**9, stream=busy)
    for address in blocks:
        device.fill(address, 1, SIZE, stream=busy)
    free(pool, blocks[::2])
    large = pool.malloc(4 * SIZE, other)
    assert (pool.stats().remapped_bytes, pool.stats().reserved) == (0, 12 * SIZE)
    device.fill(large, 2, 4 * SIZE, stream=other)
    busy.synchronize()
    again = pool.malloc(4 * SIZE, other)
    assert (pool.stats().remapped_bytes, pool.stats().reserved) == (4 * SIZE, 12 * SIZE)
    device.fill(again, 2, 4 * SIZE, stream=other)
    free(pool, [large, again, *blocks[1::2]])


# What never moves


def test_memory_of_a_capture_stays_until_its_graph_is_gone(
    pool: Pool, device: Device, graphs: Graphs, sim: Simulator, stream: Stream
) -> None:
    captured = Foreign(stream)
    with graphs.capture(stream) as graph:
        blocks = [pool.malloc(SIZE, captured) for _ in range(4)]
        for address in blocks:
            pool.free(address, stream=captured)
    held = pool.stats().reserved
    assert held == 4 * SIZE
    device.synchronize()
    large = pool.malloc(2 * SIZE, stream)  # neither joined with it nor made of it
    assert not blocks[0] <= large < blocks[0] + 4 * SIZE
    assert (pool.stats().remapped_bytes, pool.stats().reserved) == (0, held + 2 * SIZE)
    pool.free(large)
    assert (pool.defragment(), pool.release_all()) == (0, 2 * SIZE)
    assert mappings(sim) == 4
    graph.close()
    assert all_ended(pool)
    again = pool.malloc(4 * SIZE, stream)
    assert (again, pool.stats().reserved) == (blocks[0], held)
    pool.free(again)


def test_idle_pieces_move_into_a_capture_and_then_stay(
    pool: Pool, device: Device, graphs: Graphs, stream: Stream
) -> None:
    with device.stream() as gone:
        blocks = pieces(pool, 8, gone)
        free(pool, blocks[::2])
    captured = Foreign(stream)
    with graphs.capture(stream) as graph:
        large = pool.malloc(4 * SIZE, captured)
        device.fill(large, 1, 4 * SIZE, stream=captured)
        pool.free(large, stream=captured)
    assert (pool.stats().remapped_bytes, pool.stats().reserved) == (4 * SIZE, 8 * SIZE)
    pool.release_all()
    assert (pool.stats().reserved, pool.defragment()) == (8 * SIZE, 0)
    graph.launch(stream)
    stream.synchronize()
    graph.close()
    assert all_ended(pool)
    assert pool.malloc(4 * SIZE, stream) == large
    free(pool, [large, *blocks[1::2]])


# Addresses


@pytest.mark.sim(data=False, checker=False, capacity="512MiB")
@pytest.mark.parametrize("steps_every", [100, None])
def test_addresses_left_behind_are_used_again(
    pool: Pool, device: Device, stream: Stream, steps_every: int | None
) -> None:
    """What moves in all is many times the addresses, which are four times the card."""
    card = device.memory_info().total
    chance = random.Random(0)
    live: dict[int, int] = {}
    in_use = 0
    lowest, highest = 1 << 62, 0
    for number in range(3000):
        size = 2 * MIB * chance.choice([1, 2, 3, 5, 8, 13, 21, 34, 55])
        while in_use + size > card * 7 // 8:
            address = chance.choice(list(live))
            pool.free(address)
            in_use -= live.pop(address)
        address = pool.malloc(size, stream)
        live[address] = size
        in_use += size
        lowest, highest = min(lowest, address), max(highest, address + size)
        if steps_every is not None and number % steps_every == 0:
            pool.step()
    assert highest - lowest <= 4 * card
    assert pool.stats().remapped_bytes > 7 * 4 * card
    assert pool.stats().gpu_wait_hits == 0
    free(pool, list(live))
