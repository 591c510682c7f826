"""Happens-before by the book: a graph of what was issued, an edge for each rule, and a search.

Deliberately simple and slow, as a second opinion on the simulator's checker: it knows no clocks and
forgets nothing. The rules are CUDA's, for one context and one host thread:

- what the host has waited for is before all that it issues later;
- work of a stream is in order;
- the legacy default stream waits for all blocking streams, and they for it; destroying a stream
  changes nothing for the work that is in it;
- a wait of a stream for an event is after the record that was the newest when it was issued;
- the host is after what it synchronises with, or what a query has said to be over, or the two
  events of which it was told the time between; to wait for the legacy stream is to wait for all
  blocking ones.

Two accesses to the same cells race unless both are reads or both are atomic additions.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

LEGACY = "legacy"

Node = int
Cells = frozenset[int]  # of memory, of whatever size
Use = Literal["read", "write", "atomic"]
Uses = Sequence[tuple[Use, Cells]]


class Access(NamedTuple):
    """Cells that one operation uses in one way."""

    operation: int
    node: Node
    stream: str
    cells: Cells
    use: Use


def conflict(one: Use, other: Use) -> bool:
    return "write" in (one, other) or one != other


class Reference:
    def __init__(self) -> None:
        self._before: list[Sequence[Node]] = []  # direct predecessors of each node
        self._host = self._add()  # the host's newest point
        self._blocking = {LEGACY: True}  # every stream there ever was
        self._newest: dict[str, Node] = {}  # by stream, where it has had any work
        self._recorded: dict[str, Node] = {}  # by event
        self._accesses: list[Access] = []
        self._undocumented: list[Node] = []  # where the host waited though nothing promises it

    def _add(self, *before: Node) -> Node:
        self._before.append(before)
        return len(self._before) - 1

    def _work_in(self, streams: Collection[str]) -> list[Node]:
        return [node for stream, node in self._newest.items() if stream in streams]

    def _blocking_streams(self) -> set[str]:
        return {stream for stream, blocking in self._blocking.items() if blocking}

    def ordered(self, earlier: Node, later: Node) -> bool:
        """Whether there is a path between two nodes."""
        seen, pending = set[Node](), [later]
        while pending:
            node = pending.pop()
            if node == earlier:
                return True
            if node not in seen:
                seen.add(node)
                pending.extend(self._before[node])
        return False

    # What a program does

    def open(self, stream: str, *, blocking: bool) -> None:
        """A new stream, under a name that no other one ever has."""
        self._blocking[stream] = blocking

    def issue(self, stream: str, *also_after: Node) -> Node:
        """Anything that goes into a stream."""
        before = {stream}
        if stream == LEGACY:
            before = self._blocking_streams()
        elif self._blocking[stream]:
            before.add(LEGACY)
        self._newest[stream] = self._add(self._host, *self._work_in(before), *also_after)
        return self._newest[stream]

    def record(self, event: str, stream: str) -> None:
        self._recorded[event] = self.issue(stream)

    def wait(self, stream: str, event: str) -> None:
        if event in self._recorded:
            self.issue(stream, self._recorded[event])

    def host_waits_for_stream(self, stream: str) -> None:
        streams = self._blocking_streams() if stream == LEGACY else {stream}
        self._host = self._add(self._host, *self._work_in(streams))

    def host_waits_for_event(self, event: str) -> None:
        if event in self._recorded:
            self._host = self._add(self._host, self._recorded[event])

    def host_waits_for_all(self) -> None:
        self._host = self._add(self._host, *self._work_in(self._blocking))

    def host_waits_undocumented(self) -> None:
        """As cuMemFree does for all work: a fact, but no promise, so no order follows."""
        self._undocumented.append(self._add(*self._work_in(self._blocking)))

    def host_acts(self) -> Node:
        """A point of the host's own, for its accesses to memory."""
        self._host = self._add(self._host)
        return self._host

    # What that means for memory

    def races(self, node: Node, uses: Uses) -> dict[int, str]:
        """Earlier operations that reports must name with the one at this node, and their kinds."""
        return {
            earlier.operation: self._kind(earlier)
            for number, earlier in enumerate(self._accesses)
            for use, cells in uses
            if conflict(use, earlier.use)
            and self._remembered(number) & cells
            and not self.ordered(earlier.node, node)
        }

    def add_accesses(self, operation: int, node: Node, stream: str, uses: Uses) -> None:
        """What a stream's operation touches. The host's need not be kept: all later is after it."""
        self._accesses += [Access(operation, node, stream, cells, use) for use, cells in uses]

    def _remembered(self, number: int) -> Cells:
        """The cells for which an access is still the one to name: a later write takes the place of
        anything, a later read that of a read of the same stream, a later addition that of an
        addition. Nothing is lost by that: who is ordered after the later one is ordered after both,
        or those two have been reported."""
        access, cells = self._accesses[number], set(self._accesses[number].cells)
        for later in self._accesses[number + 1 :]:
            same = later.use == access.use and later.stream == access.stream
            if later.use == "write" or same:
                cells -= later.cells
        return frozenset(cells)

    def _kind(self, earlier: Access) -> str:
        by_chance = any(self.ordered(earlier.node, waited) for waited in self._undocumented)
        return "implicit_wait" if by_chance else "race"
