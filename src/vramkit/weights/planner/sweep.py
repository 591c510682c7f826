"""Plans for a grid of models, cards, budgets, policies and ranks, in any place that runs tasks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import msgspec

from vramkit.sweep import Batch, Done, Failed, Place, PlaceError, Stopped, Task, batches
from vramkit.sweep.run import run
from vramkit.sweep.tasks import Ended
from vramkit.weights.budget import parse_budget
from vramkit.weights.layout import Group
from vramkit.weights.planner.compare import make_plan
from vramkit.weights.planner.planning import checked_ranks, request_for
from vramkit.weights.planner.profile_files import ProfileFiles, read_profile
from vramkit.weights.planner.result import Prediction
from vramkit.weights.planner.shape import ModelShape
from vramkit.weights.planner.source import read_model
from vramkit.weights.planner.sweep_result import Model, PlanSweep, Row, mark_best
from vramkit.weights.schedule import chosen_policy

WORK = "vramkit.weights.planner.sweep:planning"
BATCH = 32
"""Plans for a worker at a time: tenths of a second, beside which handing them out is little."""


class Source(msgspec.Struct, frozen=True):
    """A model of the grid: a path, or groups with the time of each."""

    name: str
    groups: tuple[Group, ...] = ()
    seconds: tuple[float, ...] | None = None


class Grid(msgspec.Struct, frozen=True):
    """Every model is planned for every card, budget, policy and number of ranks. The rest is as for
    plan()."""

    models: tuple[Source, ...]
    profiles: tuple[str, ...] = ("h200",)
    budgets: tuple[str, ...] = ("80%",)
    policies: tuple[str, ...] = ("auto",)
    ranks: tuple[int, ...] = (1,)
    gather_bytes_per_s: float | None = None
    """Where there are several ranks."""
    tokens: int | None = None
    batch: int | None = None
    ring: int | None = None
    pass_seconds: float | None = None

    def rows(self) -> list[Row]:
        axes = ([each.name for each in self.models], self.profiles, self.budgets, self.policies)
        return [Row(*cell, ranks=ranks) for cell in product(*axes) for ranks in self.ranks]

    def check(self) -> None:
        """What needs no model and no card. Raises ValueError for wrong texts, and for a value that
        is there twice."""
        for axis in (self.profiles, self.budgets, self.policies, [m.name for m in self.models]):
            _refuse_twice(axis)
        _refuse_twice(self.ranks)
        checked_ranks(max(self.ranks), self.gather_bytes_per_s)
        for budget in self.budgets:
            parse_budget(budget, 1 << 60)
        for policy in self.policies:
            chosen_policy(policy)


def _refuse_twice(axis: Sequence[object]) -> None:
    if twice := next((each for each in axis if list(axis).count(each) > 1), None):
        raise ValueError(f"{twice} is given twice")


# In a worker


class _Common(msgspec.Struct, frozen=True):
    shape: ModelShape
    seconds: tuple[float, ...] | None
    profiles: dict[str, ProfileFiles]
    tokens: int | None
    batch: int | None
    ring: int | None
    pass_seconds: float | None
    gather_bytes_per_s: float | None


class _Cell(msgspec.Struct, frozen=True):
    profile: str
    budget: str
    policy: str
    ranks: int


class _Made(msgspec.Struct, frozen=True):
    """`why` there is no plan."""

    card: str = ""
    plan: Prediction | None = None
    why: str = ""


def planning(common: bytes) -> Callable[[bytes], bytes]:
    """The simulated GPU is fresh for each plan, and forgets what the environment says of it: a plan
    depends on nothing but its cell."""
    os.environ.pop("VRAMKIT_SIM", None)
    shared = msgspec.json.decode(common, type=_Common)

    def one(given: bytes) -> bytes:
        return msgspec.json.encode(_made(shared, msgspec.json.decode(given, type=_Cell)))

    return one


def _made(shared: _Common, cell: _Cell) -> _Made:
    try:
        with shared.profiles[cell.profile].written() as profile:
            request = request_for(
                shared.shape,
                cell.budget,
                profile=profile,
                policy=cell.policy,
                tokens=shared.tokens,
                batch=shared.batch,
                ring=shared.ring,
                seconds=shared.seconds,
                pass_seconds=shared.pass_seconds,
                ranks=cell.ranks,
                gather_bytes_per_s=shared.gather_bytes_per_s if cell.ranks > 1 else None,
            )
            made = make_plan(request, lambda what: None)
    except ValueError as error:
        return _Made(why=" ".join(str(error).split()))
    return _Made(made.card, made.chosen)


# Where the sweep is


def plan_sweep(
    grid: Grid,
    place: Place,
    *,
    check: Callable[[], None] = lambda: None,
    hurry: Callable[[], bool] = lambda: False,
    again: Callable[[Task, str], None] = lambda task, why: None,
    tell: Callable[[str], object] = lambda what: None,
    row: Callable[[Row, int], object] = lambda row, done: None,
) -> PlanSweep:
    """All plans of the grid, in its order. `row` is called for each as it comes, with their number;
    `check`, `again` and `hurry` are those of sweep.run.

    A model that cannot be read, a plan that is refused, and one that was lost again and again are
    rows that say so. Ends early where `check` raises Stopped or the place fails, with what there
    is. Raises ValueError or OSError for a grid that is wrong, before anything runs.
    """
    grid.check()
    profiles = {each: read_profile(each) for each in grid.profiles}
    models, shapes = _read(grid.models, tell)
    found = PlanSweep(models, grid.rows())
    unread = {model.model: model.why for model in models if model.why}
    for each in found.rows:
        if each.model in unread:
            each.outcome, each.why = "failed", unread[each.model]
    try:
        work = list(_batches(grid, found.rows, shapes, profiles, place))
        failed = sum(each.model in unread for each in found.rows)
        ends = run(work, place, check=check, again=again, hurry=hurry)
        for done, ended in enumerate(ends, failed + 1):
            _fill(found.rows[ended.number], ended)
            row(found.rows[ended.number], done)
    except (Stopped, PlaceError) as why:
        found.stopped = str(why)
    mark_best(found.rows)
    return found


def _read(
    sources: Sequence[Source], tell: Callable[[str], object]
) -> tuple[list[Model], dict[str, tuple[Source, ModelShape]]]:
    models, shapes = [], {}
    for source in sources:
        tell(f"reading {source.name}")
        try:
            shape = read_model(list(source.groups) or source.name)
        except (ValueError, TypeError, OSError, ModuleNotFoundError) as error:
            models.append(Model(source.name, why=" ".join(str(error).split())))
            continue
        shapes[source.name] = source, shape
        models.append(
            Model(
                source.name,
                shape.source,
                len({group.layer for group in shape.groups}),
                len(shape.groups),
                sum(group.nbytes for group in shape.groups) + shape.kept_bytes,
                shape.notes,
            )
        )
    return models, shapes


def _batches(
    grid: Grid,
    rows: Sequence[Row],
    shapes: Mapping[str, tuple[Source, ModelShape]],
    profiles: dict[str, ProfileFiles],
    place: Place,
) -> Iterator[Batch]:
    """Each of one model; small enough that all workers have some, and end at the same time."""
    size = max(1, min(BATCH, len(rows) // (4 * place.workers())))
    for name, (source, shape) in shapes.items():
        common = _Common(
            shape,
            source.seconds,
            profiles,
            grid.tokens,
            grid.batch,
            grid.ring,
            grid.pass_seconds,
            grid.gather_bytes_per_s,
        )
        tasks = [
            Task(number, _raw(_Cell(row.profile, row.budget, row.policy, row.ranks)))
            for number, row in enumerate(rows)
            if row.model == name
        ]
        yield from batches(WORK, _raw(common), tasks, size)


def _raw(document: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(document))


def _fill(row: Row, ended: Ended) -> None:
    if not isinstance(ended, Done):
        row.outcome = "failed" if isinstance(ended, Failed) else "lost"
        row.why = ended.why
        return
    made = msgspec.json.decode(ended.value, type=_Made)
    row.card, row.plan, row.why = made.card, made.plan, made.why
    row.outcome = "refused" if made.plan is None else "planned"
