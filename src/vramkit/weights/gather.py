"""Groups of weights of which each rank copies a share to its card, and the ranks gather the rest.

A group is cut into chunks, and a chunk into one share a rank. Each rank copies its share over its
own link to staging memory, and the ranks gather the shares into the group's place, in the stream
behind the copy: the next share is copied meanwhile. What is left at the end of a group, less than
512 bytes a rank, is copied by every rank.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from vramkit import _core
from vramkit.driver.types import Span
from vramkit.weights.card_memory import Chunk, packed_chunks
from vramkit.weights.layout import ALIGNMENT, Group
from vramkit.weights.packing import Packing
from vramkit.weights.store import bytes_at, memory_of
from vramkit.weights.team import RankError, Team

if TYPE_CHECKING:
    from vramkit.driver import Device, Event, PinnedMemory, Stream
    from vramkit.weights.torch_memory import TorchMemory

SHARE = 16 << 20
"""Bytes of a share, at most: nearly the full rate of a link, and the gathering of the last chunk of
a pass, beside which nothing is copied, stays short."""


class Gather(Protocol):
    """How shares come together.

    1. expand() issues to the chunk's stream, which comes behind the copy of this rank's share to
       staging memory, what writes the chunk to its destination. All ranks call it for the same
       chunks in the same order.
    2. give_up(): a copy failed on this rank, so that it cannot keep to that order.
    """

    @property
    def rank(self) -> int: ...
    @property
    def ranks(self) -> int: ...
    def prepare(self, share: int) -> None:
        """No share is larger."""

    def expand(self, chunk: _core.StagedChunk) -> None: ...
    def give_up(self, group: str, why: str) -> None: ...


def staged_chunks(
    groups: Sequence[Group], packings: Sequence[Packing | None], gather: Gather | None
) -> list[list[Chunk]]:
    """By group: what is staged on the way to the card; none for one that is copied as it is."""
    if gather is None:
        return packed_chunks(groups, packings)
    if any(packing is not None for packing in packings):
        raise ValueError("packed weights are not gathered: packings exclude gather")
    return [share_chunks(group.nbytes, gather.rank, gather.ranks, SHARE) for group in groups]


def share_chunks(nbytes: int, rank: int, ranks: int, most: int) -> list[Chunk]:
    """What a rank copies of a group. Its shares have `most` bytes at most, a multiple of 512, and
    as much as each other: behind a small one the next copy would come late."""
    even = nbytes // (ranks * ALIGNMENT) * ALIGNMENT  # of each rank
    chunks = []
    units = even // ALIGNMENT
    usual = -(-units // max(1, -(-even // most))) * ALIGNMENT
    for done in range(0, even, max(1, usual)):
        share, first = min(usual, even - done), done * ranks
        chunks.append(Chunk(first, share * ranks, first + share * rank, share, True))
    if rest := nbytes - even * ranks:
        chunks.append(Chunk(even * ranks, rest, even * ranks, rest, False))
    return chunks


class _Lane(NamedTuple):
    """What the gathering behind one copy stream uses."""

    stream: Stream
    share: PinnedMemory
    whole: PinnedMemory
    give: Any
    """A tensor over the share. Not over a view of it: the threads of the backend may hold it for a
    moment after the wait."""
    to: Any
    """... and over the whole."""
    done: Event


class HostGather:
    """Through host memory, where the group has no nccl. Right, and slow: each share goes to the
    host and all of them come back, and the host waits for both."""

    _ORDER = struct.Struct("<QQQ64s")

    def __init__(self, torch: Any, device: Device, team: Team) -> None:
        self._torch, self._device, self._team = torch, device, team
        self.rank, self.ranks = team.rank, team.size
        self._memory = ExitStack()
        self._lanes: dict[int, _Lane] = {}  # by the stream
        self._share = 0
        self._count = 0

    def prepare(self, share: int) -> None:
        self._share = share

    def expand(self, chunk: _core.StagedChunk) -> None:
        self._team.require_whole()
        with self._team.telling():
            lane = self._lanes.get(chunk.stream) or self._make_lane(chunk.stream)
            self._require_same_order(chunk)
            device, nbytes, stored = self._device, chunk.nbytes, chunk.stored
            staged = Span(chunk.staging, stored, "device")
            device.copy(lane.share, staged, stored, stream=lane.stream)
            lane.done.record(lane.stream)
            lane.done.synchronize()
            lane.share.view(0, stored, readonly=True).release()  # the checker is told
            lane.whole.view(0, nbytes).release()
            self._team.gather(lane.to[:nbytes], lane.give[:stored])
            to = Span(chunk.destination, nbytes, "device")
            device.copy(to, lane.whole, nbytes, stream=lane.stream)

    def _make_lane(self, handle: int) -> _Lane:
        device, enter = self._device, self._memory.enter_context
        share = enter(device.alloc_pinned(self._share))
        whole = enter(device.alloc_pinned(self._share * self.ranks))
        give, to = (
            self._torch.frombuffer(bytes_at(each.address, each.nbytes), dtype=self._torch.uint8)
            for each in (share, whole)
        )
        done = enter(device.event(timing=False))
        made = _Lane(_core.Stream.from_handle(device, handle), share, whole, give, to, done)
        self._lanes[handle] = made
        return made

    def _require_same_order(self, chunk: _core.StagedChunk) -> None:
        """Shares of different chunks would make a group of nonsense."""
        torch, size = self._torch, self._ORDER.size
        group = chunk.group
        mine = self._ORDER.pack(self._count, chunk.first_byte, chunk.nbytes, group.encode()[:64])
        self._count += 1
        out = torch.empty(self.ranks * size, dtype=torch.uint8)
        self._team.gather(out, torch.frombuffer(bytearray(mine), dtype=torch.uint8))
        every = bytes(memory_of(out))
        for rank in range(self.ranks):
            theirs = every[rank * size : (rank + 1) * size]
            if theirs != mine:
                other = self._ORDER.unpack(theirs)[3].rstrip(b"\0").decode(errors="replace")
                one, two = sorted([(self.rank, group), (rank, other)])
                raise RankError(
                    f"rank {one[0]} gathers group {one[1]} and rank {two[0]} group {two[1]}: all "
                    "ranks must call the model equally often, with the same order of its parts"
                )

    def give_up(self, group: str, why: str) -> None:
        self._team.fail(f"group {group} was not copied: {why}")

    def close(self) -> None:
        self._lanes.clear()
        self._memory.close()


class DeviceGather:
    """On the cards, in stream order, by nccl. The host waits for nothing."""

    def __init__(self, torch: Any, team: Team, memory: TorchMemory) -> None:
        self._torch, self._team, self._memory = torch, team, memory
        self.rank, self.ranks = team.rank, team.size
        self._group = team.device_group()

    def prepare(self, share: int) -> None:
        """It needs no memory of its own."""

    def expand(self, chunk: _core.StagedChunk) -> None:
        self._team.require_whole()
        cuda, memory = self._torch.cuda, self._memory
        with self._team.waiting(), cuda.stream(cuda.ExternalStream(chunk.stream, memory.device)):
            # The wait is one of the stream.
            self._group._allgather_base(
                memory.bytes_at(chunk.destination, chunk.nbytes),
                memory.bytes_at(chunk.staging, chunk.stored),
            ).wait()

    def give_up(self, group: str, why: str) -> None:
        self._team.fail(f"group {group} was not copied: {why}")

    def close(self) -> None:
        """The group is the team's."""


@contextmanager
def gather_of(torch: Any, device: Device, team: Team, memory: TorchMemory) -> Iterator[Gather]:
    """Collective. On the cards where the group can."""
    made: HostGather | DeviceGather = (
        DeviceGather(torch, team, memory)
        if team.on_cards and device.driver.sim is None
        else HostGather(torch, device, team)
    )
    try:
        yield made
    finally:
        made.close()
