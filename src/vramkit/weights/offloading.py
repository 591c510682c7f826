"""A PyTorch model that is larger than the card: its weights are streamed while it computes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal, Self, SupportsIndex

from vramkit.driver.types import Span, integer, truth
from vramkit.integrations._frameworks import imported
from vramkit.report.units import bytes_text
from vramkit.weights.backward import Backward
from vramkit.weights.budget import parse_budget
from vramkit.weights.experts import ExpertCache
from vramkit.weights.first_schedule import plan_schedule
from vramkit.weights.gather import gather_of
from vramkit.weights.giving_way import OF_ALL_RANKS, USED_TOGETHER, require_pool
from vramkit.weights.group_on_card import GroupOnCard
from vramkit.weights.hooks import ModelHooks, PartHooks
from vramkit.weights.layout import ALIGNMENT, BudgetError, Layout
from vramkit.weights.manager import WeightManager, WeightStats
from vramkit.weights.model import SMALL, Model, analyse
from vramkit.weights.outside import Outside
from vramkit.weights.packing import Packing
from vramkit.weights.planner.planning import plan
from vramkit.weights.planner.result import Prediction
from vramkit.weights.preparing import (
    chosen_device,
    leave_inference,
    marked,
    refuse_second,
    require_meta,
    used_together,
)
from vramkit.weights.progress import Progress
from vramkit.weights.progress import shown as shown_progress
from vramkit.weights.ranks import agree, ranks_text, refuse_beside_group
from vramkit.weights.recording import RecordedPass, measured_pass
from vramkit.weights.report import OffloadReport, make_report
from vramkit.weights.routed_group import ExpertHooks, RoutedGroup
from vramkit.weights.routing import Routing, expert_layers, plan_routing
from vramkit.weights.schedule import Policy
from vramkit.weights.shared_store import SharedStore
from vramkit.weights.store import (
    Kept,
    PackedStore,
    Source,
    Store,
    memory_of,
    packed_if_it_pays,
)
from vramkit.weights.team import Team
from vramkit.weights.torch_memory import TorchMemory, pool_of_torch, torch_memory
from vramkit.weights.unstreamed import Unstreamed

if TYPE_CHECKING:
    from vramkit import Pool
    from vramkit.driver import Device

LINK_SAMPLE = 256 << 20
"""Bytes whose copy tells the rate of the link."""

SAMPLED = 4 << 20
"""Weights that tell what packing would save."""


def offload(
    model: Any,
    budget: SupportsIndex | str,
    *,
    device: Device | int | None = None,
    policy: str | Policy = "auto",
    ring: int | None = None,
    keep_below: int = SMALL,
    whole: Collection[str] = (),
    source: Source | None = None,
    packing: Literal["off", "bf16-12", "auto"] = "off",
    experts: Literal["whole", "routed"] = "whole",
    pool: Pool | None = None,
    group: Any = None,
    progress: Progress | None = None,
) -> Offload:
    """Run a torch.nn.Module with its weights in host memory and `budget` of the card.

    Works in place, until the with statement ends or close(): the module is called as before, and
    what it returns is what it returns with all weights on the card, bit for bit. `budget` is bytes,
    or text such as "24GiB" or "60%" of the card. `ring` is the most that weights on their way may
    take of it (default: two layers); the rest holds resident weights. Weights of modules with less
    than `keep_below` bytes stay on the card. Modules named in `whole` are not divided: those that
    read the weights of their parts without calling them. A model on the meta device gets its
    weights from `source`: a safetensors checkpoint (a folder, a file or an index), read straight
    into pinned memory, or a function that is given the model and loads it in place.
    `packing="bf16-12"` sends bf16 weights in 12 bits, without loss; the weights then stay in
    ordinary host memory too. `packing="auto"` does so where weights are streamed, shrink, and host
    memory holds both. `experts="routed"` copies only those experts of a layer that its
    router has chosen, and keeps recently used ones on the card: the host waits for each layer's
    routing. Resident weights give way when `pool` is short of memory, and return when there is
    room; the default is the pool that serves PyTorch (integrations.torch.install()), and without
    one they stay. With a process `group` of torch.distributed, each rank copies a share of each
    group of weights over its own link, and the ranks gather the rest; all of them call this, and
    then the model, alike. `progress(done, total)` is called in bytes while weights are laid out;
    without it, a terminal shows a bar for models of 1 GiB and more.

    Inference runs under torch.no_grad() or torch.inference_mode(). To train adapters, freeze the
    other weights before this call: what is trained stays on the card, and backward streams the
    frozen weights once more, in its own order.
    """
    team = None if group is None else Team(imported("torch", "torch"), group)
    with nullcontext() if team is None else team.telling():
        return Offload(
            model,
            budget,
            device=device,
            policy=policy,
            ring=ring,
            keep_below=keep_below,
            whole=whole,
            source=source,
            packing=packing,
            experts=experts,
            pool=pool,
            team=team,
            progress=progress,
        )


class Offload:
    """What offload() returns. While it is open, a parameter outside of its module's forward is the
    one in host memory, or on the card if it is resident: reading it and state_dict() see the right
    values. A parameter that was moved or replaced meanwhile is an error of the next forward."""

    def __init__(
        self,
        model: Any,
        budget: SupportsIndex | str,
        *,
        device: Device | int | None,
        policy: str | Policy,
        ring: int | None,
        keep_below: int,
        whole: Collection[str],
        source: Source | None,
        packing: Literal["off", "bf16-12", "auto"],
        experts: Literal["whole", "routed"],
        pool: Pool | None,
        team: Team | None,
        progress: Progress | None,
    ) -> None:
        torch = imported("torch", "torch")
        if packing not in ("off", "bf16-12", "auto"):
            raise ValueError(f"packing is {packing!r}; it may be 'off', 'bf16-12' or 'auto'")
        if packing == "bf16-12" and source is not None:
            raise ValueError(
                "packing and source cannot be used together: the weights must be in host memory "
                "to be packed; load the model first"
            )
        if experts not in ("whole", "routed"):
            raise ValueError(f"experts is {experts!r}; it may be 'whole' or 'routed'")
        if packing == "bf16-12" and experts == "routed":
            raise ValueError(
                'packing and experts="routed" cannot be used together: single experts are not '
                "packed; choose one of them"
            )
        self._torch, self.model = torch, model
        if team is not None:
            refuse_beside_group(packing, experts, pool, source)
            packing = "off"
        small = integer(keep_below, "keep_below")
        parsed = analyse(
            torch,
            model,
            small=small,
            whole=whole,
            meta=source is not None,
            routed=experts == "routed",
        )
        refuse_second(model)
        self.device = chosen_device(torch, device, parsed)
        is_pool_given = pool is not None
        if team is None and pool is None:
            pool = pool_of_torch(self.device)
        if pool is not None:
            require_pool(pool, self.device)
        self.budget = parse_budget(budget, self.device.memory_info().total)
        kept = sum(-(-weight.nbytes // ALIGNMENT) * ALIGNMENT for weight in parsed.kept)
        if not parsed.groups:
            raise ValueError(
                f"the {type(model).__name__} has only {bytes_text(kept)} of weights, in modules of "
                f"less than {bytes_text(keep_below)}: nothing is worth streaming; use .to(device)"
            )
        if kept >= self.budget:
            raise BudgetError(
                f"budget is {bytes_text(self.budget)}; {bytes_text(kept)} of weights are small, "
                "trained, or held by modules that have parts, and stay on the card; modules that "
                "are named in whole=[...] are streamed with all they hold"
            )
        if source is not None:
            require_meta(parsed)
        self.kept_bytes, self._ring = kept, ring
        self._team = team
        if team is not None:
            facts = {"budget": self.budget, "ring": ring, "policy": policy, "keep_below": small}
            facts |= {"the card's granularity": self.device.granularity}
            if not agree(team, parsed, facts, loaded=source is None):
                self._team, pool = None, pool_of_torch(self.device)
        self._ranks = None if team is None else ranks_text(team, self._team is not None)
        # The first parameter tells other libraries on which device a model is.
        routing = Routing(0, 0)
        if experts == "routed":
            routing = plan_routing(parsed, self.budget - kept, self.device.granularity)
        settings: dict[str, Any] = {
            "budget": self.budget - kept - routing.device_bytes,
            "ring": ring,
            "policy": policy,
            "prefer": [0, *used_together(parsed)],
        }
        layout = self._plan(parsed, settings)  # before anything is mapped
        if not layout.streamed_bytes and experts == "whole":
            given = {"ring": ring is not None, "policy": policy != "auto"}
            given |= {"packing": packing == "bf16-12", "pool": is_pool_given}
            for name in (name for name, is_given in given.items() if is_given):
                raise ValueError(f"{name} has no effect: all weights fit into the budget")
        if packing == "auto" and (source or experts == "routed" or not layout.streamed_bytes):
            packing = "off"
        # Parameters would become inference tensors, which cannot be trained later.
        telling = nullcontext() if team is None else team.telling()
        with torch.inference_mode(False), torch.no_grad(), ExitStack() as undo, telling:
            leave_inference(torch, parsed)
            self._memory: TorchMemory = torch_memory(torch, self.device)
            undo.callback(self._memory.close)
            if team is not None:
                undo.callback(team.leave)
            self._store = self._make_store(parsed, packing, settings)
            undo.callback(self._store.close)
            settings["packings"] = self._store.packings
            if self._team is not None:
                settings["gather"] = undo.enter_context(
                    gather_of(torch, self.device, self._team, self._memory)
                )
            layout = self._plan(parsed, settings)  # before anything is moved
            together = any(
                sum(not layout.resident[number] for number in part.groups) > 1
                for part in parsed.parts
            )
            with shown_progress(self._store.nbytes, progress) as told:
                self._store.fill(source, told)
            timing = self.device.driver.sim is None
            self.manager = WeightManager(
                self.device,
                parsed.groups[: parsed.scheduled],
                self._store.addresses[: parsed.scheduled],
                pool=None if together else pool,
                timing=timing,
                **settings,
            )
            undo.callback(self.manager.close)
            self._fixed_because = self.manager.fixed_because
            if together and pool is not None:
                self._fixed_because = USED_TOGETHER
            if self._team is not None:
                self._fixed_because = OF_ALL_RANKS
            self.experts: ExpertCache | None = None
            if parsed.experts:
                layers = expert_layers(parsed, self._store.addresses)
                self.experts = ExpertCache(self.device, layers, routing.slots, timing=timing)
                undo.callback(self.experts.close)
            self._kept = Kept(parsed.kept, self._memory.device)
            undo.callback(self._kept.restore)
            self._groups = [
                GroupOnCard(self.manager, number, self._store, self._memory, parsed.weights[number])
                for number in range(parsed.scheduled)
            ]
            for group in self._groups:
                undo.callback(group.restore)
                if group.resident:
                    group.settle()
            undo.enter_context(marked(model))
            backward = Backward(torch)
            undo.callback(backward.finish)
            card = self._memory.device
            unstreamed = Unstreamed(parsed, card)
            parts = [
                PartHooks(torch, part, [self._groups[n] for n in part.groups], backward, unstreamed)
                for part in parsed.parts
            ]
            routed = list(self._expert_hooks(parsed, backward, unstreamed, undo))
            parts += routed
            for part in parts:
                undo.enter_context(part)
            self._outside = Outside(torch, card)
            groups = [*self._groups, *(part.group for part in routed)]
            undo.enter_context(self._outside.watched(groups))
            undo.enter_context(
                ModelHooks(torch, model, self._begin_pass, card, backward, parts, unstreamed)
            )
            self._link = self._link_rate()
            self._packed_share = self._sample(parsed)
            if self._team is not None:
                self._team.barrier()  # all ranks are open, or none is
            self._undo = undo.pop_all()

    def _expert_hooks(
        self, model: Model, backward: Backward, unstreamed: Unstreamed, undo: ExitStack
    ) -> Iterator[ExpertHooks]:
        for layer, experts in enumerate(model.experts):
            number = model.scheduled + layer
            assert self.experts is not None and isinstance(self._store, Store)
            group = RoutedGroup(
                self.experts,
                layer,
                model.groups[number].nbytes,
                number,
                self._store,
                self._memory,
                model.weights[number],
            )
            undo.callback(group.restore)
            yield ExpertHooks(
                self._torch, experts, group, backward, unstreamed, self.experts, self.manager
            )

    def _begin_pass(self) -> None:
        if self._team is not None:
            self._team.require_whole()
        self.manager.begin_pass()
        if self.experts is not None:
            self.experts.begin_pass()

    def _make_store(
        self, model: Model, packing: str, settings: dict[str, Any]
    ) -> Store | PackedStore:
        if self._team is not None:
            return SharedStore(self._torch, self.device, model, self._team)
        if packing == "bf16-12":
            return PackedStore(self._torch, self.device, model)
        if packing == "auto":
            packed = packed_if_it_pays(self._torch, self.device, model)
            if packed is not None:
                try:
                    self._plan(model, settings | {"packings": packed.packings})
                except BudgetError:  # no room for the staging
                    packed.close()
                else:
                    return packed
        return Store(self._torch, self.device, model)

    def _plan(self, model: Model, settings: dict[str, Any]) -> Layout:
        """Raises BudgetError."""
        groups = model.groups[: model.scheduled]
        layout = plan_schedule(self.device, groups, **settings).layout
        for part in model.parts:
            for one, other in combinations(part.groups, 2):
                if layout.share_bytes(one, other):
                    raise BudgetError(
                        f"{part.name} uses weights of {model.groups[one]} and of "
                        f"{model.groups[other]} at once, and the ring has no room for both; "
                        "a larger budget, or a larger ring, has"
                    )
        return layout

    def report(self, *, predict: bool = False) -> OffloadReport:
        """Memory, bound, the last pass and what would help. Waits for the work of that pass; call
        it between two passes. `predict`: with what predict() says of it."""
        timed = self.device.driver.sim is None and not self.closed
        last = self.manager.last_pass() if timed else None
        start = self.manager.pass_start if timed else None
        routed = None
        if last is not None and start is not None and self.experts is not None:
            routed = self.experts.last_pass_since(start)
        return make_report(
            device=f"{self.device.name} ({self.device.driver.description})",
            budget=self.budget,
            kept_bytes=self.kept_bytes,
            host_bytes=self._store.nbytes,
            layout=self.manager.layout,
            sent_bytes=self.manager.sent_bytes,
            staging_bytes=self.manager.staging_bytes,
            link_bytes_per_s=self._link,
            last=last,
            counts=self.stats(),
            experts=self.experts,
            routed=routed,
            packed_share=self._packed_share,
            predicted_s=self.predict().pass_s if truth(predict, "predict") else None,
            giving_way=self.manager.giving_way(),
            fixed_because=self._fixed_because,
            ranks=self._ranks,
            outside=self._outside.stats(),
        )

    def timeline(self) -> RecordedPass:
        """What was copied and computed when in the last pass: text(), save_html(), and save() for
        Chrome's trace viewer. Waits for the work of that pass; call it between two passes."""
        timed = self.device.driver.sim is None and not self.closed
        found = measured_pass(self.manager, self.experts) if timed else None
        if found is None:
            raise ValueError(
                "no pass was timed: run one first; on the simulated GPU PyTorch computes on the "
                "host, and there are no times"
            )
        return found

    def predict(
        self,
        profile: str = "h200",
        *,
        seconds: Sequence[float] | None = None,
        gather_bytes_per_s: float | None = None,
    ) -> Prediction:
        """What the planner says of this model in this budget, on a card with that profile.

        The compute time of each group is that of the last pass, or `seconds`. Several ranks need
        `gather_bytes_per_s`, what a card gets from the others. Takes a second or two:
        the engine runs on the simulated GPU, in a process of its own."""
        if self.experts is not None:
            raise ValueError(
                'with experts="routed" a pass depends on what the tokens choose, which nobody can '
                "predict; report() says what the last pass took"
            )
        if isinstance(self._store, PackedStore):
            raise ValueError("the planner knows no packed weights: predict() needs packing='off'")
        layout = self.manager.layout
        if seconds is None:
            timed = self.device.driver.sim is None and not self.closed
            last = self.manager.last_pass() if timed else None
            if last is None:
                raise ValueError("no pass was timed yet; run one, or give seconds for each group")
            used = [0.0] * len(layout.groups)
            for each in last.groups:
                used[each.group] += each.used
            seconds = used
        planned = plan(
            layout.groups,
            self.budget - self.kept_bytes,
            profile=profile,
            policy=self.manager.policy,
            ring=self._ring,
            seconds=seconds,
            ranks=1 if self._team is None else self._team.size,
            gather_bytes_per_s=gather_bytes_per_s,
            compare=False,
        )
        return planned.chosen

    def stats(self) -> WeightStats:
        """Copies and misses so far."""
        return self.manager.stats()

    def _sample(self, model: Model) -> float | None:
        """Which part of a streamed group's bytes packing would leave. Some milliseconds."""
        if isinstance(self._store, PackedStore | SharedStore):
            return None
        low = [
            (weight.nbytes, number, weight)
            for number, weights in enumerate(model.weights[: model.scheduled])
            for weight in weights
            if not self.manager.layout.resident[number]
            and weight.tensor.dtype is self._torch.bfloat16
        ]
        if not low:
            return None
        _, number, weight = max(low, key=lambda each: each[0])
        values = self._store.view(number, weight).as_strided((weight.tensor.numel(),), (1,))
        packing = Packing(memory_of(values[:SAMPLED]))
        return packing.nbytes / packing.plain_nbytes if packing.pays else None

    def _link_rate(self) -> float | None:
        """Bytes a second from pinned memory to where weights go, which holds none yet. A few ms."""
        device, to, room = self.device, self.manager.ring_address, self.manager.layout.ring_bytes
        if not room and self.experts is not None:
            to, room = self.experts.place, self.experts.place_bytes
        nbytes = min(room, self._store.nbytes, LINK_SAMPLE)
        if device.driver.sim is not None or nbytes == 0:
            return None
        target, slab = Span(to, nbytes, "device"), Span(self._store.addresses[0], nbytes, "host")
        with device.stream() as stream, device.event() as begin, device.event() as end:
            device.copy(target, slab, stream=stream)  # warms up
            begin.record(stream)
            device.copy(target, slab, stream=stream)
            end.record(stream)
            end.synchronize()
            return nbytes / end.elapsed_since(begin)

    @property
    def closed(self) -> bool:
        return self.manager.closed

    def close(self) -> None:
        """Wait for the work that uses the weights, and undo it all: parameters, strides, ties,
        flags and hooks are as before. They stay views of one stretch of host memory, which is no
        longer pinned. A second time does nothing."""
        with self._torch.inference_mode(False), self._torch.no_grad():
            self._undo.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self._team is not None and error is not None:
            self._team.fail(error)  # the others need not wait for this rank
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else bytes_text(self.budget)
        return f"<Offload of a {type(self.model).__name__}, {state}>"
