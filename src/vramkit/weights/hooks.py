"""Hooks around the forward of a model and of its parts, each in a with statement."""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from threading import RLock
from typing import Any, NamedTuple, Self, SupportsIndex

from vramkit.driver.types import SupportsCudaStream
from vramkit.weights.backward import Backward
from vramkit.weights.model import Part
from vramkit.weights.shown_group import ShownGroup
from vramkit.weights.torch_memory import storage_address
from vramkit.weights.unstreamed import Unstreamed


class _NotCopied:
    """Hooks are part of their module: a copy of it would share the Offload."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        raise TypeError(
            "the model is offloaded and cannot be copied or pickled; close the Offload first, or "
            "save model.state_dict()"
        )


class PartHooks(_NotCopied):
    """Around a part: its groups are on the card while it computes."""

    def __init__(
        self,
        torch: Any,
        part: Part,
        groups: Sequence[ShownGroup],
        backward: Backward,
        unstreamed: Unstreamed,
    ) -> None:
        self._torch, self._part, self._groups, self._backward = torch, part, groups, backward
        self._unstreamed = unstreamed
        self._streamed = [group for group in groups if not group.resident]
        self.name, self.was_called = part.name, False
        self._calls: list[_PartCall] = []  # under way
        self._undo = ExitStack()

    def __enter__(self) -> Self:
        module = self._part.module
        if module._compiled_call_impl is not None:
            # Hooks would be compiled with it.
            self._undo.enter_context(_replaced(module, "_compiled_call_impl", self._around))
            return self
        if isinstance(module, self._torch.nn.TransformerEncoderLayer):
            # It computes with other kernels if it has hooks, which differ in the last bits.
            self._undo.enter_context(_replaced(module, "_call_impl", self._around))
            return self
        before = module.register_forward_pre_hook(self._before, prepend=True, with_kwargs=True)
        self._undo.callback(before.remove)
        after = module.register_forward_hook(self._after, always_call=True)
        self._undo.callback(after.remove)
        self._undo.enter_context(interrupts_end(module, self._calls, self._after))
        return self

    def __exit__(self, *args: object) -> None:
        self._undo.close()

    def _around(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            try:
                self._before(None, arguments, keywords)
                result = inner(*arguments, **keywords)
            except BaseException:
                self._after(None, arguments, None)
                raise
            return self._after(None, arguments, result)

        return call

    def _prepare(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Before its groups are used in a call with these arguments."""

    def _before(self, module: Any, arguments: Any, keywords: Any) -> None:
        self.was_called = True
        call = _PartCall([], ExitStack())
        self._calls.append(call)
        _refuse_freezing()
        saves = self._streamed and self._torch.is_grad_enabled()
        if saves:
            for group in self._streamed:
                group.require_frozen()
        self._unstreamed.check_part(self._part.module)
        self._backward.end_done()
        self._prepare(arguments, keywords)
        for group in self._groups:
            call.begun.append((group, group.begin()))
        if saves:
            saved = [group.saved() for group in self._streamed]
            call.undo.enter_context(self._backward.saved_tensors(saved))
        if self._streamed:
            # Autocast would keep casted copies of all weights on the card until it ends.
            was_enabled = self._torch.is_autocast_cache_enabled()
            call.undo.callback(self._torch.set_autocast_cache_enabled, was_enabled)
            self._torch.set_autocast_cache_enabled(False)

    def _after(self, module: Any, arguments: Any, result: Any) -> Any:
        """Also if forward, or a hook before it, has raised."""
        if not self._calls:
            return result
        call = self._calls.pop()
        with ExitStack() as ends:  # all of them, if one raises
            for group, stream in reversed(call.begun):
                ends.callback(group.end, stream)
            ends.push(call.undo)
            addresses = {storage_address(self._torch, group.raw) for group in self._streamed}

            def without_weights(tensor: Any) -> Any:
                """A result that is a weight or a view of one would show other weights soon."""
                is_weight = storage_address(self._torch, tensor) in addresses
                return tensor.clone() if is_weight else tensor

            return map_tensors(self._torch, without_weights, result)


def _refuse_freezing() -> None:
    """Inductor would take the weights that are in the ring while it compiles for constants."""
    config = sys.modules.get("torch._inductor.config")
    if config is not None and config.freezing:
        raise RuntimeError(
            "torch._inductor.config.freezing is on: compiled code would keep the weights of one "
            "layer for all; turn it off while the model is offloaded"
        )


class _PartCall(NamedTuple):
    begun: list[tuple[ShownGroup, SupportsCudaStream]]
    undo: ExitStack


class _ModelCall(NamedTuple):
    devices: list[Any]
    """Of its arguments."""
    undo: ExitStack


