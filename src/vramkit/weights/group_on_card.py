"""A group that the manager brings to the card, in the order of a pass, or that is resident."""

from __future__ import annotations

from collections.abc import Sequence

from vramkit.driver.types import SupportsCudaStream
from vramkit.weights.manager import WeightManager
from vramkit.weights.model import Weight
from vramkit.weights.shown_group import ShownGroup
from vramkit.weights.store import PackedStore, Store
from vramkit.weights.torch_memory import TorchMemory


class GroupOnCard(ShownGroup):
    def __init__(
        self,
        manager: WeightManager,
        number: int,
        store: Store | PackedStore,
        memory: TorchMemory,
        weights: Sequence[Weight],
    ) -> None:
        self._manager = manager
        self._group = manager.layout.groups[number]
        address = manager.address(self._group.layer, self._group.name)
        super().__init__(address, self._group.nbytes, number, store, memory, weights)
        # One that may give way is used like a streamed one: outside of its parts its parameters are
        # those in host memory, which stay when the others go.
        self.resident = manager.layout.resident[number] and not manager.gives_way(
            self._group.layer, self._group.name
        )
        self._settled, self._store = False, store

    @property
    def closed(self) -> bool:
        return self._manager.closed

    def _wait(self, stream: SupportsCudaStream) -> None:
        layer, name = self._group.layer, self._group.name
        address = self._manager.wait_group_ready(layer, name, compute_stream=stream)
        if address != self._address:
            self._look_at(address)

    def _release(self, stream: SupportsCudaStream) -> None:
        self._manager.release(self._group.layer, self._group.name, compute_stream=stream)

    def _outdate(self) -> None:
        self._manager.evict(self._group.layer, self._group.name)

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
                    self._store.keep(host, card)
        finally:
            super().restore()
