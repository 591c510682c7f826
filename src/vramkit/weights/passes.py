"""Passes over a model that only takes time: spinning kernels in the place of the real ones.

Measures what a schedule reaches on the driver that is open, without a model: on a card in real
time, on the simulated GPU in exact virtual time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

import msgspec

from vramkit import _core
from vramkit.weights.timing import host_clock

if TYPE_CHECKING:
    from vramkit.driver import Device, Stream
    from vramkit.weights.manager import WeightManager


class HostWait(NamedTuple):
    """The host was blocked, by the clock of PassTime.start: for weights (in ensure_group_on_gpu(),
    or to read which experts were chosen), or until the card had done its work."""

    name: str
    for_weights: bool
    start: float
    end: float


class PassTime(msgspec.Struct, frozen=True):
    """One pass, in seconds, from the end of the work before it to the end of its own. `start` is by
    the host's clock: Simulator.now(), or time.perf_counter() on a card. `host_blocked`: the host
    waited for weights, or spent the cost of ensure_group_on_gpu(). `waits` are those, and the waits
    of a host in step with the card. `stalled`: the card did not compute."""

    start: float
    wall: float
    computed: float
    host_blocked: float
    copied_bytes: int
    misses: int
    waits: tuple[HostWait, ...]

    @property
    def stalled(self) -> float:
        return max(0.0, self.wall - self.computed)


Host = Literal["ahead", "layer", "group"]


def run_passes(
    manager: WeightManager,
    seconds: Sequence[float],
    *,
    passes: int = 2,
    ensure_cost: float = 0.0,
    streams: Literal[1, 2] = 1,
    host: Host = "ahead",
    beside: Callable[[int], None] | None = None,
) -> list[PassTime]:
    """Run passes in which group i computes for `seconds[i]`.

    `ensure_cost` is host time a layer, spent where the policy blocks. With two streams each name of
    a group has a stream of its own. `host`: it runs ahead of the card, or waits for the card before
    it issues the next layer, or the next group. `beside(i)` is called before group i.
    """
    with Passes(manager, seconds, ensure_cost, streams, host, beside) as run:
        return [run.one() for _ in range(passes)]


class Passes:
    """Runs passes one by one, on compute streams of its own until the end of a with statement."""

    def __init__(
        self,
        manager: WeightManager,
        seconds: Sequence[float],
        ensure_cost: float,
        streams: int,
        host: Host,
        beside: Callable[[int], None] | None,
    ) -> None:
        groups = manager.layout.groups
        if len(seconds) != len(groups):
            raise ValueError(f"there are {len(groups)} groups and {len(seconds)} compute times")
        if streams not in (1, 2):
            raise ValueError(f"streams is {streams!r}; it may be 1 or 2")
        if host not in ("ahead", "layer", "group"):
            raise ValueError(f"host is {host!r}; it may be 'ahead', 'layer' or 'group'")
        self.manager, self.seconds = manager, seconds
        self.ensure_cost, self.host, self.beside = ensure_cost, host, beside
        self.device: Device = manager.device
        self.clock = host_clock(self.device)
        self._made = ExitStack()
        names = sorted({group.name for group in groups}) if streams == 2 else [""]
        made = {name: self._made.enter_context(self.device.stream()) for name in names}
        self.streams: list[Stream] = [made[g.name if streams == 2 else ""] for g in groups]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        self._made.close()

    @property
    def stream_ids(self) -> set[int]:
        """Of the compute streams."""
        return {_core.stream_id(self.device, stream) for stream in self.streams}

    def one(self) -> PassTime:
        manager, groups = self.manager, self.manager.layout.groups
        self._synchronize()
        before, start = manager.stats(), self.clock()
        waits: list[HostWait] = []
        blocked = 0.0
        manager.begin_pass()
        for number, group in enumerate(groups):
            first = number == 0 or groups[number - 1].layer != group.layer
            if number and (self.host == "group" or (first and self.host == "layer")):
                asked = self.clock()
                self._synchronize()
                waits.append(HostWait("wait for the card", False, asked, self.clock()))
            if self.beside is not None:
                self.beside(number)
            if first and manager.policy.wait == "block":
                asked = self.clock()
                manager.ensure_group_on_gpu(group.layer, group.name)
                self._spend(self.ensure_cost)
                waits.append(HostWait(f"ensure {group}", True, asked, self.clock()))
                blocked += waits[-1].end - asked
            stream = self.streams[number]
            if number and stream is not self.streams[number - 1]:
                with self.streams[number - 1].record() as done:
                    stream.wait(done)
            with manager.using(group.layer, group.name, compute_stream=stream):
                self.device.kernels.spin(round(self.seconds[number] * 1e9), stream=stream)
        self._synchronize()
        wall, after = self.clock() - start, manager.stats()
        return PassTime(
            start=start,
            wall=wall,
            computed=sum(self.seconds),
            host_blocked=blocked,
            copied_bytes=after.copied_bytes - before.copied_bytes,
            misses=after.misses - before.misses,
            waits=tuple(waits),
        )

    def _synchronize(self) -> None:
        """With the work, not with copies for what comes later."""
        for stream in dict.fromkeys(self.streams):
            stream.synchronize()

    def _spend(self, seconds: float) -> None:
        sim = self.device.driver.sim
        if sim is not None and sim.settings().clock == "virtual":
            sim.advance(seconds)
        else:
            time.sleep(seconds)
