"""Weights that are read in forward without a call of the part that they belong to: by a head that
uses the weight of the embedding, or by a module that computes with the weights of its children.

They are in host memory then. What such a read returns says that it is on the card, and becomes a
copy there, in PyTorch's memory, by the first operation that uses it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import msgspec

from vramkit.report.units import bytes_text, count_text
from vramkit.weights.model import Weight
from vramkit.weights.shown_group import ShownGroup


class OutsideReads(msgspec.Struct, frozen=True):
    """Copies so far that no part asked for."""

    copies: int = 0
    copied_bytes: int = 0
    names: tuple[str, ...] = ()
    """Of the weights."""

    def __str__(self) -> str:
        more = f" and {len(self.names) - 3} more" if len(self.names) > 3 else ""
        return (
            f"{', '.join(self.names[:3])}{more}: {count_text(self.copies, 'copy', 'copies')} of "
            f"{bytes_text(self.copied_bytes)} in all, into memory of PyTorch"
        )


NONE_OUTSIDE = OutsideReads()


class Outside:
    """While watched(), weights of groups that are not on the card can be read by every module."""

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch, self._device = torch, device
        self._call = torch.nn.Module._call_impl.__code__
        self._copies = self._copied_bytes = 0
        self._names: dict[str, None] = {}

    def stats(self) -> OutsideReads:
        return OutsideReads(self._copies, self._copied_bytes, tuple(self._names))

    @contextmanager
    def watched(self, groups: Sequence[ShownGroup]) -> Iterator[None]:
        """Reads of these groups' weights are served."""
        found: dict[tuple[int, str], tuple[Any, dict[str, _Watch]]] = {}
        for group in groups:
            for weight in group.weights:
                kind = "_buffers" if weight.is_buffer else "_parameters"
                if weight.whole is None and not group.resident:
                    for owner, key in weight.owners:
                        known = found.setdefault((id(owner), kind), (owner, {}))
                        known[1][key] = _Watch(group, weight)
        before = [(owner, kind, getattr(owner, kind)) for (_, kind), (owner, _) in found.items()]
        try:
            for (_, kind), (owner, watches) in found.items():
                setattr(owner, kind, _Watched(getattr(owner, kind), watches, self._read))
            yield
        finally:
            for owner, kind, values in before:
                now = dict(getattr(owner, kind))
                values.clear()
                values.update(now)
                setattr(owner, kind, values)

    def _read(self, watch: _Watch) -> Any:
        tensor = watch.weight.tensor
        if not self._is_in_forward():
            return tensor
        if self._torch.is_grad_enabled():
            watch.group.require_frozen()
        return _deferred(self._torch)(
            tensor.data, self._device, watch.weight, lambda: self._copy(watch)
        )

    def _is_in_forward(self) -> bool:
        """Whether a module is being called. Any other reader wants the one in host memory."""
        frame = sys._getframe(3)
        while frame is not None and frame.f_code is not self._call:
            frame = frame.f_back  # type: ignore[assignment]
        return frame is not None

    def _copy(self, watch: _Watch) -> Any:
        self._copies += 1
        self._copied_bytes += watch.weight.nbytes
        self._names[watch.weight.names[0]] = None
        return watch.weight.tensor.data.to(self._device, copy=True)


class _Watch(NamedTuple):
    group: ShownGroup
    weight: Weight


class _Watched(dict[str, Any]):
    """The parameters or buffers of a module."""

    def __init__(
        self,
        values: Mapping[str, Any],
        watches: Mapping[str, _Watch],
        read: Callable[[_Watch], Any],
    ) -> None:
        super().__init__(values)
        self._watches, self._read = watches, read

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        watch = self._watches.get(key)
        if watch is None or watch.group.in_use or value is not watch.weight.tensor:
            return value
        return self._read(watch)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return dict, (dict(self),)  # a copy of the module is not offloaded


@cache
def _deferred(torch: Any) -> Any:
    """A class of tensors whose values come when they are used."""

    class Deferred(torch.Tensor):  # type: ignore[misc]
        __torch_function__ = torch._C._disabled_torch_function_impl

        @staticmethod
        def __new__(cls: Any, host: Any, device: Any, weight: Weight, copy: Any) -> Any:
            made = torch.Tensor._make_wrapper_subclass(
                cls, host.size(), strides=host.stride(), dtype=host.dtype, device=device
            )
            made._is_param = not weight.is_buffer
            made._name, made._copy, made._value = weight.names[0], copy, None
            return made

        @classmethod
        def __torch_dispatch__(
            cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            def value(each: Any) -> Any:
                if not isinstance(each, cls):
                    return each
                if each._value is None:
                    each._value = each._copy()
                return each._value

            kwargs = kwargs or {}
            for number, argument in enumerate(function._schema.arguments):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    given = kwargs.get(argument.name, None)
                    written = args[number] if number < len(args) else given
                    if isinstance(written, cls):
                        raise RuntimeError(
                            f"{written._name} was written in forward, outside of its module: "
                            "streamed weights are read only. Leave it out of offload()"
                        )
            mapped = torch.utils._pytree.tree_map
            return function(*mapped(value, args), **mapped(value, kwargs))

    return Deferred
