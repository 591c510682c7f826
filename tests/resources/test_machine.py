"""Any sequence of calls on any resource against a simple model, with the checker watching."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from soak import rounds

from vramkit.driver import Driver, OutOfMemoryError, Stream
from vramkit.resources import Buffer, Resource

from .makers import MAKERS, MIB, check_accounts, made

SIZES = st.one_of(
    st.integers(1, 5000),
    st.sampled_from([256, 257, 65_536, MIB, MIB + 1]),
    st.integers(2 * MIB - 300, 2 * MIB + 300),
    st.integers(3 * MIB, 20 * MIB),
)
STREAMS = st.integers(0, 2)
WHICH = st.integers(0, 1 << 16)


@dataclass
class Block:
    address: int
    size: int
    stream: int  # index of the stream of the allocation
    buffer: Buffer | None = None
    closed: bool = False  # that stream is gone


class ResourceMachine(RuleBasedStateMachine):
    driver: Driver
    name: str
    folder: Path

    @initialize()
    def open(self) -> None:
        assert self.driver.sim is not None
        self.sim = self.driver.sim
        self.sim.reset(capacity="256MiB", data=False)
        self.device = self.driver.device()
        self.stack = ExitStack()
        self.resource: Resource = self.stack.enter_context(
            made(self.name, self.device, self.folder)
        )
        self.streams: list[Stream] = [self.device.stream() for _ in range(3)]
        self.live: list[Block] = []

    def take(self, block: Block) -> None:
        address, size = block.address, block.size
        assert address % 256 == 0
        for other in self.live:
            assert address + size <= other.address or other.address + other.size <= address
        self.device.fill(address, 1, size, stream=self.streams[block.stream])
        self.live.append(block)

    def drop(self, which: int) -> Block:
        return self.live.pop(which % len(self.live))

    @rule(size=SIZES, which=STREAMS)
    def malloc(self, size: int, which: int) -> None:
        try:
            address = self.resource.malloc(size, self.streams[which])
        except OutOfMemoryError:
            return
        self.take(Block(address, size, which))

    @rule(size=SIZES, which=STREAMS)
    def allocate(self, size: int, which: int) -> None:
        try:
            buffer = self.resource.allocate(size, stream=self.streams[which])
        except OutOfMemoryError:
            return
        self.take(Block(buffer.address, size, which, buffer))

    @precondition(lambda self: self.live)
    @rule(which=WHICH, with_size=st.booleans())
    def free(self, which: int, with_size: bool) -> None:
        block = self.drop(which)
        if block.buffer is None:
            self.resource.free(block.address, block.size if with_size else None)
        elif with_size:
            block.buffer.close()

    @precondition(lambda self: self.live)
    @rule(which=WHICH, stream=STREAMS)
    def free_on_another_stream(self, which: int, stream: int) -> None:
        block = self.drop(which)
        other = self.streams[stream]
        if block.closed:
            self.device.synchronize()
        else:
            other.wait(self.streams[block.stream])
        self.device.fill(block.address, 2, block.size, stream=other)
        if block.buffer is None:
            self.resource.free(block.address, stream=other)
        else:
            block.buffer.close(other)

    @precondition(lambda self: any(block.buffer is None for block in self.live))
    @rule()
    def free_twice(self) -> None:
        block = next(block for block in self.live if block.buffer is None)
        self.live.remove(block)
        self.resource.free(block.address)
        with pytest.raises(ValueError, match=r"freed twice|not of this pool"):
            self.resource.free(block.address)

    @rule(which=STREAMS, milliseconds=st.sampled_from([1, 2000]))
    def occupy(self, which: int, milliseconds: int) -> None:
        self.device.kernels.spin(milliseconds * 1_000_000, stream=self.streams[which])

    @rule(seconds=st.sampled_from([0.0001, 5.0]))
    def advance(self, seconds: float) -> None:
        self.sim.advance(seconds)

    @rule(which=STREAMS)
    def new_stream(self, which: int) -> None:
        self.streams[which].close()
        self.streams[which] = self.device.stream()
        for block in self.live:
            if block.stream == which:
                block.closed = True

    @precondition(lambda self: hasattr(self, "live"))
    @invariant()
    def accounts_hold(self) -> None:
        check_accounts(self.resource, [block.size for block in self.live])
        assert not self.sim.reports()

    def teardown(self) -> None:
        if not hasattr(self, "live"):
            return
        while self.live:
            self.free(0, True)
        self.stack.close()
        for stream in self.streams:
            stream.close()
        assert not self.sim.reports()
        left = {kind: n for kind, n in self.sim.live_objects().items() if n}
        assert left.keys() <= {"contexts", "modules"}


@pytest.mark.sim_only
@pytest.mark.parametrize("name", MAKERS)
def test_any_sequence_of_calls(driver: Driver, name: str, tmp_path: Path) -> None:
    class Machine(ResourceMachine):
        pass

    Machine.driver, Machine.name, Machine.folder = driver, name, tmp_path
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=rounds(12, 400),
            stateful_step_count=40,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
