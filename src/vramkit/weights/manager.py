"""The weight manager: brings groups of weights to the card ahead of their use."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Literal, Self

import msgspec

from vramkit import _core
from vramkit.driver.errors import ClosedError
from vramkit.driver.types import Owner, SupportsCudaStream, size, truth
from vramkit.weights.card_memory import (
    decoding,
    place,
    staging_memory,
    staging_slot,
)
from vramkit.weights.first_schedule import plan_schedule
from vramkit.weights.gather import Gather, staged_chunks
from vramkit.weights.giving_way import (
    GivingWayStats,
    Residents,
    require_pool,
    that_give_way,
    why_fixed,
)
from vramkit.weights.layout import (
    ALIGNMENT,
    Group,
    Layout,
)
from vramkit.weights.orders import Orders
from vramkit.weights.packing import Packing
from vramkit.weights.placement import Placement
from vramkit.weights.schedule import Policy, Schedule, chosen_policy
from vramkit.weights.timing import MeasuredPass, Timing
from vramkit.weights.uses import Uses

if TYPE_CHECKING:
    from vramkit import Pool
    from vramkit.driver import Device, Event

CHUNK = 64 << 20
"""Bytes a copy: large enough for the full rate of the link (16 MiB lose 0.7 % on an H200), small
enough for an urgent copy to come in between (1.2 ms)."""


class WeightStats(msgspec.Struct, frozen=True):
    """Counts since the manager was made."""

    copies: int
    copied_bytes: int
    misses: int
    """Groups that were not on their way when they were needed."""
    off_order: int
    """Groups used out of the order that was expected."""
    left_out: int
    """Prefetches that would have overwritten a group in use or pinned."""
    failed: int
    """Prefetches that the driver refused; the use of the group tries again."""


class WeightManager(Owner):
    """Streams groups of weights through the memory of a card.

    `groups` are in the order of their use; those whose numbers are in `prefer` are resident before
    others. `sources` are the addresses of their bytes in pinned
    host memory, which must stay valid until close(). Every group keeps its device address, unless
    residents give way. With
    `packings`, the bytes of a group are what its Packing has stored, and are decoded on the card;
    the staging for that counts against the budget. With a `gather`, this card gets a share of each
    group from its host and the others' shares from them.

    A layer calls wait_group_ready() before it issues work that uses a group, and release() behind
    it; using() is both. What comes next is copied meanwhile, by the policy. begin_pass() tells
    where a pass begins: an order other than that of `groups` is then learnt after its first pass,
    and several orders are kept. Without begin_pass() a pass is expected to follow `groups`; what
    is used out of order is copied when it is needed.

    With a `pool`, residents but for those in `prefer` are blocks of it. When the pool is short of
    memory, it takes back those that are not in use, and they are streamed until there is room
    again. What is streamed then moves in the ring: wait_group_ready() returns where it is.

    `timing` records events around each use of a group, for last_pass().

    Waits are events on the GPU: the host waits only in ensure_group_on_gpu(), with a policy that
    blocks, and in close(). Safe to use from any thread.
    """

    _closed = True  # until all is there

    def __init__(
        self,
        device: Device,
        groups: Sequence[Group],
        sources: Sequence[int],
        *,
        budget: int,
        ring: int | None = None,
        policy: str | Policy = "auto",
        prefer: Collection[int] = (),
        chunk: int = CHUNK,
        packings: Sequence[Packing | None] = (),
        gather: Gather | None = None,
        pool: Pool | None = None,
        timing: bool = False,
    ) -> None:
        self.device = device
        if pool is not None:
            require_pool(pool, device)
        self._epoch = device.epoch
        self.policy = chosen_policy(policy)
        self._numbers = _numbered(groups)
        if len(sources) != len(groups):
            raise ValueError(f"there are {len(groups)} groups and {len(sources)} sources")
        if not (chunk := size(chunk, "chunk")) or chunk % ALIGNMENT:
            raise ValueError(f"chunk is {chunk}; it may be a multiple of {ALIGNMENT} bytes")
        chunks = staged_chunks(groups, packings, gather)
        slot = staging_slot(chunks)
        self.staging_bytes = _core.STAGING_SLOTS * slot
        first = plan_schedule(
            device,
            groups,
            budget=budget,
            ring=ring,
            policy=self.policy,
            prefer=prefer,
            packings=packings,
            gather=gather,
        )
        layout = first.layout
        if gather is not None:
            if pool is not None:
                raise ValueError("residents that give way differ by rank: pool excludes gather")
            gather.prepare(slot)
        give_way = () if pool is None else that_give_way(layout, prefer)
        self.fixed_because = None if give_way else why_fixed(pool, layout)
        """Why residents do not give way; None: some do."""
        with ExitStack() as stack:
            addresses, self.ring_address = place(device, layout, give_way, stack)
            self._engine = _core.StreamerEngine(
                device,
                self.ring_address,
                layout.ring_bytes,
                [
                    (str(group), address, source, group.nbytes, staged)
                    for group, address, source, staged in zip(
                        groups, addresses, sources, chunks, strict=True
                    )
                ],
                chunk,
                staging_memory(device, slot, stack),
                decoding(device, slot) if gather is None else gather,
            )
            come_and_go = stack.enter_context(device.stream()) if give_way else None
            self._memory = stack.pop_all()
        self._residents: Residents | None = None
        self._last_given: GivingWayStats | None = None
        self._orders = Orders(self._engine, self.policy, first)
        self._uses = Uses(groups)
        self._placement = Placement(
            layout, addresses, self.ring_address, chunks, self._orders, self._uses
        )
        self._entered: list[int] | None = None  # in this pass; None: no pass was begun
        self._timing = Timing(device) if truth(timing, "timing") else None
        if self._timing is not None:
            self._engine.time_copies()
        self._steps: dict[int, int] = {}  # of the pass, by group in use; only with timing
        self._last_stats = WeightStats(0, 0, 0, 0, 0, 0)
        self._closed = False
        try:
            if pool is not None and come_and_go is not None:
                residents = Residents(pool, come_and_go, self._engine, layout, give_way)
                self._placement.settle_all(residents)
                self._residents = residents
            for number, resident in enumerate(layout.resident):
                if resident:
                    self._engine.prefetch(number, False)
        except BaseException:
            self.close()
            raise

    # What a layer calls

    def prefetch_group_async(
        self,
        layer: int,
        group: str,
        *,
        pin: bool = False,
        priority: Literal["normal", "high"] = "normal",
    ) -> None:
        """Copy a group unless it is on its way. Never waits.

        `pin`: it is not overwritten until release(). `priority="high"`: it does not wait for the
        copies that were asked for before, only for the chunk under way.
        """
        number = self._number(layer, group)
        if priority not in ("normal", "high"):
            raise ValueError(f"priority is {priority!r}; it may be 'normal' or 'high'")
        if not truth(pin, "pin") or number in self._uses.pinned:
            self._prefetch(number, priority == "high")
            return
        # Pinned first: another thread must not overwrite it in between.
        self._engine.pin(number, True)
        try:
            self._prefetch(number, priority == "high")
        except BaseException:
            self._engine.pin(number, False)
            raise
        self._uses.pinned.add(number)

    def wait_group_ready(
        self, layer: int, group: str, *, compute_stream: SupportsCudaStream
    ) -> int:
        """Work issued to the stream from now on may use the group, until release(). Returns its
        address. The stream waits on the GPU; a group that is not on its way is copied at once."""
        number = self._number(layer, group)
        if self._residents is not None:
            self._residents.note_use()
        is_first = not self._uses.count(number)
        timing = self._timing if is_first else None
        try:
            if timing is not None:
                # Before the host waits: meanwhile the stream may run out of work.
                self._steps[number] = timing.asked(number, compute_stream)
            if self.policy.wait == "block" and self._begins_layer(number):
                self._ensure(number)
            self._enter(number, compute_stream)
        except BaseException:
            if timing is not None:
                timing.fail()
            raise
        if timing is not None:
            timing.ready(self._steps[number], compute_stream)
        if self._entered is not None and is_first:
            self._entered.append(number)
        self._uses.begin(number, compute_stream)
        return self._placement.addresses[number]

    def release(
        self, layer: int, group: str, *, compute_stream: SupportsCudaStream | None = None
    ) -> None:
        """All work that uses the group has been issued to the stream that waited for it; a pinned
        group may be overwritten again. The stream must be given if several have waited."""
        number = self._number(layer, group)
        stream = self._uses.find(number, compute_stream)
        if number in self._uses.pinned:
            self._uses.pinned.discard(number)
            self._engine.pin(number, False)
        if stream is None:
            return
        self._engine.leave(number, stream)
        if self._timing is not None and self._uses.count(number) == 1:
            self._timing.done(self._steps[number], stream)
        self._uses.end(number, stream)

    @contextmanager
    def using(self, layer: int, group: str, *, compute_stream: SupportsCudaStream) -> Iterator[int]:
        """wait_group_ready() and release() around the work that uses a group."""
        address = self.wait_group_ready(layer, group, compute_stream=compute_stream)
        try:
            yield address
        finally:
            self.release(layer, group, compute_stream=compute_stream)

    def ensure_group_on_gpu(self, layer: int, group: str) -> None:
        """The host waits until the group has arrived."""
        number = self._number(layer, group)
        self._ensure(number)

    def evict(self, layer: int, group: str) -> None:
        """Forget that the group is on the card: its next use copies it again."""
        number = self._number(layer, group)
        self._engine.evict(number)

    # Passes

    def begin_pass(self) -> None:
        """A pass over the model begins here."""
        self._require_open()
        if self._entered:
            self._orders.learn(self._engine, tuple(self._entered))
        if self._residents is not None:
            returns = self._residents.end_pass() if self._entered else None
            if returns is not None:
                self._placement.settle(self._engine, self._residents, returns)
            self._placement.follow_memory(self._engine, self._residents)
        self._entered = []
        if self._timing is not None:
            self._timing.begin_pass(self.stats().misses)

    # Residents that give way

    def gives_way(self, layer: int, group: str) -> bool:
        """Whether the group is resident only while there is memory for it."""
        number = self._number(layer, group)
        return self._residents is not None and number in self._residents.groups

    def giving_way(self) -> GivingWayStats | None:
        """None: residents do not give way, and `fixed_because` says why. After close(): as they
        were then."""
        if self._closed or self._residents is None:
            return self._last_given
        return self._residents.stats()

    # Until the group has an address: its memory may be taken away at any time before this.

    def _enter(self, number: int, stream: SupportsCudaStream) -> None:
        while self._engine.enter(number, stream) is None:
            self._put_into_ring(number)

    def _prefetch(self, number: int, urgent: bool) -> None:
        while self._engine.prefetch(number, urgent) is None:
            self._put_into_ring(number)

    def _ensure(self, number: int) -> None:
        with self.blocking(f"ensure {self.layout.groups[number]}"):
            while self._engine.ensure(number) is None:
                self._put_into_ring(number)

    def _put_into_ring(self, number: int) -> None:
        assert self._residents is not None
        self._placement.put_into_ring(self._engine, self._residents, number)

    # What it says

    @property
    def layout(self) -> Layout:
        """Where each group lies. It changes if residents give way."""
        return self._placement.layout

    @property
    def sent_bytes(self) -> int:
        """What the link carries in a pass: streamed groups, packed, in shares, or as they are."""
        return self._placement.sent_bytes

    @property
    def schedule(self) -> Schedule:
        """That of the last pass that was learnt."""
        return self._orders.last

    def address(self, layer: int, group: str) -> int:
        """The device address of a group, the same for the manager's life. If residents give way,
        it may change whenever the group is not in use."""
        return self._placement.addresses[self._number(layer, group)]

    def on_its_way(self, layer: int, group: str) -> bool:
        """Whether the group is on the card or being copied."""
        number = self._number(layer, group)
        return self._engine.on_its_way(number)

    def stats(self) -> WeightStats:
        """After close(): as they were then."""
        return self._last_stats if self._closed else WeightStats(**self._engine.counters())

    def last_pass(self) -> MeasuredPass | None:
        """Where the time of the last pass went; None: none has ended since begin_pass(), or a new
        one has begun. Waits for its work. Needs `timing`."""
        self._require_open()
        if self._timing is None:
            raise ValueError("last_pass() needs a WeightManager made with timing=True")
        return self._timing.last_pass()

    def copy_times(self, since: Event) -> list[tuple[Group, float, float]]:
        """When the last two copies of each group began and ended, in seconds from an event on.
        Waits for copies under way. Needs `timing`."""
        self._require_open()
        groups = self.layout.groups
        return [(groups[n], begin, end) for n, begin, end in self._engine.copy_times(since)]

    def blocking(self, name: str) -> AbstractContextManager[None]:
        """For last_pass(): the host is blocked meanwhile, for the sake of weights."""
        return nullcontext() if self._timing is None else self._timing.blocking(name)

    def pass_start_on_host(self) -> float:
        """As pass_start, by the clock of timing.host_clock(). Needs `timing`, and a pass."""
        assert self._timing is not None
        return self._timing.start_on_host()

    @property
    def pass_start(self) -> Event | None:
        """The event at the beginning of what last_pass() tells; None without `timing` or a pass."""
        return None if self._timing is None else self._timing.start

    def log_copies(self, on: bool = True) -> list[tuple[Group, int]]:
        """Keep the order in which groups are copied. Returns what was kept so far, each group with
        the id of the stream that copied it."""
        self._require_open()
        groups, streams = self.layout.groups, self._engine.stream_ids
        return [(groups[number], streams[urgent]) for number, urgent in self._engine.log_copies(on)]

    # Its end

    def close(self) -> None:
        """Wait for the copies and for the work that uses the weights, and give the memory back."""
        if self._closed:
            return
        there = self.memory_is_there()
        if there:
            self._last_stats = self.stats()
            self._last_given = self.giving_way()
        self._closed = True
        try:
            if there:
                if self._uses.any():
                    self.device.synchronize()  # work that nothing was recorded behind
                self._engine.synchronize()
        finally:
            if self._timing is not None:
                self._timing.close()
            self._residents = None
            del self._engine
            self._memory.close()

    @property
    def closed(self) -> bool:
        return self._closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    def __del__(self) -> None:
        if self._closed:
            return
        try:
            if self.memory_is_there():
                warnings.warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=2)
        finally:
            # An error cannot be reported here, and at exit the driver may be gone already.
            with suppress(Exception):
                self.close()

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ""
        return f"<WeightManager of {len(self.layout.groups)} groups on {self.device!r}{state}>"

    def _require_open(self) -> None:
        if self._closed:
            raise ClosedError("this WeightManager is closed")

    def _number(self, layer: int, group: str) -> int:
        self._require_open()
        number = self._numbers.get((layer, group))
        if number is None:
            raise KeyError(self._unknown(layer, group))
        return number

    def _unknown(self, layer: int, group: str) -> str:
        layers = sorted({each.layer for each in self.layout.groups})
        if layer not in layers:
            return f"there is no layer {layer!r}; layers are {layers[0]} to {layers[-1]}"
        names = [each.name for each in self.layout.groups if each.layer == layer]
        return f"layer {layer} has no group {group!r}; it has {', '.join(map(repr, names))}"

    def _begins_layer(self, number: int) -> bool:
        groups = self.layout.groups
        return number == 0 or groups[number - 1].layer != groups[number].layer

    def memory_is_there(self) -> bool:
        """Not after a reset of the device, nor in a forked process."""
        return self._epoch == self.device.epoch and not self.device.forked


def _numbered(groups: Sequence[Group]) -> dict[tuple[int, str], int]:
    """By layer and name. Raises ValueError where two are the same."""
    numbers = {(group.layer, group.name): n for n, group in enumerate(groups)}
    for number, group in enumerate(groups):
        if numbers[group.layer, group.name] != number:
            raise ValueError(f"two groups have the same layer and name: {group}")
    return numbers
