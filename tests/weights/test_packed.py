"""Packed groups: copied in three quarters of the bytes, decoded on the card, in stream order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np
import pytest

from vramkit.driver import DriverError
from vramkit.weights import BudgetError, Group, Packing, WeightManager

if TYPE_CHECKING:
    from vramkit.driver import Device, Driver, PinnedMemory, Stream

MIB = 1 << 20
CHUNK = 64 << 10  # weights


def gaussian(nbytes: int, seed: int) -> np.ndarray:
    """bf16 as 16-bit patterns."""
    values = np.random.default_rng(seed).normal(0, 0.02, nbytes // 2).astype(np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


class Packed:
    """Layers of packed weights in pinned memory, every third one as it is."""

    def __init__(self, device: Device, stack: ExitStack, layers: int, nbytes: int) -> None:
        self.device = device
        self.groups = [Group(layer, "all", nbytes) for layer in range(layers)]
        self.weights = [gaussian(nbytes, layer) for layer in range(layers)]
        self.packings: list[Packing | None] = []
        self.sources = []
        for number, weights in enumerate(self.weights):
            packing = None if number % 3 == 2 else Packing(weights, chunk_weights=CHUNK, threads=1)
            stored = nbytes if packing is None else packing.nbytes
            host: PinnedMemory = stack.enter_context(device.alloc_pinned(stored))
            with host.view() as view:
                if packing is None:
                    view[:] = weights.tobytes()
                else:
                    packing.pack(weights, view, threads=1)
            self.packings.append(packing)
            self.sources.append(host.address)

    @property
    def stored(self) -> int:
        return sum(
            group.nbytes if packing is None else packing.nbytes
            for group, packing in zip(self.groups, self.packings, strict=True)
        )

    def manager(self, budget: int, **settings: object) -> WeightManager:
        return WeightManager(
            self.device,
            self.groups,
            self.sources,
            budget=budget,
            packings=self.packings,
            **settings,  # type: ignore[arg-type]
        )

    def expected(self, number: int) -> int:
        return int(self.weights[number].view(np.uint32).sum(dtype=np.uint64))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def read(device: Device, address: int, nbytes: int, stream: Stream) -> bytes:
    out = bytearray(nbytes)
    stream.synchronize()
    device.copy(out, address, nbytes)
    return bytes(out)


def test_the_card_gets_the_weights(driver: Driver, stack: ExitStack) -> None:
    device = driver.device()
    model = Packed(device, stack, 9, 1 * MIB)
    stream, total = stack.enter_context(device.stream()), stack.enter_context(device.alloc(8))
    with model.manager(3 * MIB) as manager:
        assert not any(manager.layout.resident)
        for _ in range(3):
            manager.begin_pass()
            for number, group in enumerate(model.groups):
                device.fill(total, 0, stream=stream)
                with manager.using(group.layer, "all", compute_stream=stream) as address:
                    device.kernels.checksum(address, group.nbytes // 4, total, stream=stream)
                result = read(device, total.address, 8, stream)
                assert int.from_bytes(result, "little") == model.expected(number)
        before = manager.stats()
        manager.begin_pass()
        for group in model.groups:
            with manager.using(group.layer, "all", compute_stream=stream):
                pass
        stream.synchronize()
        after = manager.stats()
        assert after.copies - before.copies == 9
        assert after.copied_bytes - before.copied_bytes == model.stored < 9 * MIB * 0.85


@pytest.mark.sim_only
def test_orders_out_of_the_schedule(driver: Driver, stack: ExitStack) -> None:
    """Urgent copies decode in streams and slots of their own; the checker is silent."""
    device = driver.device()
    model = Packed(device, stack, 7, 1 * MIB)
    streams = [stack.enter_context(device.stream()) for _ in range(2)]
    totals = [stack.enter_context(device.alloc(8)) for _ in streams]
    random = np.random.default_rng(0)
    with model.manager(3 * MIB) as manager:
        for step in range(120):
            number = int(random.integers(7))
            stream, total = streams[step % 2], totals[step % 2]
            if random.integers(3) == 0:
                other = int(random.integers(7))
                priority = "high" if random.integers(2) else "normal"
                manager.prefetch_group_async(other, "all", priority=priority)  # type: ignore[arg-type]
            device.fill(total, 0, stream=stream)
            with manager.using(number, "all", compute_stream=stream) as address:
                device.kernels.checksum(address, MIB // 4, total, stream=stream)
            if random.integers(4) == 0:
                result = read(device, total.address, 8, stream)
                assert int.from_bytes(result, "little") == model.expected(number)


@pytest.mark.sim_only
def test_a_steady_pass_makes_nothing_and_waits_for_nothing(
    driver: Driver, stack: ExitStack
) -> None:
    assert driver.sim is not None
    device = driver.device()
    model = Packed(device, stack, 6, 1 * MIB)
    stream = stack.enter_context(device.stream())
    with model.manager(3 * MIB) as manager:
        for turn in range(4):
            if turn == 3:
                driver.sim.reset_call_counts()
            manager.begin_pass()
            for group in model.groups:
                with manager.using(group.layer, "all", compute_stream=stream):
                    pass
        calls = driver.sim.call_counts()
    chunks = sum(len(packing.chunks) for packing in model.packings if packing is not None)
    patched = sum(
        chunk.exceptions > 0
        for packing in model.packings
        if packing is not None
        for chunk in packing.chunks
    )
    assert chunks == 4 * 8
    assert calls["cuMemcpyHtoDAsync_v2"] == chunks + 2
    assert calls["cuLaunchKernel"] == chunks + patched
    others = ("Synchronize", "Create", "Destroy", "Alloc", "Free", "Query")
    assert not [name for name in calls if any(each in name for each in others)]


@pytest.mark.parametrize("call", ["cuMemcpyHtoDAsync*", "cuLaunchKernel", "cuEventRecord"])
@pytest.mark.sim_only
def test_failures_on_the_way(driver: Driver, stack: ExitStack, call: str) -> None:
    assert driver.sim is not None
    device = driver.device()
    model = Packed(device, stack, 6, 1 * MIB)
    stream, total = stack.enter_context(device.stream()), stack.enter_context(device.alloc(8))
    failed = 0
    with model.manager(3 * MIB) as manager:
        for step in range(48):
            number = step % 6
            if step % 4 == 0:
                driver.sim.inject(call, nth=1 + step % 7, code=999)
            try:
                device.fill(total, 0, stream=stream)
                with manager.using(number, "all", compute_stream=stream) as address:
                    device.kernels.checksum(address, MIB // 4, total, stream=stream)
            except DriverError:
                failed += 1
                driver.sim.clear_faults()
                if manager._uses.count(number):
                    manager.release(number, "all")
                continue
            driver.sim.clear_faults()
            result = read(device, total.address, 8, stream)
            assert int.from_bytes(result, "little") == model.expected(number)
    assert failed > 0


@pytest.mark.sim_only
def test_a_pass_takes_less_time_than_its_plain_bytes(driver: Driver, stack: ExitStack) -> None:
    """Bound by the link: what the packed bytes take, and decoding beside it."""
    assert driver.sim is not None
    device = driver.device()
    nbytes = 8 * MIB
    weights = gaussian(nbytes, 1)
    packing = Packing(weights, chunk_weights=1 << 20, threads=1)
    host = stack.enter_context(device.alloc_pinned(packing.nbytes))
    with host.view() as view:
        packing.pack(weights, view, threads=1)
    stream = stack.enter_context(device.stream())
    groups = [Group(layer, "all", nbytes) for layer in range(12)]
    with WeightManager(
        device, groups, [host.address] * 12, budget=24 * MIB, packings=[packing] * 12
    ) as manager:
        assert manager.staging_bytes + manager.layout.device_bytes <= 24 * MIB
        times = []
        for _ in range(4):
            start = driver.sim.now()
            manager.begin_pass()
            for group in groups:
                with manager.using(group.layer, "all", compute_stream=stream):
                    device.kernels.spin(1000, stream=stream)
            stream.synchronize()
            times.append(driver.sim.now() - start)
    chunks = 12 * len(packing.chunks)
    bound = 12 * packing.nbytes / 55.4e9 + chunks * 2.6e-6
    assert bound < times[-1] < 1.01 * bound
    assert times[-1] < 0.83 * (12 * nbytes / 55.4e9)


def test_bad_packings(driver: Driver, stack: ExitStack) -> None:
    device = driver.device()
    model = Packed(device, stack, 3, 1 * MIB)
    with pytest.raises(ValueError, match="there are 3 groups and 2 packings"):
        WeightManager(
            device, model.groups, model.sources, budget=8 * MIB, packings=model.packings[:2]
        )
    other = Packing(gaussian(2 * MIB, 0), threads=1)
    with pytest.raises(ValueError, match=r"group 0.all has 1048576 bytes, and its packing 2097152"):
        WeightManager(
            device, model.groups, model.sources, budget=8 * MIB, packings=[other, None, None]
        )
    with pytest.raises(BudgetError):
        model.manager(2 * MIB)
