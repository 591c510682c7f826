"""The plan beside its alternatives: other policies, rings and budgets."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from vramkit.report.blocks import Timeline
from vramkit.weights.budget import parse_budget
from vramkit.weights.planner.predict import Engine
from vramkit.weights.planner.request import Request
from vramkit.weights.planner.result import SAME, Plan, Prediction, Refused
from vramkit.weights.planner.shape import aligned
from vramkit.weights.planner.verdict import MORE, verdict
from vramkit.weights.schedule import POLICIES

RINGS = (0.5, 1, 1.5, 2, 3, 4, 6)
"""Sizes tried, in largest layers; two is what a ring has by itself."""
STEPS = 6
"""Budgets between a ring of two layers and all resident."""


def make_plan(request: Request, tell: Callable[[str], None]) -> Plan:
    """Raises ValueError, BudgetError."""
    with Engine(request) as engine:
        return _plan(engine, tell)


def _plan(engine: Engine, tell: Callable[[str], None]) -> Plan:
    request, model, settings = engine.request, engine.model, engine.settings
    budget = parse_budget(request.budget, engine.memory)
    tell("the plan")
    chosen = engine.run(budget, ring=request.ring)
    policies: list[Prediction | Refused] = []
    splits: list[Prediction] = []
    budgets: list[Prediction] = []
    timeline: Timeline | None = None
    if request.compare:
        policies = list(_policies(engine, budget, chosen, tell))
        if request.policy.depth is None:
            splits = _splits(engine, budget, chosen, tell)
        budgets = _budgets(engine, chosen, tell)
        if chosen.streamed_bytes:
            tell("the timeline")
            timeline = engine.record(chosen)
    by_tokens = engine.compute_from != "given" and engine.rates is not None and model.arithmetic
    return Plan(
        profile=settings.profile,
        card=engine.device.name,
        link_bytes_per_s=settings.host_to_device_bytes_per_s,
        model=model.source,
        notes=model.notes,
        layers=len({group.layer for group in model.groups}),
        groups=len(model.groups),
        weight_bytes=sum(group.nbytes for group in model.groups) + model.kept_bytes,
        tokens=engine.tokens if by_tokens else None,
        batch=engine.batch if by_tokens else None,
        compute_from=engine.compute_from,
        rates=engine.rates if by_tokens else None,
        gather_bytes_per_s=request.gather_bytes_per_s,
        verdict=verdict(engine, chosen),
        chosen=chosen,
        policies=tuple(policies),
        splits=tuple(splits),
        best_split=_best(splits, chosen),
        budgets=tuple(budgets),
        timeline=timeline,
    )


def _policies(
    engine: Engine, budget: int, chosen: Prediction, tell: Callable[[str], None]
) -> Iterator[Prediction | Refused]:
    if not chosen.streamed_bytes:
        return  # nothing is copied, whatever the policy
    names = {group.name for group in engine.model.groups}
    for name, policy in POLICIES.items():
        tell(f"policy {name}")
        if name == chosen.policy:
            yield chosen
        elif policy.issue_at and not names & policy.issue_at.keys():
            yield Refused(name, "it is for groups attn and ffn, and the model has none")
        else:
            try:
                yield engine.run(budget, policy=policy, policy_name=name)
            except ValueError as error:
                yield Refused(name, str(error))


def _splits(
    engine: Engine, budget: int, chosen: Prediction, tell: Callable[[str], None]
) -> list[Prediction]:
    if not chosen.streamed_bytes:
        return []
    layer = _largest_layer(engine)
    found = {chosen.ring_bytes: chosen}
    for times in RINGS:
        ring = int(times * layer)
        if ring >= budget:
            break  # as large as the budget allows has been tried, or is what was chosen
        tell(f"a ring of {times} layers")
        try:
            tried = engine.run(budget, ring=ring)
        except ValueError:
            continue  # smaller than the largest group
        found.setdefault(tried.ring_bytes, tried)
    return [found[ring] for ring in sorted(found)]


def _best(splits: list[Prediction], chosen: Prediction) -> int | None:
    """The one to take: `chosen`, unless another one saves more than nothing."""
    if not splits:
        return None
    least = min(split.pass_s for split in splits)
    if chosen.pass_s <= least * (1 + SAME):
        return splits.index(chosen)
    return next(n for n, split in enumerate(splits) if split.pass_s <= least * (1 + SAME))


def _budgets(engine: Engine, chosen: Prediction, tell: Callable[[str], None]) -> list[Prediction]:
    found = {}
    for budget in _points(engine, chosen.budget):
        tell(f"a budget of {budget / (1 << 30):.1f} GiB")
        try:
            same = budget == chosen.budget
            found[budget] = chosen if same else engine.run(budget, ring=engine.request.ring)
        except ValueError:
            continue  # less than the policy's depth needs, or more than the card has
    return list(found.values())


def _points(engine: Engine, given: int) -> list[int]:
    groups, kept = engine.model.groups, engine.model.kept_bytes
    unit = engine.device.granularity

    def rounded(nbytes: float) -> int:
        return -(-int(nbytes) // unit) * unit

    least = rounded(max(group.nbytes for group in groups)) + kept
    overlap = rounded(2 * _largest_layer(engine)) + kept
    whole = rounded(aligned([group.nbytes for group in groups])) + kept
    steps = [overlap + (whole - overlap) * step / STEPS for step in range(STEPS)]
    inside = {least, *(rounded(each) for each in steps), given, given + MORE}
    return sorted({each for each in inside if least <= each < whole} | {whole})


def _largest_layer(engine: Engine) -> int:
    layers: dict[int, int] = {}
    for group in engine.model.groups:
        layers[group.layer] = layers.get(group.layer, 0) + group.nbytes
    return max(layers.values())
