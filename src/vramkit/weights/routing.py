"""What the experts of a model take of a budget."""

from __future__ import annotations

from typing import NamedTuple

from vramkit.report.units import bytes_text
from vramkit.weights.experts import ExpertLayer, Rows, place_size, slot_size
from vramkit.weights.layout import ALIGNMENT, BudgetError
from vramkit.weights.model import Model


class Routing(NamedTuple):
    """`slots` for experts that stay on the card, and the bytes of these and of the place."""

    slots: int
    device_bytes: int


def expert_layers(model: Model, addresses: list[int] | None = None) -> list[ExpertLayer]:
    """`addresses` are those of all groups in host memory."""
    layers = []
    for number, experts in enumerate(model.experts, start=model.scheduled):
        rows = (
            Rows(weight.offset, weight.nbytes // experts.number) for weight in model.weights[number]
        )
        source = 0 if addresses is None else addresses[number]
        layers.append(ExpertLayer(source, model.groups[number].nbytes, experts.number, tuple(rows)))
    return layers


def plan_routing(model: Model, budget: int, granularity: int) -> Routing:
    """Weights that every token uses come first: slots take what those leave, were they resident.

    Raises BudgetError, and ValueError where routing would change nothing.
    """
    if not model.experts:
        raise ValueError(
            'experts="routed" has no effect: no module of the model has one row of weights for '
            "each expert and is told which of them to use (top_k_index, as in transformers 5)"
        )
    if not model.scheduled:
        raise ValueError(
            'experts="routed" needs other weights than experts: what is left of the model is too '
            "small to be streamed; with a smaller keep_below it would be"
        )
    layers = expert_layers(model)

    def rounded(nbytes: int) -> int:
        return -(-nbytes // granularity) * granularity

    place, slot = rounded(place_size(layers)), slot_size(layers)
    others = rounded(
        sum(-(-g.nbytes // ALIGNMENT) * ALIGNMENT for g in model.groups[: model.scheduled])
    )
    if others + rounded(sum(layer.nbytes for layer in layers)) <= budget:
        raise ValueError('experts="routed" has no effect: all weights fit into the budget')
    if place >= budget:
        raise BudgetError(
            f"{bytes_text(budget)} of the budget are left for weights that are streamed; the "
            f"experts of one layer take {bytes_text(place)}, and the other weights "
            f"{bytes_text(others)} or a ring"
        )
    every = sum(layer.experts for layer in layers)
    slots = max(0, min(every, (budget - place - others) // slot))
    while slots and place + others + rounded(slots * slot) > budget:
        slots -= 1
    return Routing(slots, place + rounded(slots * slot))
