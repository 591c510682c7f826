"""A group's tensors while a model is offloaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vramkit.driver.types import SupportsCudaStream
from vramkit.weights.manager import WeightManager
from vramkit.weights.model import Weight
from vramkit.weights.store import PackedStore, Store, move, shaped
from vramkit.weights.torch_memory import TorchMemory


class GroupOnCard:
    """A group's tensors: those on the card while a part uses them, else those in host memory."""

    def __init__(
        self,
        manager: WeightManager,
        number: int,
        store: Store | PackedStore,
        memory: TorchMemory,
        weights: Sequence[Weight],
    ) -> None:
        self._manager, self._memory, self._weights = manager, memory, weights
        self._group = manager.layout.groups[number]
        self.resident = manager.layout.resident[number]
        self._address = manager.address(self._group.layer, self._group.name)
        self.raw = memory.bytes_at(self._address, self._group.nbytes)
        self._on_card = [
            shaped(self.raw[weight.offset : weight.offset + weight.nbytes], weight.tensor)
            for weight in weights
        ]
        self._in_host = [store.view(number, weight) for weight in weights]
        self._is_packed = isinstance(store, PackedStore)
        self._written = [weight.version for weight in weights]
        self._calls = 0  # of parts that show its parameters on the card
        self._settled = False

    def begin(self) -> SupportsCudaStream:
        """A part's forward uses it: its parameters are those on the card."""
        if self._calls == 0:
            self._check()
        stream = self.begin_use()
        if self._calls == 0 and not self.resident:
            self._show(self._on_card)
        self._calls += 1
        return stream

    def end(self, stream: SupportsCudaStream) -> None:
        self._calls -= 1
        if self._calls == 0 and not self.resident:
            self._show(self._in_host)
        self.end_use(stream)
        if self._calls or self.resident:
            return
        for weight, version in zip(self._weights, self._written, strict=True):
            if weight.version != version:
                raise RuntimeError(
                    f"{weight.names[0]} was written in forward: streamed weights are read only. "
                    "What was written is lost; train it, or leave it out of offload()"
                )

    def stream(self) -> SupportsCudaStream:
        """The one to which work is issued now."""
        if self._manager.closed:
            raise RuntimeError(
                "backward needs weights that were streamed in forward, and their Offload is closed"
            )
        return self._memory.stream()

    def begin_use(self) -> SupportsCudaStream:
        """Work that is issued to the stream from now on may use its memory."""
        stream = self.stream()
        layer, name, nbytes = self._group.layer, self._group.name, self._group.nbytes
        self._manager.wait_group_ready(layer, name, compute_stream=stream)
        self._memory.begin_use(self._address, nbytes)
        return stream

    def end_use(self, stream: SupportsCudaStream) -> None:
        if not self._manager.closed:
            self._memory.end_use(self._address, self._group.nbytes)
            self._manager.release(self._group.layer, self._group.name, compute_stream=stream)

    def require_frozen(self) -> None:
        for weight in self._weights:
            if weight.tensor.requires_grad:
                raise RuntimeError(
                    f"{weight.names[0]} is streamed and requires a gradient: for inference, call "
                    "the model under torch.no_grad() or torch.inference_mode(); to train adapters, "
                    "freeze the other weights (requires_grad_(False)) before offload()"
                )

    def settle(self) -> None:
        """It stays on the card."""
        self._manager.ensure_group_on_gpu(self._group.layer, self._group.name)
        self._settled = True
        self._show(self._on_card)

    def restore(self) -> None:
        """It is in host memory again, with what was written on the card. All of it is read back:
        writes to `.data` are not counted by a tensor's version."""
        try:
            if self._settled and self._manager.memory_is_there():
                for host, card in zip(self._in_host, self._on_card, strict=True):
                    host.copy_(card)
        finally:
            for weight, host in zip(self._weights, self._in_host, strict=True):
                move(weight.tensor, host)

    def _show(self, tensors: Sequence[Any]) -> None:
        for weight, tensor in zip(self._weights, tensors, strict=True):
            weight.tensor.data = tensor

    def _check(self) -> None:
        """Nobody moved, replaced or changed a weight since its last use."""
        expected = self._on_card if self.resident else self._in_host
        for number, (weight, before) in enumerate(zip(self._weights, expected, strict=True)):
            tensor = weight.tensor
            moved = _layout(tensor) != _layout(before)
            if moved or any(_attribute(*owner) is not tensor for owner in weight.owners):
                raise RuntimeError(
                    f"{weight.names[0]} was moved or replaced while the model is offloaded; close "
                    "the Offload first, then change the model"
                )
            if not self.resident and weight.version != self._written[number]:
                if self._is_packed:
                    raise RuntimeError(
                        f"{weight.names[0]} was written after it was packed; close the Offload "
                        "first, then change the model"
                    )
                # Written in host memory: what is on the card is old.
                self._written[number] = weight.version
                self._manager.evict(self._group.layer, self._group.name)


def _layout(tensor: Any) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _attribute(module: Any, key: str) -> Any:
    return module._parameters.get(key, module._buffers.get(key))
