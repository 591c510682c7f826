"""Where groups of weights lie now, and the schedules for that."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

from vramkit import _core
from vramkit.weights.card_memory import Chunk, sent_bytes
from vramkit.weights.giving_way import Residents
from vramkit.weights.layout import Layout, lay_out_again, lay_out_beside
from vramkit.weights.orders import Orders
from vramkit.weights.uses import Uses


class Placement:
    """Layout, addresses and schedules change together, under a lock, and only because residents
    give way or return. As in Orders, the engine is given to each call."""

    def __init__(
        self,
        layout: Layout,
        addresses: list[int],
        ring_address: int,
        chunks: Sequence[Sequence[Chunk]],
        orders: Orders,
        uses: Uses,
    ) -> None:
        self.layout = layout
        self.addresses = addresses  # by group
        self.ring_address = ring_address
        self._chunks, self._orders, self._uses = chunks, orders, uses
        self._changing = Lock()
        self._is_beside = False  # a group lies where the layout of a pass would not have it
        self.sent_bytes = sent_bytes(layout, chunks)

    def settle_all(self, residents: Residents) -> None:
        """At the start: all that give way are resident."""
        for number, address in residents.settle_all().items():
            self.addresses[number] = address

    def settle(self, engine: _core.StreamerEngine, residents: Residents, number: int) -> None:
        """Bring a resident group back, if there is memory for it at once."""
        with self._changing:
            address = residents.settle(number)
            if address is not None:
                self.addresses[number] = address
                engine.prefetch(number, False)  # unless it has given way again

    def follow_memory(self, engine: _core.StreamerEngine, residents: Residents) -> None:
        """Between two uses of groups: some may have given way or returned since."""
        if self._is_beside or residents.now() != self.layout.resident:
            with self._changing:
                self._lay_out_again(engine, residents)

    def put_into_ring(
        self, engine: _core.StreamerEngine, residents: Residents, number: int
    ) -> None:
        """A group that gave way is needed. If the ring cannot be laid out again, since groups in it
        stay where they are, it goes where none of those is."""
        with self._changing:
            if self.addresses[number] - self.ring_address in range(self.layout.ring_bytes):
                return  # another thread was quicker
            stay = self._staying_in_ring()
            if not stay and self._lay_out_again(engine, residents):
                return
            layout = lay_out_beside(self.layout, number, stay)
            move = (number, self.ring_address + layout.offsets[number])
            if engine.move([move]):
                self._is_beside = True
                self._adopt(engine, layout, [move])

    def _lay_out_again(self, engine: _core.StreamerEngine, residents: Residents) -> bool:
        """All that is streamed now, behind each other around the ring. False: a group is in use or
        pinned where it is."""
        layout = lay_out_again(self.layout, residents.now())
        moves = [
            (number, address)
            for number, resident in enumerate(layout.resident)
            if not resident
            and (address := self.ring_address + layout.offsets[number]) != self.addresses[number]
        ]
        if not engine.move(moves):
            return False
        self._is_beside = False
        self._adopt(engine, layout, moves)
        return True

    def _staying_in_ring(self) -> list[int]:
        return [
            number
            for number, resident in enumerate(self.layout.resident)
            if not resident and self._uses.stays(number)
        ]

    def _adopt(
        self, engine: _core.StreamerEngine, layout: Layout, moves: Sequence[tuple[int, int]]
    ) -> None:
        self.layout = layout
        self.sent_bytes = sent_bytes(layout, self._chunks)
        for number, address in moves:
            self.addresses[number] = address
        self._orders.adopt(engine, layout)
