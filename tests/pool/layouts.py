"""Memory of pools made by hand, in the form that the engine gives it."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import msgspec

from vramkit.pool import Snapshot

MIB = 1 << 20
BASE = 0x7F40_0000_0000


def small() -> dict[str, Any]:
    """One of everything.

    Extents: a slab of 8 KiB (4 live of 2 streams, 2 cached, 1 waiting, 1 idle), a live block of
    6 MiB, a hole, 4 MiB idle in two pieces, and a cached block of 2 MiB.
    """
    kib8 = 8192
    states = ["live"] * 4 + ["cached"] * 2 + ["waiting", "idle"]
    streams = [0, 0, 0, 1, 0, 1, 1, -1]
    blocks = [
        block(BASE + index * kib8, kib8, state, stream, 8000)
        for index, (state, stream) in enumerate(zip(states, streams, strict=True))
    ]
    blocks.append(block(BASE + 2 * MIB, 6 * MIB, "live", 1, 5 * MIB))
    blocks.append(block(BASE + 68 * MIB, 2 * MIB, "cached", 2))
    return {
        "extents": [
            extent(BASE, [2 * MIB]),
            extent(BASE + 2 * MIB, [6 * MIB]),
            extent(BASE + 64 * MIB, [2 * MIB, 2 * MIB]),
            extent(BASE + 68 * MIB, [2 * MIB]),
        ],
        "slabs": [{"address": BASE, "bytes": 2 * MIB, "block_bytes": kib8, "count": 8}],
        "blocks": blocks,
        "streams": [
            {"id": 7, "kind": "stream", "ended": False},
            {"id": 9, "kind": "stream", "ended": True},
            {"id": 12, "kind": "capture", "ended": False},
        ],
    }


def large(nbytes: int = 141_000_000_000, count: int = 50_000) -> dict[str, Any]:
    """A full card: slabs, larger blocks in every state, idle stretches, holes, 20 streams."""
    chance = random.Random(0)
    extents: list[dict[str, Any]] = []
    slabs: list[dict[str, Any]] = []
    blocks: list[dict[str, Any]] = []
    sizes = [256, 1536, 4096, 20480, 65536, 163840, 524288, 1 << 20]
    at, held = BASE, 0
    small_blocks = count - nbytes // (11 * MIB)
    while held < nbytes - 70 * MIB:
        if len(blocks) < small_blocks:
            size = chance.choice(sizes)
            per_slab = min(2 * MIB // size, 64)
            extents.append(extent(at, [2 * MIB]))
            slabs.append({"address": at, "bytes": 2 * MIB, "block_bytes": size, "count": per_slab})
            blocks += [_any(chance, at + index * size, size) for index in range(per_slab)]
            step = 2 * MIB
        elif chance.random() < 0.08:
            pieces = [2 * MIB * chance.randint(1, 6) for _ in range(chance.randint(1, 4))]
            extents.append(extent(at, pieces))
            step = sum(pieces)
        else:
            step = 2 * MIB * chance.choice([1, 1, 1, 2, 2, 3, 4, 6, 8, 16])
            extents.append(extent(at, [step]))
            blocks.append(_any(chance, at, step))
        held += step
        at += step + (512 * MIB if chance.random() < 0.002 else 0)
    streams = [{"id": 5 + index, "kind": "stream", "ended": False} for index in range(20)]
    return {"extents": extents, "slabs": slabs, "blocks": blocks, "streams": streams}


def snapshot(
    layout: dict[str, Any], stacks: dict[int, list[str]] | None = None, fragmented: int = 0
) -> Snapshot:
    return msgspec.convert(
        {
            "time": datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC),
            "device": "a card",
            "driver": "simulated GPU, profile h200",
            "simulated": "h200",
            "stats": {"current_usage": 4 * 8000 + 5 * MIB, "fragmentation_bytes": fragmented},
            **layout,
            "stacks": stacks or {},
        },
        Snapshot,
    )


def extent(address: int, pieces: list[int]) -> dict[str, Any]:
    return {"address": address, "bytes": sum(pieces), "pieces": pieces}


def block(address: int, nbytes: int, state: str, stream: int, asked: int = 0) -> dict[str, Any]:
    live = state == "live"
    return {
        "address": address,
        "bytes": nbytes,
        "asked": asked if live else 0,
        "state": state,
        "stream": stream,
    }


def _any(chance: random.Random, address: int, nbytes: int) -> dict[str, Any]:
    [state] = chance.choices(["live", "cached", "waiting", "idle"], [12, 2, 2, 1])
    stream = -1 if state == "idle" else min(int(chance.expovariate(0.25)), 19)
    return block(address, nbytes, state, stream, nbytes - nbytes // 16)
