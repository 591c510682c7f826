"""Passes over a model that only takes time: spinning kernels in the place of the real ones.

Measures what a schedule reaches on the driver that is open, without a model: on a card in real
time, on the simulated GPU in exact virtual time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from vramkit.driver import Device, Stream
    from vramkit.weights.manager import WeightManager


class PassTime(msgspec.Struct, frozen=True):
    """One pass, in seconds, from the end of the work before it to the end of its own.
    `host_blocked`: the host waited in ensure_group_on_gpu(), or spent its cost. `stalled`: the
    card did not compute."""

    wall: float
    computed: float
    host_blocked: float
    copied_bytes: int
    misses: int

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
    if len(seconds) != len(manager.layout.groups):
        raise ValueError(
            f"there are {len(manager.layout.groups)} groups and {len(seconds)} compute times"
        )
    with ExitStack() as stack:
        run = _Passes(manager, seconds, ensure_cost, streams, host, beside, stack)
        return [run.one() for _ in range(passes)]


class _Passes:
    def __init__(
        self,
        manager: WeightManager,
        seconds: Sequence[float],
        ensure_cost: float,
        streams: int,
        host: Host,
        beside: Callable[[int], None] | None,
        stack: ExitStack,
    ) -> None:
        self.manager, self.seconds = manager, seconds
        self.ensure_cost, self.host, self.beside = ensure_cost, host, beside
        device = manager.device
        self.device: Device = device
        sim = device.driver.sim
        self.clock: Callable[[], float] = time.perf_counter if sim is None else sim.now
        names = sorted({group.name for group in manager.layout.groups}) if streams == 2 else [""]
        made = {name: stack.enter_context(device.stream()) for name in names}
        groups = manager.layout.groups
        self.streams: list[Stream] = [made[g.name if streams == 2 else ""] for g in groups]

    def one(self) -> PassTime:
        manager, groups = self.manager, self.manager.layout.groups
        self._synchronize()
        before, start = manager.stats(), self.clock()
        blocked = 0.0
        manager.begin_pass()
        for number, group in enumerate(groups):
            first = number == 0 or groups[number - 1].layer != group.layer
            if self.host == "group" or (first and self.host == "layer"):
                self._synchronize()
            if self.beside is not None:
                self.beside(number)
            asked = self.clock()
            if first and manager.policy.wait == "block":
                manager.ensure_group_on_gpu(group.layer, group.name)
                self._spend(self.ensure_cost)
                blocked += self.clock() - asked
            stream = self.streams[number]
            if number and stream is not self.streams[number - 1]:
                with self.streams[number - 1].record() as done:
                    stream.wait(done)
            with manager.using(group.layer, group.name, compute_stream=stream):
                self.device.kernels.spin(round(self.seconds[number] * 1e9), stream=stream)
        self._synchronize()
        wall, after = self.clock() - start, manager.stats()
        return PassTime(
            wall=wall,
            computed=sum(self.seconds),
            host_blocked=blocked,
            copied_bytes=after.copied_bytes - before.copied_bytes,
            misses=after.misses - before.misses,
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
