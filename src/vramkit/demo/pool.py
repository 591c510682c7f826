"""Chapter: a pool that costs nothing when warm, keeps the order, and serves from scattered memory.

One function a part, each from the card to blocks and facts; what the chapter shows is their list.
"""

from __future__ import annotations

import random
from contextlib import ExitStack
from typing import TYPE_CHECKING

from vramkit.demo.chapter import Chapter, ChapterResult, Context
from vramkit.pool import Pool
from vramkit.pool.map import figures, map_block
from vramkit.pool.sums import by_state
from vramkit.report.blocks import Block, Callout, Code, Figure, Figures, Text, Tone
from vramkit.report.units import bytes_text

if TYPE_CHECKING:
    from vramkit.driver import Device, Simulator, Stream

MIB = 1 << 20
PAIRS = 10_000
BUSY_NS = 20_000_000
BLOCKS = [(2 + 2 * (index % 4)) * MIB for index in range(48)]
MIXED = 900
ROUNDS = 3
BATCHES = (8, 2, 12, 4, 16, 6, 1, 10)
LAYERS = 12
SHOWN = """\
address = pool.malloc(4096, stream)
device.fill(address, 0, 4096, stream=stream)
pool.free(address)           # at this point of the stream; no wait
"""


def run(context: Context) -> ChapterResult:
    blocks: list[Block] = []
    facts: dict[str, object] = {}
    for part in (_pairs, _order, _changing, _scattered, _mixed):
        shown, found = part(context)
        blocks += shown
        facts |= found
    return ChapterResult(blocks, facts)


Part = tuple[list[Block], dict[str, object]]


def _pairs(context: Context) -> Part:
    """Warm malloc and free, counted: by the simulated driver itself where it is one."""
    sim = context.driver.sim
    # The calls of a background thread would be counted too.
    with (
        Pool(device=context.device, background=False) as pool,
        context.device.stream() as stream,
    ):
        pool.free(pool.malloc(4096, stream))
        pool.reset_stats()
        calls = _driver_calls(sim)
        for _ in range(PAIRS):
            pool.free(pool.malloc(4096, stream))
        calls = _driver_calls(sim) - calls
        stats = pool.stats()
    cached: Tone = "good" if stats.cache_hits == stats.allocation_count else "plain"
    items = [
        Figure(f"{stats.allocation_count:,}", "pairs of malloc and free"),
        Figure(f"{stats.cache_hits:,}", "from the thread's own cache", cached),
        Figure(f"{stats.device_growths + stats.events_recorded}", "growths and events"),
    ]
    if sim is not None:
        items.append(Figure(f"{calls:,}", "driver calls", "bad" if calls else "good"))
    facts: dict[str, object] = {
        "pairs": stats.allocation_count,
        "pairs_from_cache": stats.cache_hits,
        "pairs_driver_calls": None if sim is None else calls,
    }
    text = Text(
        "A pool takes memory from the driver once and hands it out in the order of streams. What "
        "a thread frees and asks for again on one stream comes from a cache of that thread: no "
        "driver call, no lock, no size to guess beforehand."
    )
    return [text, Code("Malloc and free", SHOWN), Figures(items)], facts


def _driver_calls(sim: Simulator | None) -> int:
    """Without what the pool tells the checker, which is no call of the driver."""
    counts = {} if sim is None else sim.call_counts()
    return sum(count for call, count in counts.items() if call.startswith("cu"))


def _order(context: Context) -> Part:
    """A block freed behind work that still runs, wanted by another stream at once and later."""
    device = context.device
    size = 4 * MIB
    with (
        device.stream() as first,
        device.stream() as second,
        Pool(device=device, thread_cache_max_blocks=0) as pool,
    ):
        address = pool.malloc(size, first)
        device.kernels.spin(BUSY_NS, stream=first)
        device.fill(address, 1, size, stream=first)
        pool.free(address)
        same = pool.malloc(size, first)
        pool.free(same)
        early = pool.malloc(size, second)
        first.synchronize()
        late = pool.malloc(size, second)
        for block in (early, late):
            pool.free(block)
        device.synchronize()
    facts: dict[str, object] = {
        "same_stream_reused_at_once": same == address,
        "other_stream_reused_early": early == address,
        "other_stream_reused_after_event": late == address,
    }
    kept = same == late == address != early
    tone: Tone = "good" if kept else "bad"
    title = "The order was kept" if kept else "An unexpected block was handed out"
    return [
        Text(
            f"A block of {bytes_text(size)} is freed while its stream has 20 ms of work left. The "
            "same stream may have it at once: what it does next comes after. Another stream may "
            "not, until the event recorded behind that work has completed."
        ),
        Callout(
            tone,
            title,
            f"Same stream, at once: {_which(same, address)}. "
            f"Other stream, while the work runs: {_which(early, address)}. "
            f"Other stream, after it: {_which(late, address)}.",
        ),
    ], facts


def _which(got: int, address: int) -> str:
    return "the same block" if got == address else "another block"


