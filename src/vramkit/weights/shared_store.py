"""The weights of a model in host memory once a node, for all ranks there."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from vramkit.host.available import require
from vramkit.report.units import bytes_text
from vramkit.weights.checkpoint import Checkpoint
from vramkit.weights.model import Model
from vramkit.weights.progress import Progress
from vramkit.weights.ranks import digests
from vramkit.weights.safetensors import ModelError, StoredTensor
from vramkit.weights.shared_slab import SharedSlab, make_file, open_file
from vramkit.weights.slab import Slab
from vramkit.weights.store import Source, Store, memory_of
from vramkit.weights.team import Team

if TYPE_CHECKING:
    from vramkit.driver import Device


class SharedStore(Store):
    """Each group is filled by one rank of the node; collective. While it is open nobody writes the
    weights. After close() each rank has them for itself: what one writes the others do not see,
    and memory is taken for what is written alone."""

    fixed = "while all ranks use the same memory"

    def __init__(self, torch: Any, device: Device, model: Model, team: Team) -> None:
        self._team = team
        self._written: list[tuple[Any, Any]] = []  # residents that were, and their values
        super().__init__(torch, device, model)

    def _make_slab(self, device: Device, nbytes: int) -> Slab:
        team, first = self._team, self._team.neighbours[0]
        made = -1
        with team.telling():
            if team.rank == first:
                require(nbytes - self._released(), f"a slab of {bytes_text(nbytes)}")
                made = make_file(nbytes)
        try:
            files = team.exchange(made)
            with team.telling():
                file = made if made >= 0 else open_file(team.members[first].pid, files[first])
                try:
                    slab = SharedSlab.of_file(device, file, nbytes)
                finally:
                    if file != made:
                        os.close(file)
            team.barrier()  # all have it
        finally:
            if made >= 0:
                os.close(made)
        return slab

    def fill(self, source: Source | None, progress: Progress | None) -> None:
        with self._team.telling():
            super().fill(source, progress)

    def _take_over(self) -> None:
        for number, is_mine in self._mine_first():
            self._take_over_group(number, copied=not is_mine)

    def _read_groups(self, found: Mapping[int, StoredTensor]) -> None:
        for number, is_mine in self._mine_first():
            self._read_group(number, found, is_read=not is_mine)

    def _mine_first(self) -> Iterator[tuple[int, bool]]:
        """Groups that this rank fills, then those that others have filled."""
        count, here = len(self._offsets), self._team.neighbours
        mine = range(here.index(self._team.rank), count, len(here))
        for number in mine:
            yield number, True
        self._team.barrier()
        for number in range(count):
            if number not in mine:
                yield number, False

    def _read_from(self, checkpoint: Checkpoint) -> None:
        super()._read_from(checkpoint)
        if len(self._team.neighbours) < self._team.size:
            with self._team.telling():
                found = digests(self._model.weights)
            # Each node has read files of its own.
            every = self._team.exchange(found)
            for rank, theirs in enumerate(every):
                if theirs != every[0]:
                    raise ModelError(f"the source has other weights on rank {rank} than on rank 0")

    def keep(self, host: Any, value: Any) -> None:
        value = value.detach().cpu()
        if _flat_bytes(host) != _flat_bytes(value):
            self._written.append((host, value.clone()))

    def close(self) -> None:
        super().close()
        assert isinstance(self._slab, SharedSlab)
        self._slab.make_private()
        for host, value in self._written:
            host.copy_(value)
        self._written.clear()


def _flat_bytes(tensor: Any) -> memoryview:
    return memory_of(tensor.as_strided((tensor.numel(),), (1,)))
