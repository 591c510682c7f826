"""`vramkit plan MODEL`, and a sweep where there are several of something."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vramkit.cli.errors import CommandError, UsageError
from vramkit.cli.lists import names

if TYPE_CHECKING:
    from vramkit.weights import Group
    from vramkit.weights.planner.sweep import Source


def plan(
    *models: str,
    budget: list[str] | None = None,
    profile: list[str] | None = None,
    tokens: int | None = None,
    batch: int | None = None,
    policy: list[str] | None = None,
    ring: str | None = None,
    pass_ms: float | None = None,
    ranks: list[str] | None = None,
    gather_rate: float | None = None,
    layers: list[str] | None = None,
    attn_bytes: str | None = None,
    ffn_bytes: str | None = None,
    attn_ms: float | None = None,
    ffn_ms: float | None = None,
    on: str | None = None,
    workers: int | None = None,
    json: bool = False,
) -> int:
    """Plan a model's weights.

    Parameters
    ----------
    models
        A folder with config.json or *.safetensors, one of these files, or a checkpoint's index.
        With several models, budgets, profiles, policies or ranks there is a table: each with each.
    budget
        Memory of the card for weights: 24GiB, 800MB, 60%; several with commas. Default: 80%.
    profile
        The card: a name or a path to a .toml; several with commas. Default: h200.
    tokens
        New tokens of each sequence in a pass; 1 for a step of decoding. Default: 4096.
    batch
        Sequences in a pass. Default: 1.
    policy
        When weights are copied: auto, or a policy to compare it with; several with commas. Default:
        auto.
    ring
        The most that weights on their way may take of the budget. Default: two layers.
    pass_ms
        A measured pass with all weights on the card, instead of the profile's rates.
    ranks
        Cards that stream the model together, each a share over its own link; several with commas.
        Default: 1.
    gather_rate
        GB/s that a card gets from the others, where there are several.
    layers
        Instead of a model: the number of layers, with the four values below; several with commas.
    attn_bytes
        Weights of a layer's attention.
    ffn_bytes
        Weights of a layer's feed-forward.
    attn_ms
        Compute time of a layer's attention.
    ffn_ms
        Compute time of a layer's feed-forward.
    on
        Where a table is made: ray (the cluster that is there) or ray:ADDRESS. Default: here.
    workers
        Processes that make a table here. Default: as many as there are cores.
    json
        The plan, or the table, as one JSON document.
    """
    from vramkit.weights.budget import parse_bytes
    from vramkit.weights.planner import DEFAULT_BUDGET

    by_hand = {
        "--attn-bytes": attn_bytes,
        "--ffn-bytes": ffn_bytes,
        "--attn-ms": attn_ms,
        "--ffn-ms": ffn_ms,
    }
    options: dict[str, Any] = {"tokens": tokens, "batch": batch}
    try:
        if ring is not None:
            options["ring"] = parse_bytes(ring, "--ring")
        if pass_ms is not None:
            if not pass_ms > 0:
                raise UsageError(f"--pass-ms is {pass_ms}; it may be a number above 0")
            options["pass_seconds"] = pass_ms / 1e3
        sources = _sources(models, layers, pass_ms, by_hand)
        budgets = _several("--budget", budget, DEFAULT_BUDGET)
        profiles = _several("--profile", profile, "h200")
        policies = _several("--policy", policy, "auto")
        counts = _ranks(ranks)
        if gather_rate is not None:
            options["gather_bytes_per_s"] = gather_rate * 1e9
        several = any(len(axis) > 1 for axis in (sources, budgets, profiles, policies, counts))
        if not several and (on is not None or workers is not None):
            option = "--on" if on is not None else "--workers"
            raise UsageError(
                f"{option} is for a table: several models, budgets, cards, policies or ranks"
            )
        if not several:
            options["ranks"] = counts[0]
            return _plan(sources[0], budgets[0], profiles[0], policies[0], options, json)
        from vramkit.cli.plan_sweep import sweep
        from vramkit.weights.planner.sweep import Grid

        grid = Grid(tuple(sources), profiles, budgets, policies, counts, **options)
        return sweep(grid, on, workers, json)
    except UsageError:
        raise
    except ModuleNotFoundError as error:
        raise CommandError(str(error), 1) from error
    except ValueError as error:
        raise UsageError(str(error)) from error


def _plan(
    source: Source, budget: str, profile: str, policy: str, options: dict[str, Any], json: bool
) -> int:
    from vramkit.cli.console import output, print_json, progress
    from vramkit.weights import plan as make_plan
    from vramkit.weights.planner.words import print_plan

    with progress() as tell:
        tell("reading the model")
        made = make_plan(
            list(source.groups) or source.name,
            budget,
            profile=profile,
            policy=policy,
            seconds=source.seconds,
            progress=tell,
            **options,
        )
    if json:
        print_json(made)
    else:
        print_plan(output(), made)
    return 0


def _several(option: str, given: list[str] | None, default: str) -> tuple[str, ...]:
    if given is None:
        return (default,)
    if found := names(given):
        return tuple(found)
    raise UsageError(
        f"{option} is {','.join(given)!r}; it may be one value, or several with commas"
    )


def _ranks(given: list[str] | None) -> tuple[int, ...]:
    texts = _several("--ranks", given, "1")
    if wrong := next((each for each in texts if not each.isdecimal()), None):
        raise UsageError(f"--ranks is {wrong}; it may be a number of cards, from 1 on")
    return tuple(int(each) for each in texts)


def _sources(
    models: tuple[str, ...],
    layers: list[str] | None,
    pass_ms: float | None,
    by_hand: dict[str, Any],
) -> list[Source]:
    from vramkit.weights.planner.sweep import Source

    if layers is None and all(value is None for value in by_hand.values()):
        if not models:
            raise UsageError(
                f"plan needs a model: vramkit plan FOLDER, or --layers with {_names(by_hand)}"
            )
        return [Source(model) for model in models]
    if models or pass_ms is not None:
        other = "a model" if models else "--pass-ms"
        raise UsageError(f"{other} and layers by hand ({_names(by_hand)}) exclude each other")
    missing = [name for name, value in {"--layers": layers, **by_hand}.items() if value is None]
    if missing:
        raise UsageError(
            f"layers by hand need --layers, {_names(by_hand)}; missing: {', '.join(missing)}"
        )
    found = []
    for text in _several("--layers", layers, ""):
        groups, seconds = _by_hand(text, by_hand)
        found.append(Source(f"{text} layers", tuple(groups), tuple(seconds)))
    return found


def _names(by_hand: dict[str, Any]) -> str:
    *others, last = by_hand
    return f"{', '.join(others)} and {last}"


def _by_hand(text: str, by_hand: dict[str, Any]) -> tuple[list[Group], list[float]]:
    from vramkit.weights import Group
    from vramkit.weights.budget import parse_bytes

    layers = int(text) if text.isdecimal() else 0
    if not 1 <= layers <= 10_000:
        raise UsageError(f"--layers is {text}; it may be 1 to 10000")
    groups, seconds = [], []
    sizes = {
        name: parse_bytes(by_hand[f"--{name}-bytes"], f"--{name}-bytes") for name in ("attn", "ffn")
    }
    for layer in range(layers):
        for name, nbytes in sizes.items():
            if by_hand[f"--{name}-ms"] < 0:
                raise UsageError(f"--{name}-ms is {by_hand[f'--{name}-ms']}; it may be 0 or more")
            groups.append(Group(layer, name, nbytes))
            seconds.append(by_hand[f"--{name}-ms"] / 1e3)
    return groups, seconds