def _changing(context: Context) -> Part:
    """Sizes of training with changing batches: what is in use, and what is held for it."""
    with Pool(device=context.device) as pool, context.device.stream() as stream:
        for batch in ROUNDS * BATCHES:
            _training_step(pool, stream, batch * MIB // 4)
        stats = pool.stats()
    facts: dict[str, object] = {
        "changing_in_use": stats.peak_usage,
        "changing_held": stats.peak_reserved,
        "changing_moved": stats.remapped_bytes,
    }
    return [
        Text(
            f"Shapes that change ask for other sizes at every step: here {stats.allocation_count:,}"
            f" allocations of {len(BATCHES)} batch sizes. Freed neighbours are joined, and memory "
            "that is free as a whole is mapped where it is needed before new memory is taken."
        ),
        Figures(
            [
                Figure(bytes_text(stats.peak_usage), "in use, at most"),
                Figure(bytes_text(stats.peak_reserved), "held for it, at most"),
                Figure(f"{stats.peak_reserved / stats.peak_usage:.2f}", "held / in use"),
                Figure(bytes_text(stats.remapped_bytes), "mapped elsewhere for that"),
            ]
        ),
    ], facts


def _training_step(pool: Pool, stream: Stream, unit: int) -> None:
    kept: list[int] = []
    for layer in range(LAYERS):
        kept += [pool.malloc(unit * part // 2, stream) for part in (3, 1, 4)]
        pool.free(pool.malloc(unit * (1 + layer % 3), stream))
    while kept:
        gradient = pool.malloc(2 * unit, stream)
        pool.free(kept.pop())
        pool.free(gradient)


def _scattered(context: Context) -> Part:
    """Every second block freed, then one request of nine tenths of what is free."""
    device = context.device
    limit = sum(BLOCKS)
    with Pool(device=device, limit=limit) as pool:
        held = [pool.malloc(size) for size in BLOCKS]
        for address in held[::2]:
            pool.free(address)
        before = pool.snapshot()
        free = limit - by_state(before).live
        request = free * 9 // 10
        held = held[1::2]
        held.append(pool.malloc(request))
        after = pool.snapshot()
        reserved = pool.stats().reserved
        for address in held:
            pool.free(address)
        device.synchronize()
        returned = pool.release_all()
        left = pool.stats().reserved
    facts: dict[str, object] = {
        "limit": limit,
        "scattered_free": free,
        "scattered_largest": max(BLOCKS[::2]),
        "scattered_request": request,
        "scattered_reserved": reserved,
        "returned": returned,
        "reserved_at_the_end": left,
    }
    return [
        Text(
            f"A pool that may take {bytes_text(limit)} is filled with blocks of 2 to 8 MiB, and "
            f"every second one is freed: {bytes_text(free)} are free, and no piece is larger than "
            f"{bytes_text(max(BLOCKS[::2]))}. Free pieces are mapped side by side at a new "
            f"address, without a copy, so one request of {bytes_text(request)} is served."
        ),
        map_block(before, "Every second block freed"),
        map_block(after, f"The same pool with one block of {bytes_text(request)}"),
        Figures(
            [
                Figure(bytes_text(request), "asked for"),
                Figure(bytes_text(reserved), f"held, of {bytes_text(limit)} allowed"),
                Figure(bytes_text(returned), "released to the driver once all was freed"),
                Figure(bytes_text(left), "held after that"),
            ]
        ),
    ], facts


def _mixed(context: Context) -> Part:
    """Blocks of all sizes on three streams, for a picture of everything at once."""
    with ExitStack() as stack:
        pool = stack.enter_context(Pool(device=context.device))
        _fill(context.device, pool, stack)
        taken = pool.snapshot()
    sums = by_state(taken)
    facts: dict[str, object] = {
        "map_held": sums.total,
        "map_live": sums.live,
        "map_blocks": sums.blocks,
    }
    return [
        Text(
            f"`pool.snapshot()` says where memory is: here after {MIXED:,} allocations of 256 "
            "bytes to 4 MiB on three streams, of which two thirds were freed. "
            '`snapshot.save("pool.html")` makes a page of it, with sums by class, stream and stack.'
        ),
        figures(taken),
        map_block(taken, "Blocks of all sizes on three streams"),
    ], facts


def _fill(device: Device, pool: Pool, stack: ExitStack) -> None:
    """Leaves a third of the blocks in use until the stack unwinds, before the pool closes."""
    chance = random.Random(2)
    streams = [stack.enter_context(device.stream()) for _ in range(3)]
    blocks = [
        pool.malloc(int(2 ** chance.uniform(8, 22)), chance.choice(streams)) for _ in range(MIXED)
    ]
    chance.shuffle(blocks)
    for address in blocks[MIXED // 3 :]:
        pool.free(address)
    for address in blocks[: MIXED // 3]:
        stack.callback(pool.free, address)


CHAPTER = Chapter("A pool, and where its memory is", run)
