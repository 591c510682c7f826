"""Models of random bytes on the simulated GPU, and uses of them whose bytes are compared."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from vramkit.driver import Device, Stream
from vramkit.weights import Group, WeightManager

KIB = 1024
GRANULE = 64 * KIB
PROFILE = Path(__file__).with_name("small_granules.toml")
"""Of a card whose rings are small."""

MOST_USES = 4096


def layers(count: int, *, attn: int = 40 * KIB, ffn: int = 60 * KIB) -> list[Group]:
    sizes = (("attn", attn), ("ffn", ffn))
    return [Group(layer, name, nbytes) for layer in range(count) for name, nbytes in sizes]


class Loaded:
    """A manager, and the sums of the words of its groups."""

    def __init__(self, manager: WeightManager, sums: list[int], totals: Any) -> None:
        self.manager = manager
        self.groups = manager.layout.groups
        self.device: Device = manager.device
        self._sums = sums
        self._totals = totals
        self._uses: list[int] = []

    def read(self, number: int, stream: Stream) -> None:
        """Work that reads the group's bytes, between wait_group_ready() and release()."""
        group = self.groups[number]
        out = self._totals.address + 8 * len(self._uses)
        self._uses.append(number)
        address = self.manager.address(group.layer, group.name)
        self.device.kernels.checksum(address, group.nbytes // 4, out, stream=stream)

    def use(self, number: int, stream: Stream) -> None:
        group = self.groups[number]
        with self.manager.using(group.layer, group.name, compute_stream=stream) as address:
            assert address == self.manager.address(group.layer, group.name)
            self.read(number, stream)

    def run(
        self, stream: Stream, order: Sequence[int] | None = None, *, begin: bool = True
    ) -> None:
        """A pass."""
        if begin:
            self.manager.begin_pass()
        for number in range(len(self.groups)) if order is None else order:
            self.use(number, stream)

    def verify(self) -> None:
        """All uses so far saw their own group's bytes."""
        self.device.synchronize()
        found = bytearray(8 * len(self._uses))
        if found:
            self.device.copy(found, self._totals.address, len(found))
        sums = np.frombuffer(found, "<u8").tolist()
        assert sums == [self._sums[number] for number in self._uses]


@contextmanager
def sources(device: Device, groups: Sequence[Group]) -> Iterator[tuple[list[int], list[int]]]:
    """The addresses of random bytes in pinned memory, and the sums of their words."""
    offsets, end = [], 0
    for group in groups:
        offsets.append(end)
        end += -(-group.nbytes // 512) * 512
    with device.alloc_pinned(end) as slab:
        data = random.Random(end).randbytes(end)
        slab.write(data)
        sums = [
            int(np.frombuffer(data, "<u4", group.nbytes // 4, offset).sum(dtype=np.uint64))
            for group, offset in zip(groups, offsets, strict=True)
        ]
        yield [slab.address + offset for offset in offsets], sums


@contextmanager
def loaded(device: Device, groups: Sequence[Group], **options: Any) -> Iterator[Loaded]:
    """Its uses are verified at the end."""
    with sources(device, groups) as (addresses, sums), device.alloc(8 * MOST_USES) as totals:
        device.fill(totals, 0)
        device.synchronize()
        with WeightManager(device, groups, addresses, **options) as manager:
            made = Loaded(manager, sums, totals)
            yield made
            made.verify()
