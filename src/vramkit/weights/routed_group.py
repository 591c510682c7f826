"""The experts of a layer, of which those that are chosen come to the card."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vramkit.driver.types import SupportsCudaStream
from vramkit.weights.backward import Backward, StreamedGroup
from vramkit.weights.experts import ExpertCache
from vramkit.weights.hooks import PartHooks
from vramkit.weights.manager import WeightManager
from vramkit.weights.model import Experts, Part, Weight
from vramkit.weights.shown_group import ShownGroup
from vramkit.weights.store import Store
from vramkit.weights.torch_memory import TorchMemory
from vramkit.weights.unstreamed import Unstreamed


class RoutedGroup(ShownGroup):
    """`layer` is its number in the cache, `number` that of its group in the store."""

    def __init__(
        self,
        cache: ExpertCache,
        layer: int,
        nbytes: int,
        number: int,
        store: Store,
        memory: TorchMemory,
        weights: Sequence[Weight],
    ) -> None:
        self._cache, self._layer = cache, layer
        self.chosen: tuple[int, ...] = ()
        super().__init__(cache.place, nbytes, number, store, memory, weights)

    @property
    def closed(self) -> bool:
        return self._cache.closed

    def _wait(self, stream: SupportsCudaStream) -> None:
        self._cache.begin(self._layer, self.chosen, stream)

    def _release(self, stream: SupportsCudaStream) -> None:
        self._cache.end(stream)

    def _outdate(self) -> None:
        self._cache.forget(self._layer)

    def saved(self) -> StreamedGroup:
        return _Chosen(self, self.chosen)


class _Chosen:
    """The experts that one call has used: backward needs the same."""

    def __init__(self, group: RoutedGroup, chosen: tuple[int, ...]) -> None:
        self._group, self._experts, self.raw = group, chosen, group.raw

    def stream(self) -> SupportsCudaStream:
        return self._group.stream()

    def begin_use(self) -> SupportsCudaStream:
        self._group.chosen = self._experts
        return self._group.begin_use()

    def end_use(self, stream: SupportsCudaStream) -> None:
        self._group.end_use(stream)


class ExpertHooks(PartHooks):
    """Around a module of experts: the host reads which of them were chosen, and waits for that."""

    def __init__(
        self,
        torch: Any,
        experts: Experts,
        group: RoutedGroup,
        backward: Backward,
        unstreamed: Unstreamed,
        cache: ExpertCache,
        manager: WeightManager,
    ) -> None:
        part = Part(experts.name, experts.module, ())
        super().__init__(torch, part, [group], backward, unstreamed)
        self._experts, self.group, self._cache, self._manager = experts, group, cache, manager

    def _prepare(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        position, name = self._experts.argument
        index = keywords[name] if name in keywords else arguments[position]
        count = self._experts.number
        # What is beyond them stands for an expert of another process.
        used = self._torch.zeros(count + 1, dtype=self._torch.bool, device=index.device)
        used[index.detach().reshape(-1).clamp(max=count)] = True
        self._cache.count_read()
        with self._manager.blocking(f"routing of {self.name}"):
            is_used = used[:count].tolist()
        self.group.chosen = tuple(number for number, each in enumerate(is_used) if each)
