"""The weights of a model in host memory: groups in one pinned slab; what is kept, on the card."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from vramkit.weights.model import Model, Weight
from vramkit.weights.slab import Slab

if TYPE_CHECKING:
    from vramkit.driver import Device


class Store:
    """All groups in one slab; parameters are views of it until they are used."""

    def __init__(
        self,
        torch: Any,
        device: Device,
        model: Model,
        progress: Callable[[int, int], object] | None,
    ) -> None:
        self._torch = torch
        self._offsets: list[int] = []
        total = 0
        for group in model.groups:
            self._offsets.append(total)
            total += group.nbytes
        in_host = sum(
            weight.nbytes
            for weights in model.weights
            for weight in weights
            if weight.tensor.device.type == "cpu"
        )
        self._slab = Slab.unpinned(device, total, released=min(in_host, total))
        self._bytes = torch.frombuffer(self._slab.view(), dtype=torch.uint8)
        self._homes: list[tuple[Any, Any]] = []  # tensors that were not in host memory, and where
        try:
            self._fill(model, progress)
            self._slab.pin()
        except BaseException:
            self._restore_homes()
            raise

    def _fill(self, model: Model, progress: Callable[[int, int], object] | None) -> None:
        """Group by group: each tensor's old memory goes when its values are in the slab."""
        total, done = self._slab.nbytes, 0
        for number, weights in enumerate(model.weights):
            for weight in weights:
                tensor = weight.tensor
                view = self.view(number, weight)
                with self._torch.no_grad():
                    view.copy_(tensor.detach())
                if tensor.device.type != "cpu":
                    self._homes.append((tensor, tensor.device))
                tensor.data = view
            done += model.groups[number].nbytes
            if progress is not None:
                progress(done, total)

    @property
    def nbytes(self) -> int:
        return self._slab.nbytes

    @property
    def addresses(self) -> list[int]:
        return [self._slab.address + offset for offset in self._offsets]

    def view(self, number: int, weight: Weight) -> Any:
        """The host tensor of a weight."""
        begin = self._offsets[number] + weight.offset
        return shaped(self._bytes[begin : begin + weight.nbytes], weight.tensor)

    def close(self) -> None:
        self._restore_homes()
        self._slab.unpin()

    def _restore_homes(self) -> None:
        for tensor, home in self._homes:
            # Where the card has no room, it stays in host memory.
            with suppress(self._torch.cuda.OutOfMemoryError):
                tensor.data = tensor.data.to(home)
        self._homes.clear()


def shaped(raw: Any, like: Any) -> Any:
    """Bytes as a tensor with the type, shape and strides of another."""
    return raw.view(like.dtype).as_strided(like.shape, like.stride())


class Kept:
    """Small weights, on the card while the model is offloaded."""

    def __init__(self, weights: Sequence[Weight], device: Any) -> None:
        self._moved = []
        for weight in weights:
            tensor = weight.tensor
            if tensor.device != device and not tensor.is_meta:
                self._moved.append((tensor, tensor.data))
                tensor.data = tensor.data.to(device)

    def restore(self) -> None:
        for tensor, before in self._moved:
            gradient, tensor.grad = tensor.grad, None
            before.copy_(tensor.data)  # forward may have written a buffer, training a parameter
            tensor.data = before
            if gradient is not None:
                tensor.grad = gradient.to(before.device)
