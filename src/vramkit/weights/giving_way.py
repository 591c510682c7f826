"""Resident weights that give way when memory is short, and return when there is room again.

They live in blocks of a pool, one each. When the pool is short, the engine frees blocks of groups
that are not in use, on whatever thread that happens and without Python: their bytes are in host
memory too. Here is what follows at the next use or pass: such a group is streamed through the ring,
until it returns.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import msgspec

from vramkit import _core
from vramkit.driver.types import shown
from vramkit.weights.layout import Layout

if TYPE_CHECKING:
    from vramkit import Pool
    from vramkit.driver import Device, Stream

RETURN_AFTER = 3
"""Passes with room before a group returns, at first."""
MOST_PASSES = 1024
"""... and at most: a return that lasts for fewer passes than were waited for doubles the wait."""
LEAST_BLOCK = 64 << 10
"""Blocks of a pool from here on are aligned as tensors must be."""

WITHOUT_POOL = (
    "fixed: resident weights stay; with vramkit's pool under PyTorch "
    "(vramkit.integrations.torch.install()) they give way when memory is short"
)
WITHOUT_RING = (
    "fixed: all weights are resident, without a ring to stream them through; a budget that is "
    "smaller than the weights has one"
)
USED_TOGETHER = "fixed: parts use several streamed groups at once, which must not move in the ring"
OF_ALL_RANKS = "fixed: all ranks have the same resident weights, and none can give way alone"
NONE_CAN = "fixed: no resident weights can give way"


class GivingWayStats(msgspec.Struct, frozen=True):
    """Counts since the weights were brought to the card."""

    groups: int
    """That can give way, whether they are resident now or not."""
    nbytes: int
    gave_way: int
    """Times that a group gave way."""
    gave_way_bytes: int
    returned: int
    """Times that a group returned."""
    away: int
    """Groups that are streamed now since they gave way."""
    away_bytes: int


def that_give_way(layout: Layout, fixed: Collection[int]) -> tuple[int, ...]:
    """Residents that can be streamed instead: the ring holds each of them."""
    return tuple(
        number
        for number, group in enumerate(layout.groups)
        if layout.resident[number] and number not in fixed and group.nbytes <= layout.ring_bytes
    )


def why_fixed(pool: Pool | None, layout: Layout) -> str:
    """Why none gives way."""
    if pool is None:
        return WITHOUT_POOL
    return NONE_CAN if layout.ring_bytes else WITHOUT_RING


def require_pool(pool: object, device: Device) -> None:
    """Raises TypeError, or ValueError for one of another device."""
    import vramkit

    if not isinstance(pool, vramkit.Pool):
        raise TypeError(f"pool is {shown(pool)}; it may be None, or a vramkit.Pool")
    if pool.device.driver is not device.driver or pool.device.ordinal != device.ordinal:
        raise ValueError(f"the pool is of {pool.device!r}, and the weights are for {device!r}")


class Residents:
    """Groups in blocks of a pool.

    A group returns at the end of a pass if during the last passes, three at first, there was always
    room for twice its bytes, as seen whenever a group was used. Then the passes are counted again:
    one group at a time. If one gives way again before as many passes have gone by as it was waited
    for, the next wait is twice as long; if it stays longer, the wait is three passes again.
    """

    def __init__(
        self,
        pool: Pool,
        stream: Stream,
        engine: _core.StreamerEngine,
        layout: Layout,
        groups: Collection[int],
    ) -> None:
        self._pool, self._stream, self._engine = pool, stream, engine
        self.groups = tuple(groups)
        self._resident = layout.resident  # while none has given way
        self._sizes = {n: max(layout.groups[n].nbytes, LEAST_BLOCK) for n in groups}
        self._returned = 0
        self._any_away = False
        self._most_used = 0  # of the pool, in this pass
        self._shortages = 0  # that have been noticed: groups that gave way
        self._passes_with_room = 0
        self._wait = RETURN_AFTER
        self._since_return: int | None = None  # passes; None: the wait has been judged

    def settle_all(self) -> dict[int, int]:
        """Bring all groups to blocks of their own; nothing uses them yet. Returns the addresses.
        Raises OutOfMemoryError: the budget is more than the pool can have."""
        taken: dict[int, int] = {}
        addresses: dict[int, int] = {}
        try:
            for number, size in self._sizes.items():
                taken[number] = self._pool.malloc(size, self._stream)
            # Not before: all of them must have had room at once.
            self._engine.give_way_to(self._pool.c_handle, self._stream)
            for number in self.groups:
                self._settle(number, taken[number])
                addresses[number] = taken.pop(number)
        finally:
            for address in taken.values():
                self._pool.free(address, stream=self._stream)
        return addresses

    def settle(self, number: int) -> int | None:
        """Bring a group back to a block of its own. Returns the address; None: there is no memory
        that can be had at once, or the group is in use."""
        address = self._pool.try_malloc(self._sizes[number], self._stream)
        if address is None:
            return None
        settled = False
        try:
            settled = self._settle(number, address)
        finally:
            if not settled:
                self._pool.free(address, stream=self._stream)
        if not settled:
            return None
        self._returned += 1
        self._since_return = 0
        return address

    def _settle(self, number: int, address: int) -> bool:
        return self._engine.settle(number, address, self._sizes[number], self._stream)

    def away(self) -> list[int]:
        settled = set(self._engine.settled())
        return [number for number in self.groups if number not in settled]

    def now(self) -> tuple[bool, ...]:
        """By group, whether it is resident: those of the layout that are not away."""
        away = set(self.away())
        return tuple(stays and n not in away for n, stays in enumerate(self._resident))

    def note_use(self) -> None:
        """A group is used: how much memory is in use now."""
        if self._any_away and not self._pool.closed:
            self._most_used = max(self._most_used, self._pool._live_bytes())

    def end_pass(self) -> int | None:
        """The group that should return now."""
        shortages, _ = self._engine.gave_way()
        is_short = shortages != self._shortages
        self._shortages = shortages
        if self._since_return is not None:
            self._since_return += 1
            if self._since_return > self._wait:
                self._wait, self._since_return = RETURN_AFTER, None
            elif is_short:
                self._wait, self._since_return = min(2 * self._wait, MOST_PASSES), None
        away = self.away()
        self._any_away = bool(away)
        if not away or self._pool.closed:
            return None
        room = self._room()
        self._most_used = 0
        fits = [number for number in away if 2 * self._sizes[number] <= room]
        self._passes_with_room = 0 if is_short or not fits else self._passes_with_room + 1
        if self._passes_with_room < self._wait:
            return None
        self._passes_with_room = 0
        return fits[0]

    def _room(self) -> int:
        """What the pool could have handed out beside what was in use in this pass."""
        free = self._pool.device.memory_info().free
        most = self._pool.stats().reserved + free
        if self._pool.config.limit is not None:
            most = min(most, self._pool.config.limit)
        return most - max(self._most_used, self._pool._live_bytes())

    def stats(self) -> GivingWayStats:
        gave_way, nbytes = self._engine.gave_way()
        away = self.away()
        return GivingWayStats(
            groups=len(self.groups),
            nbytes=sum(self._sizes.values()),
            gave_way=gave_way,
            gave_way_bytes=nbytes,
            returned=self._returned,
            away=len(away),
            away_bytes=sum(self._sizes[number] for number in away),
        )
