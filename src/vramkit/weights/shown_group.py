"""A group's tensors while a model is offloaded, however they come to the card."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from vramkit.driver.types import SupportsCudaStream
from vramkit.weights.backward import StreamedGroup
from vramkit.weights.model import Weight, part_of
from vramkit.weights.store import PackedStore, Store, move, shaped
from vramkit.weights.torch_memory import TorchMemory


class ShownGroup(ABC):
    """A group's tensors: those on the card while a part uses them, else those in host memory."""

    resident = False

    def __init__(
        self,
        address: int,
        nbytes: int,
        number: int,
        store: Store | PackedStore,
        memory: TorchMemory,
        weights: Sequence[Weight],
    ) -> None:
        self._nbytes, self._memory, self.weights = nbytes, memory, weights
        self._look_at(address)
        self._in_host = [store.view(number, weight) for weight in weights]
        self._fixed = store.fixed
        self._written = [weight.version for weight in weights]
        self._calls = 0  # of parts that show its parameters on the card

    def _look_at(self, address: int) -> None:
        """Its bytes on the card are here from now on."""
        self._address = address
        self.raw = self._memory.bytes_at(address, self._nbytes)
        self._on_card = [
            shaped(self.raw[weight.offset : weight.offset + weight.nbytes], weight.tensor)
            for weight in self.weights
        ]

    @property
    def in_use(self) -> bool:
        """Its parameters are those on the card, for now or for good."""
        return self.resident or self._calls > 0

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Its memory on the card is gone."""

    @abstractmethod
    def _wait(self, stream: SupportsCudaStream) -> None:
        """The stream waits for its bytes."""

    @abstractmethod
    def _release(self, stream: SupportsCudaStream) -> None:
        """Work that uses its bytes has been issued to the stream."""

    @abstractmethod
    def _outdate(self) -> None:
        """It was written in host memory: what is on the card is old."""

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
        for weight, version in zip(self.weights, self._written, strict=True):
            if weight.version != version:
                raise RuntimeError(
                    f"{weight.names[0]} was written in forward: streamed weights are read only. "
                    "What was written is lost; train it, or leave it out of offload()"
                )

    def stream(self) -> SupportsCudaStream:
        """The one to which work is issued now."""
        if self.closed:
            raise RuntimeError(
                "backward needs weights that were streamed in forward, and their Offload is closed"
            )
        return self._memory.stream()

    def begin_use(self) -> SupportsCudaStream:
        """Work that is issued to the stream from now on may use its memory."""
        stream = self.stream()
        self._wait(stream)
        self._memory.begin_use(self._address, self._nbytes)
        return stream

    def end_use(self, stream: SupportsCudaStream) -> None:
        if not self.closed:
            self._memory.end_use(self._address, self._nbytes)
            self._release(stream)

    def require_frozen(self) -> None:
        for weight in self.weights:
            if weight.whole is not None:
                raise RuntimeError(
                    f"{weight.names[0]} is a DTensor and streamed: call the model under "
                    "torch.no_grad() or torch.inference_mode(); backward through streamed parts of "
                    "a model is not there yet"
                )
            if weight.requires_grad:
                raise RuntimeError(
                    f"{weight.names[0]} is streamed and requires a gradient: for inference, call "
                    "the model under torch.no_grad() or torch.inference_mode(); to train adapters, "
                    "freeze the other weights (requires_grad_(False)) before offload()"
                )

    def saved(self) -> StreamedGroup:
        """What backward brings to the card again."""
        return self

    def restore(self) -> None:
        """Its parameters are those in host memory."""
        for weight, host in zip(self.weights, self._in_host, strict=True):
            move(weight.tensor, host)

    def _show(self, tensors: Sequence[Any]) -> None:
        for weight, tensor in zip(self.weights, tensors, strict=True):
            weight.tensor.data = tensor

    def _check(self) -> None:
        """Nobody moved, replaced or changed a weight since its last use."""
        expected = self._on_card if self.resident else self._in_host
        for number, (weight, before) in enumerate(zip(self.weights, expected, strict=True)):
            tensor = weight.tensor
            moved = _layout(tensor) != _layout(before)
            if moved or any(_attribute(*owner) is not tensor for owner in weight.owners):
                raise RuntimeError(
                    f"{weight.names[0]} was moved or replaced while the model is offloaded; close "
                    "the Offload first, then change the model"
                )
            if not self.resident and weight.version != self._written[number]:
                if self._fixed is not None:
                    raise RuntimeError(
                        f"{weight.names[0]} was written {self._fixed}; close the "
                        "Offload first, then change the model"
                    )
                self._written[number] = weight.version
                self._outdate()


def _layout(tensor: Any) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _attribute(module: Any, key: str) -> Any:
    return part_of(module._parameters.get(key, module._buffers.get(key)))
