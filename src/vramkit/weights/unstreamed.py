"""What no group has must be on the card while a model is offloaded: small weights, which stay
there, and what others put into the model meanwhile, such as adapters.

Libraries create adapters on the device of the weight beside them, and a streamed weight is in host
memory whenever nobody computes with it. PyTorch's own error then names two devices and no tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from vramkit.weights.model import Model, Weight


class _Tensor(NamedTuple):
    owner: Any
    key: str
    tensor: Any
    is_buffer: bool


class Unstreamed:
    """Made when the small weights are on the card."""

    def __init__(self, model: Model, device: Any) -> None:
        self._model, self._device = model, device
        streamed = [weight for weights in model.weights for weight in weights]
        elsewhere = [weight for weight in model.kept if weight.tensor.device != device]
        self._exempt = {id(_attribute(weight)) for weight in (*streamed, *elsewhere)}
        self._known = {
            (id(owner), key) for weight in (*streamed, *model.kept) for owner, key in weight.owners
        }
        self._calls = 0  # of the model, under way: it has been checked

    @contextmanager
    def checked(self) -> Iterator[None]:
        """A call of the model. Its parts need not be checked once more."""
        self.check(self._model.module)
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1

    def check_part(self, module: Any) -> None:
        """Some call a part, or forward() of the model, and so no hook of the model."""
        if not self._calls:
            self.check(module)

    def check(self, module: Any) -> None:
        """Raises RuntimeError, with a name. Buffers that are new may be anywhere: modules bring
        them along; so may those of one number, which PyTorch takes from the host. Costs a
        millisecond for a model of 80 layers."""
        found = [
            each
            for each in self._elsewhere(module)
            if not each.is_buffer or (self._is_known(each) and each.tensor.ndim > 0)
        ]
        if not found:
            return
        moved = [each for each in found if self._is_known(each)]
        if moved:
            raise RuntimeError(
                f"{self._names(moved)} was moved or replaced while the model is offloaded, and is "
                f"on {moved[0].tensor.device}, not on {self._device}; close the Offload first, "
                "then change the model"
            )
        raise RuntimeError(
            f"{self._names(found)} was added while the model is offloaded, and is on "
            f"{found[0].tensor.device}, not on {self._device}: add adapters before offload(), or "
            f"move them to the card (parameter.data = parameter.data.to({str(self._device)!r})), "
            "without the modules around them"
        )

    def explain(self) -> str | None:
        """What may be behind an error of PyTorch that says there are two devices."""
        found = [each for each in self._elsewhere(self._model.module) if each.is_buffer]
        if not found:
            return None
        return (
            f"The model is offloaded, and the buffer {self._names(found)} is on "
            f"{found[0].tensor.device}, not on {self._device}: move it there if forward uses it."
        )

    def _elsewhere(self, module: Any) -> Iterator[_Tensor]:
        """What is not on the card, but for the weights of groups."""
        for each in module.modules():
            for own, is_buffer in ((each._parameters, False), (each._buffers, True)):
                for key, tensor in own.items():
                    if (
                        tensor is not None
                        and tensor.device != self._device
                        and id(tensor) not in self._exempt
                    ):
                        yield _Tensor(each, key, tensor, is_buffer)

    def _is_known(self, each: _Tensor) -> bool:
        return (id(each.owner), each.key) in self._known

    def _names(self, found: list[_Tensor]) -> str:
        paths = {id(each): path for path, each in self._model.module.named_modules()}
        first = found[0]
        path = paths.get(id(first.owner), "")
        name = f"{path}.{first.key}" if path else first.key
        return f"{name} (and {len(found) - 1} more)" if len(found) > 1 else name


def _attribute(weight: Weight) -> Any:
    """What its modules hold."""
    return weight.tensor if weight.whole is None else weight.whole
