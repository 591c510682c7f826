"""Runs the engine itself on the simulated GPU of this process: times and bytes, no values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from typing import TYPE_CHECKING, Self

from msgspec import structs

import vramkit.driver
from vramkit.report import blocks
from vramkit.report.units import bytes_text, count_text
from vramkit.weights.layout import BudgetError
from vramkit.weights.manager import WeightManager
from vramkit.weights.passes import run_passes
from vramkit.weights.planner.arithmetic import Rates, seconds
from vramkit.weights.planner.gathering import PredictedGather, gathered_bytes
from vramkit.weights.planner.request import Request
from vramkit.weights.planner.result import ComputeFrom, Limit, Prediction
from vramkit.weights.recording import record_passes
from vramkit.weights.schedule import Policy

if TYPE_CHECKING:
    from vramkit.driver import Device

PASSES = 3
"""The first fills the ring, the second begins with what the first has left in it, and every later
one is like the third."""

DRAWN = 5
"""Layers in the timeline."""
TOKENS = 4096
"""Of a sequence, where the request does not say."""


class Engine:
    """The card of a profile, and the model's groups with their times."""

    def __init__(self, request: Request) -> None:
        driver = vramkit.driver.open("sim")
        assert driver.sim is not None
        # No bytes behind the memory: a model of any size fits this machine.
        driver.sim.reset(request.profile, checker=False, data=False)
        self.settings = driver.sim.settings()
        self.device: Device = driver.device(0)
        self.request, self.model = request, request.model
        self.tokens, self.batch = request.tokens or TOKENS, request.batch or 1
        self.rates = _rates(self.settings)
        self.seconds, self.compute_from = self._times()
        self.memory = self.settings.profile_memory
        # Every group is copied from the same place: only sizes count here.
        largest = max(group.nbytes for group in self.model.groups)
        self._source = self.device.alloc_pinned(largest)
        # The first launch of a process loads the kernels, which no later one does.
        with self.device.stream() as stream:
            self.device.kernels.spin(0, stream=stream)
            stream.synchronize()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        self._source.close()

    def _times(self) -> tuple[list[float], ComputeFrom]:
        request = self.request
        if request.seconds is not None:
            self._refuse_tokens("the compute time of each group is given")
            return list(request.seconds), "given"
        rates, shares = self.rates, [float(group.nbytes) for group in self.model.groups]
        if rates is not None and self.model.arithmetic:
            shares = [
                seconds(work, rates, self.tokens, self.batch) for work in self.model.arithmetic
            ]
            if request.pass_seconds is None:
                return shares, "profile"
        if request.pass_seconds is None:
            raise ValueError(
                f"profile {self.settings.profile} has no rates of compute; give the time of a "
                "measured pass with all weights on the card (--pass-ms, pass_seconds), or of each "
                "group, or add [compute] to the profile"
            )
        if rates is None or not self.model.arithmetic:
            self._refuse_tokens(
                f"profile {self.settings.profile} has no rates of compute, and the measured pass "
                "is divided by bytes"
            )
        if not any(shares):  # nothing that the formula knows
            shares = [float(group.nbytes) for group in self.model.groups]
        whole = sum(shares)
        return [request.pass_seconds * share / whole for share in shares], "measured pass"

    def _refuse_tokens(self, why: str) -> None:
        if self.request.tokens is not None or self.request.batch is not None:
            raise ValueError(f"tokens and batch have no effect: {why}; leave them out")

    def run(
        self,
        budget: int,
        *,
        ring: int | None = None,
        policy: Policy | None = None,
        policy_name: str | None = None,
    ) -> Prediction:
        """Raises BudgetError or ValueError as offload() would."""
        with self._managed(budget, ring, policy or self.request.policy) as manager:
            layout = manager.layout
            passes = run_passes(manager, self.seconds, passes=PASSES if layout.ring_bytes else 1)
            sent, staging = manager.sent_bytes, manager.staging_bytes
        steady, kept = passes[-1], self.model.kept_bytes
        link = sent / self.settings.host_to_device_bytes_per_s
        rate = self.request.gather_bytes_per_s
        gather = 0.0 if rate is None else gathered_bytes(layout, sent) / rate
        limits: dict[Limit, float] = {"compute": steady.computed, "link": link, "gather": gather}
        limit = max(limits, key=lambda each: limits[each])
        return Prediction(
            policy=policy_name or self.request.policy_name,
            budget=budget,
            ring=ring,
            ring_bytes=layout.ring_bytes,
            resident_bytes=layout.resident_bytes,
            kept_bytes=kept,
            device_bytes=layout.device_bytes + kept + staging,
            streamed_bytes=layout.streamed_bytes,
            first_pass_s=passes[0].wall,
            pass_s=steady.wall,
            computed_s=steady.computed,
            link_s=link,
            bound_s=limits[limit],
            limit=limit,
            link_utilisation=link / steady.wall,
            ranks=self.request.ranks,
            sent_bytes=sent,
            gather_s=gather,
        )

    def record(self, chosen: Prediction) -> blocks.Timeline:
        """What runs when in the first layers of a pass."""
        layers = list(dict.fromkeys(group.layer for group in self.model.groups))[:DRAWN]
        with self._managed(chosen.budget, chosen.ring, self.request.policy) as manager:
            steady = record_passes(manager, self.seconds, passes=PASSES)[-1]
        title = f"The first {count_text(len(layers), 'layer')} of a pass (simulated)"
        drawn = steady.timeline(title, layers=range(layers[0], layers[-1] + 1))
        return structs.replace(drawn, lanes=[lane for lane in drawn.lanes if lane.spans])

    @contextmanager
    def _managed(self, budget: int, ring: int | None, policy: Policy) -> Iterator[WeightManager]:
        """A manager whose residents are on the card, as offload() has them."""
        kept, groups = self.model.kept_bytes, self.model.groups
        if budget > self.memory:
            raise BudgetError(
                f"budget is {bytes_text(budget)}; the card of profile {self.settings.profile} has "
                f"{bytes_text(self.memory)}"
            )
        if kept >= budget:
            raise BudgetError(
                f"budget is {bytes_text(budget)}; {bytes_text(kept)} of weights are small or held "
                "by modules that have parts, and stay on the card"
            )
        rate, ranks = self.request.gather_bytes_per_s, self.request.ranks
        gather = None if rate is None else PredictedGather(self.device, ranks, rate)
        manager = WeightManager(
            self.device,
            groups,
            [self._source.address] * len(groups),
            budget=budget - kept,
            ring=ring,
            policy=policy,
            prefer=self.request.prefer,
            gather=gather,
        )
        with nullcontext() if gather is None else closing(gather), manager:
            for group, resident in zip(groups, manager.layout.resident, strict=True):
                if resident:
                    manager.ensure_group_on_gpu(group.layer, group.name)
            yield manager


def _rates(settings: vramkit.driver.SimulatorSettings) -> Rates | None:
    if not settings.matmul_flops_per_s:
        return None
    return Rates(
        settings.matmul_flops_per_s,
        settings.attention_flops_per_s,
        settings.weights_bytes_per_s,
    )
