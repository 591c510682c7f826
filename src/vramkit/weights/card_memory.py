"""Memory of the card for groups, and for chunks that are staged on their way."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

from vramkit import _core
from vramkit.weights.layout import ALIGNMENT, Group, Layout
from vramkit.weights.packing import PackedChunk, Packing

if TYPE_CHECKING:
    from vramkit.driver import Device


class Chunk(NamedTuple):
    """A part of a group that is copied at once: where it is in the group, and what is copied of
    host memory for it. `staged`: to staging memory, and expanded from there to its place."""

    first_byte: int
    nbytes: int
    offset: int
    stored: int
    staged: bool
    exceptions: int = 0
    """Of packed weights."""


def packed_chunks(groups: Sequence[Group], packings: Sequence[Packing | None]) -> list[list[Chunk]]:
    """By group; none for one that travels as it is."""
    if not packings:
        return [[] for _ in groups]
    if len(packings) != len(groups):
        raise ValueError(f"there are {len(groups)} groups and {len(packings)} packings")
    for group, packing in zip(groups, packings, strict=True):
        if packing is not None and packing.plain_nbytes != group.nbytes:
            raise ValueError(
                f"group {group} has {group.nbytes} bytes, and its packing {packing.plain_nbytes}"
            )
    return [
        [] if packing is None else [_staged(each) for each in packing.chunks]
        for packing in packings
    ]


def _staged(chunk: PackedChunk) -> Chunk:
    first, nbytes = 2 * chunk.first, 2 * chunk.weights
    return Chunk(first, nbytes, chunk.offset, chunk.nbytes, chunk.packed, chunk.exceptions)


def staging_slot(chunks: Sequence[Sequence[Chunk]]) -> int:
    """Bytes of the largest chunk that is staged."""
    return max((each.stored for group in chunks for each in group if each.staged), default=0)


def sent_bytes(layout: Layout, chunks: Sequence[Sequence[Chunk]]) -> int:
    streamed = (n for n, resident in enumerate(layout.resident) if not resident)
    return sum(
        sum(each.stored for each in chunks[n]) if chunks[n] else layout.groups[n].nbytes
        for n in streamed
    )


def staging_memory(device: Device, slot: int, stack: ExitStack) -> tuple[int, int]:
    """The address of memory of the card for chunks under way, and the bytes of each slot."""
    if not slot:
        return 0, 0
    return stack.enter_context(device.alloc(_core.STAGING_SLOTS * slot)).address, slot


def decoding(device: Device, slot: int) -> tuple[int, int]:
    """The kernels that decode packed chunks."""
    if not slot:
        return 0, 0
    kernels = device.kernels
    return kernels.function("vk_unpack_bf16"), kernels.function("vk_patch_bf16")


def place(
    device: Device, layout: Layout, give_way: Collection[int], stack: ExitStack
) -> tuple[list[int], int]:
    """Device addresses of the groups and of the ring, in memory that the stack gives back; 0 for
    residents that give way, whose memory is not here."""
    flows = 0
    own: dict[int, int] = {}  # offsets of the other residents
    end = 0
    for number, group in enumerate(layout.groups):
        if layout.resident[number] and number not in give_way:
            own[number] = end
            end += -(-group.nbytes // ALIGNMENT) * ALIGNMENT
    stays = 0
    if end:
        granularity = device.granularity
        rounded = -(-end // granularity) * granularity
        stays = stack.enter_context(device.alloc(rounded)).address
    if nbytes := layout.ring_bytes:
        addresses = device.reserve(2 * nbytes)
        stack.enter_context(addresses)
        with device.create(nbytes) as memory:
            addresses.map(memory, 0)
            addresses.map(memory, nbytes)
        addresses.set_access()
        flows = addresses.address
    addresses_of = [
        stays + own[number] if number in own else 0 if resident else flows + layout.offsets[number]
        for number, resident in enumerate(layout.resident)
    ]
    return addresses_of, flows
