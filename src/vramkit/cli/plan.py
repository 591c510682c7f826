"""`vramkit plan MODEL`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vramkit.cli.errors import CommandError, UsageError

if TYPE_CHECKING:
    from vramkit.weights import Group


def plan(
    model: str | None = None,
    /,
    *,
    budget: str | None = None,
    profile: str = "h200",
    tokens: int | None = None,
    batch: int | None = None,
    policy: str = "auto",
    ring: str | None = None,
    pass_ms: float | None = None,
    layers: int | None = None,
    attn_bytes: str | None = None,
    ffn_bytes: str | None = None,
    attn_ms: float | None = None,
    ffn_ms: float | None = None,
    json: bool = False,
) -> int:
    """Plan a model's weights.

    Parameters
    ----------
    model
        A folder with config.json or *.safetensors, one of these files, or a checkpoint's index.
    budget
        Memory of the card for weights: 24GiB, 800MB, 60%. Default: 80%.
    profile
        The card: a name or a path to a .toml. Default: h200.
    tokens
        New tokens of each sequence in a pass; 1 for a step of decoding. Default: 4096.
    batch
        Sequences in a pass. Default: 1.
    policy
        When weights are copied: auto, or a policy to compare it with. Default: auto.
    ring
        The most that weights on their way may take of the budget. Default: two layers.
    pass_ms
        A measured pass with all weights on the card, instead of the profile's rates.
    layers
        Instead of a model: the number of layers, with the four values below.
    attn_bytes
        Weights of a layer's attention.
    ffn_bytes
        Weights of a layer's feed-forward.
    attn_ms
        Compute time of a layer's attention.
    ffn_ms
        Compute time of a layer's feed-forward.
    json
        The plan as one JSON document.
    """
    from vramkit.cli.console import output, print_json, progress
    from vramkit.weights import plan as make_plan
    from vramkit.weights.budget import parse_bytes
    from vramkit.weights.planner.words import print_plan

    options: dict[str, Any] = {"tokens": tokens, "batch": batch}
    by_hand = {
        "--layers": layers,
        "--attn-bytes": attn_bytes,
        "--ffn-bytes": ffn_bytes,
        "--attn-ms": attn_ms,
        "--ffn-ms": ffn_ms,
    }
    try:
        if budget is not None:
            options["budget"] = budget
        if ring is not None:
            options["ring"] = parse_bytes(ring, "--ring")
        if pass_ms is not None:
            if not pass_ms > 0:
                raise UsageError(f"--pass-ms is {pass_ms}; it may be a number above 0")
            options["pass_seconds"] = pass_ms / 1e3
        source: Any = model
        if any(value is not None for value in by_hand.values()):
            source, options["seconds"] = _by_hand(model, pass_ms, by_hand)
        elif model is None:
            raise UsageError(
                "plan needs a model: vramkit plan FOLDER, or --layers with " + _names(by_hand)
            )
        with progress() as tell:
            tell("reading the model")
            made = make_plan(source, profile=profile, policy=policy, progress=tell, **options)
    except UsageError:
        raise
    except ModuleNotFoundError as error:
        raise CommandError(str(error), 1) from error
    except ValueError as error:
        raise UsageError(str(error)) from error
    if json:
        print_json(made)
    else:
        print_plan(output(), made)
    return 0


def _names(by_hand: dict[str, Any]) -> str:
    *others, last = [name for name in by_hand if name != "--layers"]
    return f"{', '.join(others)} and {last}"


def _by_hand(
    model: str | None, pass_ms: float | None, by_hand: dict[str, Any]
) -> tuple[list[Group], list[float]]:
    from vramkit.weights import Group
    from vramkit.weights.budget import parse_bytes

    if model is not None or pass_ms is not None:
        other = "a model" if model is not None else "--pass-ms"
        raise UsageError(f"{other} and layers by hand ({_names(by_hand)}) exclude each other")
    if missing := [name for name, value in by_hand.items() if value is None]:
        raise UsageError(
            f"layers by hand need --layers, {_names(by_hand)}; missing: {', '.join(missing)}"
        )
    layers = by_hand["--layers"]
    if not 1 <= layers <= 10_000:
        raise UsageError(f"--layers is {layers}; it may be 1 to 10000")
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
