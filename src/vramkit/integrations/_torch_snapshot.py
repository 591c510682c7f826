"""A pool's snapshot in the format of torch.cuda.memory_snapshot(), for PyTorch's own viewers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vramkit.pool.snapshot import Block, Extent, Snapshot


def segments_of(snapshot: Snapshot, device: int) -> list[dict[str, Any]]:
    """One segment for each extent, with blocks that fill it: PyTorch's viewers require that."""
    blocks = iter(snapshot.blocks)
    block = next(blocks, None)
    segments = []
    for extent in snapshot.extents:
        inside = []
        while block is not None and block.address < extent.address + extent.bytes:
            inside.append(block)
            block = next(blocks, None)
        segments.append(_segment(snapshot, extent, inside, device))
    return segments


def _segment(
    snapshot: Snapshot, extent: Extent, blocks: list[Block], device: int
) -> dict[str, Any]:
    live = [block for block in blocks if block.state == "live"]
    in_use = sum(block.bytes for block in live)
    return {
        "device": device,
        "address": extent.address,
        "total_size": extent.bytes,
        "allocated_size": in_use,
        "active_size": in_use,
        "requested_size": sum(block.asked for block in live),
        "stream": _stream(snapshot, blocks),
        "segment_type": "large",  # small blocks lie in the same memory
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": _without_gaps(extent, live),
    }


def _stream(snapshot: Snapshot, blocks: list[Block]) -> int:
    """The stream that all blocks are of; 0, PyTorch's default stream, for several or none."""
    numbers = {block.stream for block in blocks if block.stream >= 0}
    return snapshot.streams[numbers.pop()].id if len(numbers) == 1 else 0


def _without_gaps(extent: Extent, live: list[Block]) -> list[dict[str, Any]]:
    """Free neighbours, and memory that is in no block, are one inactive block."""
    filled = []
    at, end = extent.address, extent.address + extent.bytes
    for block in live:
        if block.address > at:
            filled.append(_block(at, block.address - at, 0, "inactive"))
        filled.append(_block(block.address, block.bytes, block.asked, "active_allocated"))
        at = block.address + block.bytes
    if at < end:
        filled.append(_block(at, end - at, 0, "inactive"))
    return filled


def _block(address: int, size: int, requested: int, state: str) -> dict[str, Any]:
    return {
        "address": address,
        "size": size,
        "requested_size": requested,
        "state": state,
        "frames": [],
    }
