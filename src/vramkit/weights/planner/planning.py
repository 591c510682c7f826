"""plan(): what streaming a model's weights will cost, before the run and without the card."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex

from vramkit.driver.types import integer, number, shown, truth
from vramkit.weights.budget import parse_budget
from vramkit.weights.planner.process import run_in_child
from vramkit.weights.planner.request import Request
from vramkit.weights.planner.result import Plan
from vramkit.weights.planner.shape import ModelShape
from vramkit.weights.planner.source import read_model
from vramkit.weights.schedule import POLICIES, Policy, chosen_policy

DEFAULT_BUDGET = "80%"
"""Of the card; the rest is for activations and caches."""
MOST_TOKENS = 10**9
MOST_RANKS = 1024


def plan(
    model: Any,
    budget: SupportsIndex | str = DEFAULT_BUDGET,
    *,
    profile: str | os.PathLike[str] = "h200",
    tokens: int | None = None,
    batch: int | None = None,
    policy: str | Policy = "auto",
    ring: int | None = None,
    seconds: Sequence[float] | None = None,
    pass_seconds: float | None = None,
    ranks: int = 1,
    gather_bytes_per_s: float | None = None,
    compare: bool = True,
    progress: Callable[[str], object] | None = None,
) -> Plan:
    """Predict passes over a model whose weights are streamed through `budget` of a card.

    `model`: the path of a folder with a transformers config.json or a safetensors checkpoint, of
    one of these files, a torch.nn.Module (the meta device will do), or groups in the order of their
    use. No weights are read. `budget`, `policy` and `ring` are as in offload(). The card is that of
    a profile. A pass is `batch` sequences (default: 1) of `tokens` new tokens (default: 4096).

    How long the model computes follows from the rates of the profile; or from `pass_seconds`, a
    measured pass with all weights on the card, divided among groups in proportion; or `seconds` has
    the time of each group. With several `ranks`, as offload(group=...) has them, each card copies
    a share of the weights over its own link, and gets the others at `gather_bytes_per_s`.
    `compare`: policies, rings and budgets beside the plan, and a timeline.
    `progress(what)` is called as the work goes on.

    The engine itself runs on the simulated GPU, in a process of its own. Raises ValueError, with
    BudgetError and ModelError among them, TypeError, OSError; ModuleNotFoundError where a config
    needs torch and transformers.
    """
    request = make_request(
        model,
        budget,
        profile=profile,
        tokens=tokens,
        batch=batch,
        policy=policy,
        ring=ring,
        seconds=seconds,
        pass_seconds=pass_seconds,
        ranks=ranks,
        gather_bytes_per_s=gather_bytes_per_s,
        compare=compare,
    )
    return run_in_child(request, progress)


def make_request(
    model: Any,
    budget: SupportsIndex | str = DEFAULT_BUDGET,
    *,
    profile: str | os.PathLike[str] = "h200",
    tokens: int | None = None,
    batch: int | None = None,
    policy: str | Policy = "auto",
    ring: int | None = None,
    seconds: Sequence[float] | None = None,
    pass_seconds: float | None = None,
    ranks: int = 1,
    gather_bytes_per_s: float | None = None,
    compare: bool = True,
) -> Request:
    """The arguments of plan(), checked as far as they can be without the card. The model is read
    last: that may take seconds."""
    settings = _settings(budget, profile, tokens, batch, policy, ring, pass_seconds, compare)
    settings |= checked_ranks(ranks, gather_bytes_per_s)
    if seconds is not None and pass_seconds is not None:
        raise ValueError("seconds and pass_seconds exclude each other: give one of them")
    return _request(read_model(model), seconds, settings)


def request_for(
    shape: ModelShape,
    budget: str,
    *,
    profile: str,
    policy: str,
    tokens: int | None,
    batch: int | None,
    ring: int | None,
    seconds: Sequence[float] | None,
    pass_seconds: float | None,
    ranks: int,
    gather_bytes_per_s: float | None,
) -> Request:
    """As make_request(), for a model that has been read, without a comparison."""
    settings = _settings(budget, profile, tokens, batch, policy, ring, pass_seconds, False)
    settings |= checked_ranks(ranks, gather_bytes_per_s)
    return _request(shape, seconds, settings)


def _settings(
    budget: SupportsIndex | str,
    profile: str | os.PathLike[str],
    tokens: int | None,
    batch: int | None,
    policy: str | Policy,
    ring: int | None,
    pass_seconds: float | None,
    compare: bool,
) -> dict[str, Any]:
    parse_budget(budget, 1 << 60)
    chosen = chosen_policy(policy)
    names = [name for name, known in POLICIES.items() if known == chosen]
    return {
        "profile": os.fspath(profile),
        "budget": budget if isinstance(budget, str) else integer(budget, "budget", 1),
        "policy": chosen,
        "policy_name": names[0] if names else "own",
        "ring": None if ring is None else integer(ring, "ring", 1),
        "tokens": None if tokens is None else integer(tokens, "tokens", 1, MOST_TOKENS),
        "batch": None if batch is None else integer(batch, "batch", 1, MOST_TOKENS),
        "pass_seconds": None if pass_seconds is None else _positive(pass_seconds),
        "compare": truth(compare, "compare"),
    }


def checked_ranks(ranks: int, gather_bytes_per_s: float | None) -> dict[str, Any]:
    ranks = integer(ranks, "ranks", 1, MOST_RANKS)
    if ranks == 1 and gather_bytes_per_s is not None:
        raise ValueError("gather_bytes_per_s has no effect with one rank; leave it out")
    if ranks > 1 and gather_bytes_per_s is None:
        raise ValueError(
            f"{ranks} ranks need gather_bytes_per_s, what a card gets from the others: it depends "
            "on how the cards are connected, and a profile does not tell"
        )
    rate = gather_bytes_per_s
    if rate is not None and not number(rate, "gather_bytes_per_s") > 0:
        raise ValueError(f"gather_bytes_per_s is {shown(rate)}; it may be a number above 0")
    return {"ranks": ranks, "gather_bytes_per_s": None if rate is None else float(rate)}


def _request(
    shape: ModelShape, seconds: Sequence[float] | None, settings: dict[str, Any]
) -> Request:
    times = None if seconds is None else _checked(seconds, shape)
    if times is None and settings["pass_seconds"] is None and not shape.arithmetic:
        raise ValueError("groups given by hand need seconds, the compute time of each of them")
    # offload() keeps the first group of a model on the card.
    prefer = (0,) if shape.arithmetic else ()
    return Request(model=shape, seconds=times, prefer=prefer, **settings)


def _checked(seconds: Sequence[float], shape: ModelShape) -> tuple[float, ...]:
    if len(seconds) != len(shape.groups):
        raise ValueError(
            f"there are {len(shape.groups)} groups and {len(seconds)} compute times in seconds"
        )
    return tuple(number(each, "each of seconds") for each in seconds)


def _positive(seconds: float) -> float:
    if not number(seconds, "pass_seconds") > 0:
        raise ValueError(f"pass_seconds is {shown(seconds)}; it may be a number above 0")
    return float(seconds)
