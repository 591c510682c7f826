"""Any sequence of pool calls against a simple model, with the checker watching."""

from __future__ import annotations

from dataclasses import dataclass

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from soak import rounds

from vramkit import Pool
from vramkit.driver import Device, Driver, OutOfMemoryError, Stream

from .graphs import RELAXED, Graph, Graphs
from .support import KIB, MIB, Foreign, eventually

LIMITS = [8 * MIB, 20 * MIB, 48 * MIB, None]
SIZES = st.one_of(
    st.integers(1, 5000),
    st.sampled_from([256, 257, 2048, 60 * KIB, 60 * KIB + 1, 65_536, 100_000, MIB, MIB + 1]),
    st.integers(2 * MIB - 300, 2 * MIB + 300),
    st.integers(3 * MIB, 12 * MIB),
)
STREAMS = st.integers(0, 2)
# Blocks and bytes that a thread keeps; where one is 0, the other has nothing to bound.
CACHED = [(0, 32 * MIB), (64, 0), *((blocks, n) for blocks in (1, 4, 64) for n in (MIB, 32 * MIB))]


@dataclass
class Block:
    address: int
    size: int
    stream: int  # index of the stream that may use it now
    closed: bool = False  # that stream is gone


class PoolMachine(RuleBasedStateMachine):
    driver: Driver
    blocks = Bundle("blocks")

    def __init__(self) -> None:
        super().__init__()
        self.live: list[Block] = []
        self.allocations = 0
        # What a graph may use, as long as it lives: nobody else gets it.
        self.graphs: list[tuple[Graph, set[tuple[int, int]]]] = []

    @initialize(limit=st.sampled_from(LIMITS))
    def open(self, limit: int | None) -> None:
        assert self.driver.sim is not None
        self.sim = self.driver.sim
        self.sim.reset(capacity="256MiB", data=False)
        self.device: Device = self.driver.device()
        self.most = limit
        self.pool = Pool(device=self.device, background=False, limit=limit, batch_alloc_count=4)
        self.captures = Graphs(self.driver)
        self.streams: list[Stream] = [self.device.stream() for _ in range(3)]

    # Blocks

    def overlaps_nothing(self, address: int, size: int) -> None:
        taken = {(block.address, block.size) for block in self.live}
        for _, blocks in self.graphs:
            taken |= blocks
        for start, length in taken:
            assert address + size <= start or start + length <= address

    def take(self, address: int, size: int, which: int) -> Block:
        assert address % 256 == 0
        self.overlaps_nothing(address, size)
        self.device.fill(address, 1, size, stream=self.streams[which])
        block = Block(address, size, which)
        self.live.append(block)
        self.allocations += 1
        return block

    @rule(target=blocks, size=SIZES, which=STREAMS)
    def malloc(self, size: int, which: int) -> Block | None:
        try:
            address = self.pool.malloc(size, self.streams[which])
        except OutOfMemoryError:
            return None
        return self.take(address, size, which)

    @rule(target=blocks, size=SIZES, which=STREAMS)
    def try_malloc(self, size: int, which: int) -> Block | None:
        before = self.sim.now()
        address = self.pool.try_malloc(size, self.streams[which])
        assert self.sim.now() - before < 0.01
        return None if address is None else self.take(address, size, which)

    def drop(self, block: Block | None) -> bool:
        if block is None:
            return False
        self.live.remove(block)
        return True

    @rule(block=consumes(blocks), with_size=st.booleans())
    def free(self, block: Block | None, with_size: bool) -> None:
        if self.drop(block):
            assert block is not None
            self.pool.free(block.address, block.size if with_size else None)

    @rule(block=consumes(blocks), which=STREAMS)
    def free_on_another_stream(self, block: Block | None, which: int) -> None:
        if self.drop(block):
            assert block is not None
            stream = self.streams[which]
            if block.closed:
                self.device.synchronize()
            else:
                stream.wait(self.streams[block.stream])
            self.device.fill(block.address, 2, block.size, stream=stream)
            self.pool.free(block.address, stream=stream)

    @rule(block=consumes(blocks))
    def free_twice(self, block: Block | None) -> None:
        if self.drop(block):
            assert block is not None
            self.pool.free(block.address)
            with pytest.raises(ValueError, match=r"freed twice|not of this pool"):
                self.pool.free(block.address)

    # Work

    @rule(which=STREAMS, milliseconds=st.sampled_from([1, 50, 2000]))
    def occupy(self, which: int, milliseconds: int) -> None:
        self.device.kernels.spin(milliseconds * 1_000_000, stream=self.streams[which])

    @rule(seconds=st.sampled_from([0.0001, 0.1, 5.0, 30.0]), steps=st.integers(0, 3))
    def advance(self, seconds: float, steps: int) -> None:
        """Time passes, and perhaps the pool does something with it."""
        self.sim.advance(seconds)
        for _ in range(steps):
            self.pool.step()

    # Graphs

    @rule(which=STREAMS, sizes=st.lists(SIZES, min_size=1, max_size=4), again=st.booleans())
    def capture(self, which: int, sizes: list[int], again: bool) -> None:
        """Blocks of a capture, freed in it, and perhaps asked for a second time."""
        stream = self.streams[which]
        blocks: set[tuple[int, int]] = set()
        with self.captures.capture(stream, RELAXED) as graph:
            for size in sizes * (1 + again):
                try:
                    address = self.pool.malloc(size, Foreign(stream))
                except OutOfMemoryError:
                    continue
                self.overlaps_nothing(address, size)
                self.device.fill(address, 3, size, stream=stream)
                self.pool.free(address)
                self.allocations += 1
                blocks.add((address, size))
        self.graphs.append((graph, blocks))

    @precondition(lambda self: self.graphs)
    @rule(which=STREAMS, chosen=st.integers(0, 20))
    def launch(self, which: int, chosen: int) -> None:
        graph, _ = self.graphs[chosen % len(self.graphs)]
        graph.launch(self.streams[which])

    @precondition(lambda self: self.graphs)
    @rule(chosen=st.integers(0, 20))
    def destroy(self, chosen: int) -> None:
        """With a launch under way, perhaps."""
        graph, _ = self.graphs.pop(chosen % len(self.graphs))
        graph.close()

    # The pool as a whole

    @rule(size=SIZES, count=st.integers(1, 5))
    def preallocate(self, size: int, count: int) -> None:
        try:
            self.pool.preallocate(size, count)
        except OutOfMemoryError:
            return
        stats = self.pool.stats()
        assert stats.idle >= size * count

    @rule()
    def defragment(self) -> None:
        before = self.pool.stats()
        moved = self.pool.defragment()
        after = self.pool.stats()
        assert after.reserved == before.reserved
        assert after.remapped_bytes - before.remapped_bytes == moved
        again = self.pool.defragment()
        # All that can move is one piece; what waited for its stream may be done by now.
        assert again == 0 or after.waiting > 0

    @rule()
    def trim(self) -> None:
        before = self.pool.stats().reserved
        assert before - self.pool.trim() == self.pool.stats().reserved
        assert self.pool.stats().cached == 0

    @rule()
    def release_all(self) -> None:
        self.pool.release_all()
        self.allocations = 0
        stats = self.pool.stats()
        assert stats.cached == 0
        if not self.live and not stats.captures:
            assert stats.reserved == 0

    @rule(
        cached=st.sampled_from(CACHED),
        shared=st.sampled_from([0, 3, 1024]),
        batch=st.sampled_from([1, 4, 16]),
        classes=st.sampled_from(["fine", "power_of_two"]),
        decay_ms=st.sampled_from([None, 1, 10_000]),
        threshold=st.sampled_from([0.0, 0.3]),
    )
    def configure(
        self,
        cached: tuple[int, int],
        shared: int,
        batch: int,
        classes: str,
        decay_ms: int | None,
        threshold: float,
    ) -> None:
        blocks, nbytes = cached
        self.pool.configure(
            thread_cache_max_blocks=blocks,
            global_cache_max_blocks=shared,
            batch_alloc_count=batch,
            cache_bytes=nbytes,
            size_classes=classes,
            decay_ms=decay_ms,
            defrag_threshold=threshold,
        )

    @rule(which=STREAMS)
    def new_stream(self, which: int) -> None:
        self.streams[which].close()
        self.streams[which] = self.device.stream()
        for block in self.live:
            if block.stream == which:
                block.closed = True

    # What always holds

    @precondition(lambda self: hasattr(self, "pool"))
    @invariant()
    def accounts_hold(self) -> None:
        assert self.pool.check_invariants() == ""
        stats = self.pool.stats()
        live = sum(block.size for block in self.live)
        assert stats.current_usage == live
        assert live <= stats.reserved <= stats.peak_reserved
        assert self.most is None or stats.peak_reserved <= self.most
        assert stats.cached + stats.waiting + stats.idle + live <= stats.reserved
        assert stats.fragmentation_bytes <= stats.cached + stats.waiting + stats.idle
        assert stats.allocation_count == self.allocations == stats.cache_hits + stats.cache_misses
        assert not self.sim.reports()

    def teardown(self) -> None:
        if not hasattr(self, "pool"):
            return
        for block in self.live:
            self.pool.free(block.address)
        self.device.synchronize()
        self.captures.close()
        assert eventually(lambda: not self.pool.step() and self.pool.stats().captures == 0)
        self.pool.release_all()
        assert self.pool.stats().reserved == 0
        assert not self.sim.reports()
        self.pool.close()
        for stream in self.streams:
            stream.close()
        left = {kind: n for kind, n in self.sim.live_objects().items() if n}
        assert left.keys() <= {"contexts", "modules"}


@pytest.mark.sim_only
def test_any_sequence_of_calls(driver: Driver) -> None:
    class Machine(PoolMachine):
        pass

    Machine.driver = driver
    run_state_machine_as_test(
        Machine, settings=settings(max_examples=rounds(80, 3000), stateful_step_count=50)
    )
