"""Checks of a model before it is offloaded, and what is made ready for it."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import vramkit.driver
from vramkit.driver.types import integer, shown
from vramkit.weights.model import Model

if TYPE_CHECKING:
    from vramkit.driver import Device

_offloaded: weakref.WeakSet[Any] = weakref.WeakSet()  # modules


def chosen_device(torch: Any, device: Device | int | None, model: Model) -> Device:
    """The one that is given, else the card that has the model, else PyTorch's current one."""
    if isinstance(device, vramkit.driver.Device):
        return device
    if device is not None and not hasattr(type(device), "__index__"):
        raise TypeError(
            f"device is {shown(device)}; it may be None, a number, or a Device of vramkit.driver"
        )
    driver = vramkit.driver.open()
    if device is not None:
        return driver.device(integer(device, "device"))
    if driver.sim is not None:  # PyTorch knows nothing of its devices
        return driver.device()
    cards = _cards(model)
    if len(cards) > 1:
        listed = " and ".join(f"cuda:{ordinal} ({cards[ordinal]})" for ordinal in sorted(cards))
        raise ValueError(
            f"the model has weights on several cards: {listed}; give device=, the card that shall "
            "compute"
        )
    if cards:
        return driver.device(next(iter(cards)))
    # Without CUDA, PyTorch's memory on the card is refused in its own words.
    return driver.device(torch.cuda.current_device() if torch.cuda.is_available() else 0)


def _cards(model: Model) -> dict[int, str]:
    """Those that have weights, each with the name of one."""
    cards: dict[int, str] = {}
    for weights in (model.kept, *model.weights):
        for weight in weights:
            if weight.tensor.device.type == "cuda":
                cards.setdefault(weight.tensor.device.index, weight.names[0])
    return cards


def used_together(model: Model) -> list[int]:
    """Groups of parts that use several, by ties: residents are never in each other's way."""
    return [group for part in model.parts if len(part.groups) > 1 for group in part.groups]


def leave_inference(torch: Any, model: Model) -> None:
    """Inference tensors cannot show other memory: each becomes an ordinary one, the same object."""
    for weight in (*model.kept, *(weight for weights in model.weights for weight in weights)):
        if weight.tensor.is_inference():
            value = weight.tensor.clone()
            if not weight.is_buffer and weight.whole is None:
                value = torch.nn.Parameter(value, requires_grad=weight.tensor.requires_grad)
            torch.utils.swap_tensors(weight.tensor, value)


def require_meta(model: Model) -> None:
    """A source that would not be used is an error."""
    for weights in model.weights:
        for weight in weights:
            if not weight.tensor.is_meta:
                raise ValueError(
                    f"source has no effect: {weight.names[0]} has its values already; build the "
                    'model with torch.device("meta") to load it by offload()'
                )


def refuse_second(model: Any) -> None:
    for module in model.modules():
        if module in _offloaded:
            which = "this model" if module is model else f"its part {type(module).__name__}"
            raise ValueError(f"{which} is offloaded already; close that Offload first")


@contextmanager
def marked(model: Any) -> Iterator[None]:
    """It is offloaded meanwhile."""
    _offloaded.add(model)
    try:
        yield
    finally:
        _offloaded.discard(model)
