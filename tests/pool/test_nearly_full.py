"""A card that is nearly full: what is free serves, and an error says why it does not."""

from __future__ import annotations

import random

import pytest

from vramkit import Pool
from vramkit.driver import Device, OutOfMemoryError, Stream

from .support import MIB

pytestmark = pytest.mark.sim_only

ARRAYS = 20
IN_USE = 450 * MIB


def name(stream: Stream) -> str:
    """As errors have it: repr() is "<Stream 3 ...>"."""
    return " ".join(repr(stream).strip("<>").split()[:2]).lower()


@pytest.mark.sim(data=False, checker=False, capacity="512MiB")
def test_free_memory_that_lies_alone_does_not_use_up_the_addresses(
    pool: Pool, streams: list[Stream]
) -> None:
    """Arrays are appended to, each time a copy. Free pieces come to lie between blocks, until no
    hole in the addresses is large enough for the next one, though two fifths of the card are free.
    """
    chance, stream = random.Random(1), streams[0]
    sizes = [MIB] * ARRAYS
    blocks = [pool.malloc(size, stream) for size in sizes]
    for _ in range(2500):
        index = chance.randrange(ARRAYS)
        size = int(sizes[index] * 1.05) + chance.randrange(1000)
        if sum(sizes) + size > IN_USE:
            size = MIB
        grown = pool.malloc(size, stream)
        pool.free(blocks[index])
        blocks[index], sizes[index] = grown, size
    for block in blocks:
        pool.free(block)


@pytest.mark.sim(data=False, checker=False, capacity="64MiB")
def test_an_error_says_that_free_memory_cannot_move(
    pool: Pool, device: Device, streams: list[Stream]
) -> None:
    stream = streams[0]
    blocks = [pool.malloc(MIB, stream) for _ in range(62)]
    for address in blocks[::2]:
        pool.free(address)
    device.kernels.spin(10**9, stream=stream)  # malloc waits for it: it is no reason
    with pytest.raises(OutOfMemoryError, match="As much is free, but not in one place") as caught:
        pool.malloc(8 * MIB, stream)
    assert "Work under way" not in str(caught.value)
    for address in blocks[1::2]:
        pool.free(address)


@pytest.mark.sim(capacity="64MiB")
def test_an_error_names_the_stream_that_has_most_in_use_though_others_free_its_blocks(
    pool: Pool, streams: list[Stream]
) -> None:
    makes, takes, _ = streams
    for _ in range(30):
        address = pool.malloc(4 * MIB, makes)
        takes.wait(makes)
        pool.free(address, stream=takes)
    few, many = pool.malloc(4 * MIB, makes), pool.malloc(8 * MIB, takes)
    with pytest.raises(OutOfMemoryError) as caught:
        pool.malloc(60 * MIB, makes)
    assert f"Most of what is in use is of {name(takes)}: 8 MiB." in str(caught.value)
    pool.free(few)
    pool.free(many)


@pytest.mark.sim(capacity="64MiB")
def test_an_error_knows_blocks_of_streams_that_have_ended(pool: Pool, device: Device) -> None:
    with device.stream() as stream:
        address = pool.malloc(8 * MIB, stream)
    with pytest.raises(OutOfMemoryError, match="is of streams that have ended: 8 MiB"):
        pool.malloc(60 * MIB)
    pool.free(address)
