"""Memory of the card for groups, and for packed chunks on their way."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from vramkit import _core
from vramkit.weights.layout import ALIGNMENT, Group, Layout
from vramkit.weights.packing import PackedChunk, Packing

if TYPE_CHECKING:
    from vramkit.driver import Device


def packed_chunks(
    groups: Sequence[Group], packings: Sequence[Packing | None]
) -> list[list[PackedChunk]]:
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
    return [[] if packing is None else list(packing.chunks) for packing in packings]


def staging_slot(chunks: Sequence[Sequence[PackedChunk]]) -> int:
    """Bytes of the largest packed chunk."""
    return max((each.nbytes for packed in chunks for each in packed if each.packed), default=0)


def sent_bytes(layout: Layout, chunks: Sequence[Sequence[PackedChunk]]) -> int:
    streamed = (n for n, resident in enumerate(layout.resident) if not resident)
    return sum(
        sum(each.nbytes for each in chunks[n]) if chunks[n] else layout.groups[n].nbytes
        for n in streamed
    )


def decoding(device: Device, slot: int, stack: ExitStack) -> tuple[int, int, int, int]:
    """The kernels that decode packed chunks, and memory of the card for those under way."""
    if not slot:
        return 0, 0, 0, 0
    staging = stack.enter_context(device.alloc(_core.STAGING_SLOTS * slot))
    kernels = device.kernels
    return (
        kernels.function("vk_unpack_bf16"),
        kernels.function("vk_patch_bf16"),
        staging.address,
        slot,
    )


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
