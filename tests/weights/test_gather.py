"""Groups that come in shares: a stand-in for the other ranks, on one simulated card."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from soak import rounds

from vramkit import _core
from vramkit.driver import Device, Driver, DriverError, Simulator, Span
from vramkit.weights import BudgetError, Group, Packing, WeightManager
from vramkit.weights.gather import SHARE, DeviceGather, share_chunks

from .support import GRANULE, KIB, PROFILE, Loaded, layers, sources
from .test_order import Run, models

pytestmark = [pytest.mark.sim_only]


# Shares


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("nbytes", [4, 512, 1023, 8 * 512, 100_000, 3_000_001])
@pytest.mark.parametrize("most", [512, 4096, SHARE])
def test_shares_are_the_group(nbytes: int, ranks: int, most: int) -> None:
    every = [share_chunks(nbytes, rank, ranks, most) for rank in range(ranks)]
    ends = [chunk.first_byte + chunk.nbytes for chunk in every[0]]
    assert [chunk.first_byte for chunk in every[0]] == [0, *ends[:-1]] and ends[-1] == nbytes
    for chunks in zip(*every, strict=True):
        if not chunks[0].staged:
            # The end of the group, which every rank copies.
            assert len(set(chunks)) == 1 and chunks[0] == every[0][-1]
            assert chunks[0].nbytes == chunks[0].stored < 512 * ranks
            continue
        share = chunks[0].stored
        assert 0 < share <= most and share % 512 == 0
        begin = chunks[0].first_byte
        assert [each.offset for each in chunks] == list(range(begin, begin + ranks * share, share))
        assert {(each.first_byte, each.nbytes) for each in chunks} == {(begin, ranks * share)}
    shares = [chunk.stored for chunk in every[0] if chunk.staged]
    assert all(one - other in (0, 512) or other == shares[-1] for one, other in pairwise(shares))


# The others


class Others:
    """Their shares come from a copy of the groups on the card, in the order of the stream."""

    def __init__(self, device: Device, groups: Sequence[Group], rank: int, ranks: int) -> None:
        self.rank, self.ranks, self._device = rank, ranks, device
        self.numbers = {str(group): number for number, group in enumerate(groups)}
        self.copies: list[int] = []  # addresses, by group
        self.expanded: list[tuple[str, int]] = []
        self.given_up: list[tuple[str, str]] = []
        self.before: Callable[[], None] = lambda: None

    def prepare(self, share: int) -> None:
        self.share = share

    def expand(self, chunk: _core.StagedChunk) -> None:
        self.before()
        stored = chunk.stored
        assert stored <= self.share
        self.expanded.append((chunk.group, chunk.first_byte))
        on = _core.Stream.from_handle(self._device, chunk.stream)
        begin = self.copies[self.numbers[chunk.group]] + chunk.first_byte
        for rank in range(self.ranks):
            source = chunk.staging if rank == self.rank else begin + rank * stored
            to = Span(chunk.destination + rank * stored, stored, "device")
            self._device.copy(to, Span(source, stored, "device"), stored, stream=on)

    def give_up(self, group: str, why: str) -> None:
        self.given_up.append((group, why))


@contextmanager
def gathered(
    device: Device, groups: Sequence[Group], *, rank: int = 1, ranks: int = 2, **options: Any
) -> Iterator[tuple[Loaded, Others]]:
    """This rank's host memory has its own shares alone, and the ends of groups."""
    others = Others(device, groups, rank, ranks)
    end = sum(-(-group.nbytes // 512) * 512 for group in groups)
    with (
        sources(device, groups) as (addresses, sums),
        device.alloc(end) as whole,
        device.alloc(8 * 4096) as totals,
    ):
        device.fill(totals, 0)
        base = addresses[0]
        device.copy(whole, Span(base, end, "host"), end)
        device.synchronize()
        others.copies = [whole.address + address - base for address in addresses]
        for group, address in zip(groups, addresses, strict=True):
            for chunk in share_chunks(group.nbytes, rank, ranks, SHARE):
                if chunk.staged:
                    forget(address + chunk.first_byte, chunk.nbytes, address, chunk)
        with WeightManager(device, groups, addresses, gather=others, **options) as manager:
            made = Loaded(manager, sums, totals)
            yield made, others
            made.verify()


def forget(begin: int, nbytes: int, address: int, chunk: Any) -> None:
    """What is another rank's."""
    mine = address + chunk.offset
    ctypes.memset(begin, 0xEE, mine - begin)
    after = mine + chunk.stored
    ctypes.memset(after, 0xEE, begin + nbytes - after)


@pytest.fixture
def small(sim: Simulator) -> None:
    sim.reset(PROFILE)


def test_a_pass_copies_one_share_and_makes_nothing(
    driver: Driver, sim: Simulator, small: None
) -> None:
    device, groups = driver.device(), layers(6, attn=40 * KIB + 100, ffn=60 * KIB)
    with (
        device.stream() as stream,
        gathered(device, groups, rank=2, ranks=4, budget=4 * GRANULE + 60 * KIB) as (model, others),
    ):
        manager = model.manager
        assert not any(manager.layout.resident)
        for _ in range(3):
            model.run(stream)
        stream.synchronize()
        sim.reset_call_counts()
        others.expanded.clear()
        before = manager.stats().copied_bytes
        model.run(stream)
        calls = sim.call_counts()
        copied = manager.stats().copied_bytes - before
        # 100 bytes and half of 1024 are left of each attention, which is 40 KiB + 100.
        shares = 6 * (10 * KIB + 15 * KIB)
        assert copied == manager.sent_bytes == shares + 6 * 100
        assert manager.staging_bytes == 4 * 15 * KIB
        assert len(others.expanded) == 12 and len(set(others.expanded)) == 12
        assert calls["cuMemcpyHtoDAsync_v2"] == 18
        forbidden = ("Synchronize", "Create", "Destroy", "Alloc", "Free", "Query")
        assert not [name for name in calls if any(each in name for each in forbidden)]
    assert sim.reports() == []


EXAMPLES = settings(
    max_examples=rounds(40, 800), suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@EXAMPLES
@given(st.data())
def test_every_use_sees_its_own_bytes(driver: Driver, data: st.DataObject) -> None:
    """Random models, budgets and orders, on two streams; the checker is silent."""
    sim = driver.sim
    assert sim is not None
    sim.reset(PROFILE)
    device = driver.device()
    groups = data.draw(models())
    ranks = data.draw(st.integers(2, 5))
    most = sum(-(-group.nbytes // GRANULE) for group in groups) + 8
    options = {
        "budget": GRANULE * data.draw(st.integers(3, most)),
        "rank": data.draw(st.integers(0, ranks - 1)),
        "ranks": ranks,
        "prefer": data.draw(st.sets(st.integers(0, len(groups) - 1), max_size=2)),
    }
    try:
        with (
            device.stream() as one,
            device.stream() as two,
            gathered(device, groups, **options) as (model, _),
        ):
            run = Run(data, model, [one, two])
            for _ in range(data.draw(st.integers(1, 6))):
                run.act()
    except BudgetError:
        pass
    assert sim.reports() == []


def test_what_expanding_raises_is_raised(driver: Driver, small: None) -> None:
    """At once, also from a prefetch, which the caller has not asked for."""
    device, groups = driver.device(), layers(6)
    with (
        device.stream() as stream,
        gathered(device, groups, budget=6 * GRANULE) as (model, others),
    ):
        model.run(stream)

        def fail() -> None:
            raise KeyboardInterrupt("no more")

        others.before = fail
        with pytest.raises(KeyboardInterrupt, match="no more"):
            model.run(stream)
        others.before = lambda: None
        model.manager.close()
        model.verify()


def test_a_copy_that_fails_is_told(driver: Driver, sim: Simulator, small: None) -> None:
    """Without it the chunks of this rank would no longer be those of the others."""
    device, groups = driver.device(), layers(6)
    with (
        device.stream() as stream,
        gathered(device, groups, budget=6 * GRANULE) as (model, others),
    ):
        model.run(stream)
        sim.inject("cuMemcpyHtoDAsync*", nth=1, code=999)
        with suppress(DriverError):
            model.run(stream)
        sim.clear_faults()
        ((group, why),) = others.given_up
        assert group in others.numbers and why == "cuMemcpyHtoDAsync returned 999"


def test_settings_that_exclude_each_other(driver: Driver, small: None) -> None:
    device, groups = driver.device(), layers(2)
    others = Others(device, groups, 0, 2)
    packing = Packing(bytes(groups[0].nbytes), threads=1)
    with pytest.raises(ValueError, match="packed weights are not gathered"):
        WeightManager(
            device, groups, [0] * 4, budget=1, packings=[packing, None, None, None], gather=others
        )
    with pytest.raises(BudgetError, match=r"budget is 64 KiB; shares on their way take 120 KiB"):
        WeightManager(device, groups, [0] * 4, budget=GRANULE, gather=others)


# On cards


class Nccl:
    """Stands for the ranks of a group with nccl: what one call would do in stream order."""

    def __init__(self, ranks: int, rank: int) -> None:
        self.rank, self.size, self.calls = rank, ranks, []  # type: ignore[var-annotated]
        self.streams: list[int] = []
        self.others: dict[int, Any] = {}
        self.fails: Exception | None = None

    # What DeviceGather asks of a Team

    def device_group(self) -> Nccl:
        return self

    def require_whole(self) -> None:
        if self.fails is not None:
            raise self.fails

    @contextmanager
    def waiting(self) -> Iterator[None]:
        yield

    def fail(self, text: str) -> None:
        self.fails = RuntimeError(text)

    # ... of a group

    def _allgather_base(self, out: Any, share: Any) -> Nccl:
        assert len(out) == self.size * len(share)
        self.calls.append((out.data_ptr(), share.data_ptr(), len(share), self.streams[-1]))
        return self

    def wait(self) -> None:
        self.calls.append("wait")

    # ... of torch.cuda

    def ExternalStream(self, handle: int, device: Any) -> int:
        assert device == "this card"
        return handle

    @contextmanager
    def stream(self, handle: int) -> Iterator[None]:
        self.streams.append(handle)
        yield
        self.streams.append(0)


def test_on_cards_each_chunk_is_one_call_on_the_stream_that_waits_for_the_copy() -> None:
    torch = pytest.importorskip("torch")
    from types import SimpleNamespace

    nccl = Nccl(4, 2)
    place, staged = torch.zeros(9000, dtype=torch.uint8), torch.zeros(2048, dtype=torch.uint8)

    def bytes_at(address: int, nbytes: int) -> Any:
        whole = place if place.data_ptr() <= address < place.data_ptr() + 9000 else staged
        begin = address - whole.data_ptr()
        return whole[begin : begin + nbytes]

    gather = DeviceGather(
        SimpleNamespace(cuda=nccl),
        nccl,  # type: ignore[arg-type]
        SimpleNamespace(bytes_at=bytes_at, device="this card"),  # type: ignore[arg-type]
    )
    assert (gather.rank, gather.ranks) == (2, 4)
    gather.prepare(2048)
    chunk = _core.StagedChunk(
        group="0.attn",
        first_byte=512,
        nbytes=8192,
        staging=staged.data_ptr(),
        stored=2048,
        destination=place.data_ptr() + 512,
        stream=77,
    )
    gather.expand(chunk)
    assert nccl.calls == [(place.data_ptr() + 512, staged.data_ptr(), 2048, 77), "wait"]
    assert nccl.streams == [77, 0]
    gather.give_up("0.attn", "cuMemcpyHtoDAsync returned 999")
    with pytest.raises(RuntimeError, match=r"group 0.attn was not copied: cuMemcpyHtoDAsync"):
        gather.expand(chunk)
    assert len(nccl.calls) == 2
    gather.close()


def test_other_threads_go_on_while_one_expands(driver: Driver, small: None) -> None:
    """What asks the manager meanwhile waits without Python's lock, which the expansion needs."""
    device, groups = driver.device(), layers(6)
    with (
        device.stream() as stream,
        gathered(device, groups, budget=6 * GRANULE) as (model, others),
    ):
        manager, asked, ends = model.manager, 0, threading.Event()

        def ask() -> None:
            nonlocal asked
            while not ends.is_set():
                manager.stats()
                manager.on_its_way(3, "attn")
                manager.log_copies(False)
                asked += 1

        others.before = lambda: time.sleep(0.002)  # gives Python's lock away
        thread = threading.Thread(target=ask)
        thread.start()
        try:
            for _ in range(3):
                model.run(stream)
        finally:
            ends.set()
            thread.join(timeout=30)
        assert not thread.is_alive() and asked > 0
