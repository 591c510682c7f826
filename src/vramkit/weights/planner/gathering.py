"""Gathering from other ranks, as far as a plan knows it: how long it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramkit import _core

if TYPE_CHECKING:
    from vramkit.driver import Device, Stream
    from vramkit.weights.layout import Layout


class PredictedGather:
    """Takes the time in which the other shares come at a rate, one chunk behind the other; the
    first rank of several. All of them do the same at the same time, and the links of their cards do
    not slow each other."""

    rank = 0

    def __init__(self, device: Device, ranks: int, bytes_per_s: float) -> None:
        self._device, self.ranks, self._rate = device, ranks, bytes_per_s
        self._streams: dict[int, Stream] = {}
        self._last = device.event(timing=False)  # behind the chunk before

    def close(self) -> None:
        self._last.close()

    def prepare(self, share: int) -> None:
        """There are no bytes."""

    def expand(self, chunk: _core.StagedChunk) -> None:
        if chunk.stream not in self._streams:
            self._streams[chunk.stream] = _core.Stream.from_handle(self._device, chunk.stream)
        taken, on = (chunk.nbytes - chunk.stored) / self._rate, self._streams[chunk.stream]
        on.wait(self._last)
        self._device.kernels.spin(round(taken * 1e9), stream=on)
        self._last.record(on)

    def give_up(self, group: str, why: str) -> None:
        """The plan itself fails then."""


def gathered_bytes(layout: Layout, sent_bytes: int) -> int:
    """What a card gets from the others in a pass."""
    return layout.streamed_bytes - sent_bytes
