"""Small blocks get the room that is there, also if a whole batch of their size has none."""

from __future__ import annotations

import pytest

from vramkit import Pool
from vramkit.driver import Device, OutOfMemoryError, Stream

from .support import KIB, MIB

pytestmark = [pytest.mark.sim_only, pytest.mark.sim(data=False, checker=False)]

# Sizes of which a whole batch is as large as a page.
BATCHED = [256 * KIB, 512 * KIB, MIB]


def take_until_full(pool: Pool, size: int, stream: Stream) -> list[int]:
    taken = []
    try:
        while True:
            taken.append(pool.malloc(size, stream))
    except OutOfMemoryError:
        return taken


def free_all(pool: Pool, blocks: list[int]) -> None:
    for address in blocks:
        pool.free(address)


@pytest.mark.parametrize("size", [*BATCHED, 900 * KIB])
def test_a_page_with_one_byte_in_use_serves_what_fits_beside_it(device: Device, size: int) -> None:
    with device.stream() as stream, Pool(device=device, background=False, limit=2 * MIB) as pool:
        blocks = [pool.malloc(1, stream)]
        try:
            blocks.append(pool.malloc(size, stream))
        finally:
            free_all(pool, blocks)


@pytest.mark.parametrize("size", [*BATCHED, 480 * KIB, 900 * KIB])
def test_small_blocks_in_every_page_leave_room_for_larger_ones(device: Device, size: int) -> None:
    limit = 32 * MIB
    with device.stream() as stream, Pool(device=device, background=False, limit=limit) as pool:
        blocks = take_until_full(pool, 256, stream)
        kept = list({address // (2 * MIB): address for address in blocks}.values())
        free_all(pool, list(set(blocks) - set(kept)))
        pool.release_all()
        assert pool.stats().current_usage == 256 * len(kept)
        assert len(kept) == limit // (2 * MIB)
        try:
            kept.append(pool.malloc(size, stream))
        finally:
            free_all(pool, kept)


def test_a_live_block_in_sixteen_leaves_the_others_for_twice_the_size(device: Device) -> None:
    """60 of 64 MiB are free, in pieces of 15 blocks: a plain best fit serves 7 in each, 224."""
    with device.stream() as stream, Pool(device=device, background=False, limit=64 * MIB) as pool:
        blocks = sorted(take_until_full(pool, 128 * KIB, stream))
        assert len(blocks) * 128 * KIB == 64 * MIB
        kept = blocks[::16]
        free_all(pool, list(set(blocks) - set(kept)))
        larger = take_until_full(pool, 256 * KIB, stream)
        free_all(pool, kept + larger)
        assert len(larger) >= 200
