"""What the ranks of a group must agree on before they stream a model together."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from vramkit.host.pages import default_threads
from vramkit.weights.model import Model, Weight
from vramkit.weights.store import memory_of
from vramkit.weights.team import Team


def require_same_model(team: Team, model: Model) -> None:
    """Collective. Raises ValueError, the same on all ranks, if they have other modules or weights
    by other names."""
    names = [
        [f"{group}: {weight.names[0]}" for weight in weights]
        for group, weights in zip(model.groups, model.weights, strict=True)
    ]
    flat = [name for each in names for name in each]
    every = team.exchange(flat)
    for rank, theirs in enumerate(every):
        for one, other in zip(every[0], theirs, strict=False):
            if one != other:
                raise ValueError(
                    f"the ranks have different models: rank 0 has {one}, rank {rank} has {other}"
                )
        if len(theirs) != len(every[0]):
            raise ValueError(
                f"the ranks have different models: rank 0 has {len(every[0])} weights to stream, "
                f"rank {rank} has {len(theirs)}"
            )


def hold_the_same(team: Team, model: Model, *, loaded: bool) -> bool:
    """Collective. Whether all ranks have the same weights, bit for bit. Else the model is split
    between them already. `loaded`: the weights have their values."""
    shapes = [
        [str(weight.tensor.dtype), list(weight.tensor.shape), list(weight.tensor.stride())]
        for weights in model.weights
        for weight in weights
    ]
    if any(theirs != shapes for theirs in team.exchange(shapes)):
        return False
    if not loaded:
        return True
    with team.telling():
        mine = digests(model.weights)
    return all(theirs == mine for theirs in team.exchange(mine))


def digests(groups: Iterable[Sequence[Weight]]) -> list[str]:
    """Of the bytes of the weights of each group."""

    def of_group(weights: Sequence[Weight]) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for weight in weights:
            flat = weight.tensor.detach().as_strided((weight.tensor.numel(),), (1,)).cpu()
            digest.update(memory_of(flat))
        return digest.hexdigest()

    # hashlib lets other threads run meanwhile.
    with ThreadPoolExecutor(default_threads()) as pool:
        return list(pool.map(of_group, groups))


def require_same_settings(team: Team, settings: Mapping[str, object]) -> None:
    """Collective. Raises ValueError, the same on all ranks, which names the setting."""
    every = team.exchange({name: str(value) for name, value in settings.items()})
    for name in settings:
        for rank, theirs in enumerate(every):
            if theirs[name] != every[0][name]:
                raise ValueError(
                    f"{name} must be the same on all ranks: it is {every[0][name]} on rank 0 and "
                    f"{theirs[name]} on rank {rank}"
                )


def agree(team: Team, model: Model, settings: Mapping[str, object], *, loaded: bool) -> bool:
    """Collective. Whether the ranks share the work: they have the same weights, in the same
    settings. False: the model is split between them already, and each streams its own part.
    `loaded`: the weights have their values. Raises ValueError, the same on all ranks."""
    require_same_model(team, model)
    if not hold_the_same(team, model, loaded=loaded):
        return False
    require_same_settings(team, settings)
    return True


def refuse_beside_group(packing: str, experts: str, pool: object, source: object) -> None:
    """Raises ValueError for settings by which ranks would differ from each other. Packing that is
    chosen automatically is off."""
    refused = [
        ("packing", packing == "bf16-12", "packed weights are not gathered"),
        ("experts", experts == "routed", "the tokens of each rank choose other experts"),
        ("pool", pool is not None, "residents would give way on one rank and not on another"),
        (
            "source",
            callable(source),
            "a function would load the model into one memory from every rank; a path is read by "
            "all of them together",
        ),
    ]
    for name, is_given, why in refused:
        if is_given:
            raise ValueError(f"{name} and group cannot be used together: {why}")


def ranks_text(team: Team, share: bool) -> str:
    """For a report."""
    here = f"rank {team.rank} of {team.size}"
    if not share:
        return f"{here}; the ranks have different weights, and each streams its own"
    nodes = len({member.node for member in team.members})
    copies = f"{nodes} copies" if nodes > 1 else "one copy"
    how = "by nccl" if team.on_cards else "through host memory"
    return (
        f"{here}; each copies its share, and gathers the others {how}; {copies} of the weights in "
        "host memory"
    )