class ModelHooks(_NotCopied):
    """Around the model: `begin_pass` is called where a pass begins and ends, and arguments are
    brought to the card. If none was there, results go back to where those came from."""

    def __init__(
        self,
        torch: Any,
        model: Any,
        begin_pass: Callable[[], None],
        device: Any,
        backward: Backward,
        parts: Sequence[PartHooks],
        unstreamed: Unstreamed,
    ) -> None:
        self._torch, self._model, self._begin_pass, self._device = torch, model, begin_pass, device
        self._backward, self._parts, self._unstreamed = backward, parts, unstreamed
        self._calls: list[_ModelCall] = []  # under way
        self._turn = RLock()  # of the thread that calls it
        self._undo = ExitStack()

    def __enter__(self) -> Self:
        model = self._model
        before = model.register_forward_pre_hook(self._before, prepend=True, with_kwargs=True)
        self._undo.callback(before.remove)
        after = model.register_forward_hook(self._after, always_call=True)
        self._undo.callback(after.remove)
        self._undo.enter_context(interrupts_end(model, self._calls, self._after))
        return self

    def __exit__(self, *args: object) -> None:
        self._undo.close()

    def _before(self, module: Any, arguments: Any, keywords: Any) -> tuple[Any, Any]:
        if not self._turn.acquire(blocking=False):
            raise RuntimeError(
                "the offloaded model is being called by another thread; its weights come in one "
                "order at a time: use a lock around its calls"
            )
        call = _ModelCall([], ExitStack())
        self._calls.append(call)
        for part in self._parts:
            part.was_called = False
        self._backward.finish()  # one that raised
        self._begin_pass()
        call.undo.enter_context(self._unstreamed.checked())

        def move(tensor: Any) -> Any:
            call.devices.append(tensor.device)
            return tensor.to(self._device)

        return (
            map_tensors(self._torch, move, arguments),
            map_tensors(self._torch, move, keywords),
        )

    def _after(self, module: Any, arguments: Any, result: Any) -> Any:
        """Also if forward, or a hook before it, has raised."""
        if not self._calls or not self._turn.acquire(blocking=False):
            return None  # it was refused
        devices, undo = self._calls.pop()
        undo.close()
        self._turn.release()
        self._turn.release()  # that of _before()
        self._begin_pass()
        self._explain(sys.exc_info()[1])
        if not devices or self._device in devices:
            return None
        return map_tensors(self._torch, lambda tensor: tensor.to(devices[-1]), result)

    def _explain(self, error: BaseException | None) -> None:
        """Weights that are read without a call of their module are still in host memory."""
        if not isinstance(error, RuntimeError) or "same device" not in str(error):
            return
        buffers = self._unstreamed.explain()
        if buffers is not None:
            error.add_note(buffers)
        uncalled = [part.name for part in self._parts if not part.was_called]
        if uncalled:
            error.add_note(
                f"The model is offloaded, and {', '.join(uncalled[:3])} was not called so far. "
                "If a module reads its weights without calling it, name that module in "
                "offload(..., whole=[...])."
            )


# Code that is compiled around a part stops here: torch.compiler.disable() without its import.
for _hook in (PartHooks._before, PartHooks._after, ModelHooks._before, ModelHooks._after):
    setattr(_hook, "_torchdynamo_disable", True)  # noqa: B010  # mypy knows no such attribute


@contextmanager
def interrupts_end(
    module: Any, calls: Sequence[object], end: Callable[[Any, Any, Any], object]
) -> Iterator[None]:
    """A module calls its hooks after an Exception, and not after a KeyboardInterrupt: calls under
    way that one has left are ended here."""

    def around(inner: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            depth = len(calls)
            try:
                return inner(*arguments, **keywords)
            except BaseException:
                while len(calls) > depth:
                    with suppress(Exception):  # the interrupt is what counts
                        end(module, arguments, None)
                raise

        return call

    with _replaced(module, "_call_impl", around):
        yield


@contextmanager
def _replaced(
    module: Any, name: str, around: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    """One of its functions is another one, made of it, for this module alone."""
    inner, before = getattr(module, name), vars(module).get(name)
    setattr(module, name, around(inner))
    try:
        yield
    finally:
        if before is None:
            delattr(module, name)
        else:
            setattr(module, name, before)


def map_tensors(torch: Any, change: Callable[[Any], Any], value: Any) -> Any:
    """Applies `change` to a tensor, and to those in lists, tuples, dicts, classes of these, and
    dataclasses; what holds changed ones is a copy.
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
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        named = (field.name for field in dataclasses.fields(value))
        fields = [name for name in named if hasattr(value, name)]
        new = {name: changed(getattr(value, name)) for name in fields}
        if any(new[name] is not getattr(value, name) for name in fields):
            value = copy.copy(value)
            for name in fields:
                object.__setattr__(value, name, new[name])  # it may be frozen
    return value
