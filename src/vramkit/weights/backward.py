"""Backward passes through streamed weights.

Autograd saves weights in forward as views of the memory they were in, which holds other weights by
the time backward runs: gradients would be wrong without any error. So what is saved of a streamed
group is where it was in the group, and backward brings the group to the card again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from vramkit.driver.types import SupportsCudaStream
from vramkit.weights.torch_memory import storage_address


class StreamedGroup(Protocol):
    """1. begin_use() and end_use() enclose the issue of work that uses the group, to the current
       stream: the first returns it, the second is given it.
    2. `raw`, its bytes on the card, holds its weights between them."""

    raw: Any

    def stream(self) -> SupportsCudaStream: ...
    def begin_use(self) -> SupportsCudaStream: ...
    def end_use(self, stream: SupportsCudaStream) -> None: ...


class _Use(NamedTuple):
    group: StreamedGroup
    stream: SupportsCudaStream
    node: Any
    """The node of autograd that used it last."""


class _Saved(NamedTuple):
    """A view of a group's bytes."""

    group: StreamedGroup
    dtype: Any
    shape: Any
    stride: tuple[int, ...]
    offset: int
    is_conj: bool
    is_neg: bool


class _Outer(NamedTuple):
    """What the hooks that were there before made of a tensor that is not ours."""

    unpack: Callable[[Any], Any]
    packed: Any


class Backward:
    """Groups that a backward pass uses now.

    A node of autograd unpacks what it needs and issues its work before the next node unpacks
    anything: a group is used until another node unpacks another group, or the pass ends.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._using: dict[tuple[int, int], _Use] = {}  # by group and stream
        self._waits_for_end = False

    def saved_tensors(self, groups: Sequence[StreamedGroup]) -> Any:
        """A context in which autograd saves weights of these groups as above; other tensors go
        through the hooks that are in force outside, those of checkpointing for example."""
        torch = self._torch
        outer = torch._C._autograd._top_saved_tensors_default_hooks(True)
        by_address = {storage_address(torch, group.raw): group for group in groups}

        def pack(tensor: Any) -> Any:
            group = by_address.get(storage_address(torch, tensor))
            if group is not None:
                return _Saved(
                    group,
                    tensor.dtype,
                    tensor.shape,
                    tensor.stride(),
                    tensor.storage_offset(),
                    tensor.is_conj(),
                    tensor.is_neg(),
                )
            return tensor if outer is None else _Outer(outer[1], outer[0](tensor))

        return torch.autograd.graph.saved_tensors_hooks(pack, self._unpack)

    def _unpack(self, packed: Any) -> Any:
        if isinstance(packed, _Outer):
            return packed.unpack(packed.packed)
        if not isinstance(packed, _Saved):
            return packed
        self._use(packed.group)
        typed = packed.group.raw.view(packed.dtype)
        view = typed.as_strided(packed.shape, packed.stride, packed.offset)
        if packed.is_conj:
            view = view.conj()
        if packed.is_neg:
            view = self._torch._neg_view(view)
        # With create_graph=True the nodes of this pass save it in turn, without our hooks.
        return view.clone() if self._torch.is_grad_enabled() else view

    def end_done(self) -> None:
        """Work of earlier nodes has been issued: forward that runs inside this one, as
        checkpointing does it, may use the memory of their groups."""
        if self._using:
            self._end_of_others(self._torch._C._current_autograd_node())

    def _end_of_others(self, node: Any, but: StreamedGroup | None = None) -> None:
        for key, use in list(self._using.items()):
            if use.group is not but and use.node is not node:
                self._end(key)

    def _use(self, group: StreamedGroup) -> None:
        node = self._torch._C._current_autograd_node()
        self._end_of_others(node, group)
        key = id(group), group.stream().__cuda_stream__()[1]
        known = self._using.get(key)
        stream = group.begin_use() if known is None else known.stream
        self._using[key] = _Use(group, stream, node)
        if node is not None and not self._waits_for_end:
            self._waits_for_end = True
            self._torch.autograd.Variable._execution_engine.queue_callback(self.finish)

    def _end(self, key: tuple[int, int]) -> None:
        use = self._using.pop(key)
        use.group.end_use(use.stream)

    def finish(self) -> None:
        """The pass has ended, or was given up."""
        self._waits_for_end = False
        for key in list(self._using):
            self._end(key)
