"""Hooks around the forward of a model and of its parts, each in a with statement."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple, Self

from vramkit.driver.types import SupportsCudaStream
from vramkit.weights.backward import Backward
from vramkit.weights.group_on_card import GroupOnCard
from vramkit.weights.manager import WeightManager
from vramkit.weights.model import Part


class PartHooks:
    """Around a part: its groups are on the card while it computes."""

    def __init__(
        self, torch: Any, part: Part, groups: Sequence[GroupOnCard], backward: Backward
    ) -> None:
        self._torch, self._part, self._groups, self._backward = torch, part, groups, backward
        self._streamed = [group for group in groups if not group.resident]
        self.name, self.was_called = part.name, False
        self._calls: list[_Call] = []  # under way

    def __enter__(self) -> Self:
        module = self._part.module
        self._compiled = module._compiled_call_impl
        if self._compiled is not None:
            # Hooks would be compiled with it.
            module._compiled_call_impl = self._call_compiled
            return self
        self._handles = [
            module.register_forward_pre_hook(self._before, prepend=True),
            module.register_forward_hook(self._after, always_call=True),
        ]
        return self

    def __exit__(self, *args: object) -> None:
        if self._compiled is not None:
            self._part.module._compiled_call_impl = self._compiled
            return
        for handle in self._handles:
            handle.remove()

    def _call_compiled(self, *arguments: Any, **keywords: Any) -> Any:
        self._before(None, arguments)
        try:
            return self._compiled(*arguments, **keywords)
        finally:
            self._after(None, arguments, None)

    def _before(self, module: Any, arguments: Any) -> None:
        self.was_called = True
        call = _Call([], ExitStack())
        self._calls.append(call)
        _refuse_freezing()
        if self._streamed and self._torch.is_grad_enabled():
            for group in self._streamed:
                group.require_frozen()
        for group in self._groups:
            call.begun.append((group, group.begin()))
        if self._streamed and self._torch.is_grad_enabled():
            call.saving.enter_context(self._backward.saved_tensors(self._streamed))

    def _after(self, module: Any, arguments: Any, result: Any) -> None:
        """Also if forward, or a hook before it, has raised."""
        if not self._calls:
            return
        call = self._calls.pop()
        call.saving.close()
        for group, stream in call.begun:
            group.end(stream)


def _refuse_freezing() -> None:
    """Inductor would take the weights that are in the ring while it compiles for constants."""
    config = sys.modules.get("torch._inductor.config")
    if config is not None and config.freezing:
        raise RuntimeError(
            "torch._inductor.config.freezing is on: compiled code would keep the weights of one "
            "layer for all; turn it off while the model is offloaded"
        )


# Code that is compiled around a part stops here: torch.compiler.disable() without its import.
PartHooks._before._torchdynamo_disable = True  # type: ignore[attr-defined]
PartHooks._after._torchdynamo_disable = True  # type: ignore[attr-defined]


class _Call(NamedTuple):
    begun: list[tuple[GroupOnCard, SupportsCudaStream]]
    saving: ExitStack


class ModelHooks:
    """Around the model: the manager is told where a pass begins and ends, and arguments are brought
    to the card. If they had to be moved, results go back to where those came from."""

    def __init__(
        self,
        torch: Any,
        model: Any,
        manager: WeightManager,
        device: Any,
        backward: Backward,
        parts: Sequence[PartHooks],
    ) -> None:
        self._torch, self._model, self._manager, self._device = torch, model, manager, device
        self._backward, self._parts = backward, parts
        self._homes: list[Any] = []  # where the arguments of each call under way came from

    def __enter__(self) -> Self:
        self._handles = [
            self._model.register_forward_pre_hook(self._before, prepend=True, with_kwargs=True),
            self._model.register_forward_hook(self._after, always_call=True),
        ]
        return self

    def __exit__(self, *args: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _before(self, module: Any, arguments: Any, keywords: Any) -> tuple[Any, Any]:
        self._homes.append(None)
        for part in self._parts:
            part.was_called = False
        self._backward.finish()  # one that raised
        self._manager.begin_pass()

        def move(tensor: Any) -> Any:
            if tensor.device == self._device:
                return tensor
            self._homes[-1] = tensor.device
            return tensor.to(self._device)

        return (
            map_tensors(self._torch, move, arguments),
            map_tensors(self._torch, move, keywords),
        )

    def _after(self, module: Any, arguments: Any, result: Any) -> Any:
        """Also if forward, or a hook before it, has raised."""
        if not self._homes:
            return None
        self._manager.begin_pass()
        home = self._homes.pop()
        self._explain(sys.exc_info()[1])
        if home is None:
            return None
        return map_tensors(self._torch, lambda tensor: tensor.to(home), result)

    def _explain(self, error: BaseException | None) -> None:
        """Weights that are read without a call of their module are still in host memory."""
        if not isinstance(error, RuntimeError) or "same device" not in str(error):
            return
        uncalled = [part.name for part in self._parts if not part.was_called]
        if uncalled:
            error.add_note(
                f"The model is offloaded, and {', '.join(uncalled[:3])} was not called so far. "
                "If a module reads its weights without calling it, name that module in "
                "offload(..., whole=[...])."
            )


def map_tensors(torch: Any, change: Callable[[Any], Any], value: Any) -> Any:
    """Applies `change` to a tensor, and to those in lists, tuples, dicts and classes of these.
    Objects of other classes, such as a cache that the model writes, are passed as they are."""

    def changed(each: Any) -> Any:
        return map_tensors(torch, change, each)

    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        items = {key: changed(each) for key, each in value.items()}
        if all(items[key] is value[key] for key in items):
            return value
        return items if type(value) is dict else type(value)(**items)
    if isinstance(value, list | tuple):
        items_in_order = [changed(each) for each in value]
        if all(new is old for new, old in zip(items_in_order, value, strict=True)):
            return value
        if hasattr(value, "_fields"):
            return type(value)(*items_in_order)
        return type(value)(items_in_order)
    return value
