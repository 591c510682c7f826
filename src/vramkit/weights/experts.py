"""Routed experts: of a layer's experts, only those that were chosen come to the card.

The experts of a layer are one parameter each, with an expert for each index. It keeps its shape:
the chosen experts are copied to their own bytes of a place that all layers share, and the others
have no values there. Experts that were used lately are kept in slots of the card, and come to the
place from there instead of over the link.

Which experts are chosen is known when the layer before has computed. So nothing can be copied
ahead, the copies go to the stream that computes, and one layer's experts follow another's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from vramkit import _core
from vramkit.driver.types import Span, SupportsCudaStream
from vramkit.weights.layout import ALIGNMENT
from vramkit.weights.timing import MeasuredPass, Timing

if TYPE_CHECKING:
    from vramkit.driver import Device, Event


class Rows(NamedTuple):
    """A parameter in the bytes of a layer: `each` expert has so many, one behind the other."""

    offset: int
    each: int


class ExpertLayer(NamedTuple):
    """All experts of a layer, in pinned host memory."""

    source: int
    nbytes: int
    experts: int
    rows: tuple[Rows, ...]

    @property
    def expert_bytes(self) -> int:
        return sum(rows.each for rows in self.rows)


class ExpertStats(msgspec.Struct, frozen=True):
    """Counts since the model was offloaded."""

    reads: int
    """Times that the host waited for a layer's routing."""
    hits: int
    """Chosen experts that were on the card."""
    misses: int
    copied_bytes: int
    """Over the link."""


def slot_size(layers: Sequence[ExpertLayer]) -> int:
    """What an expert that stays on the card takes there."""
    return _aligned(max(layer.expert_bytes for layer in layers))


def place_size(layers: Sequence[ExpertLayer]) -> int:
    return _aligned(max(layer.nbytes for layer in layers))


class ExpertCache:
    """The place and the slots. One layer's experts are in use at a time.

    1. Between begin() and end() the chosen experts are in the place, for work that is issued to
       the stream; the rest of the place holds whatever was there.
    2. Streams are ordered by one event: each use comes behind the one before.
    3. Each layer has its share of the slots, in which the least recently used expert gives way.
       Without shares a pass that uses more experts than there are slots would find none of them:
       each layer would evict what the next pass needs first.
    """

    def __init__(
        self, device: Device, layers: Sequence[ExpertLayer], slots: int, *, timing: bool = False
    ) -> None:
        self._device, self._layers = device, tuple(layers)
        self.slots, self.slot_bytes = slots, slot_size(layers)
        self.place_bytes = place_size(layers)
        # By layer: the slots of experts, the last used at the end, and those without one.
        self._kept: list[OrderedDict[int, int]] = [OrderedDict() for _ in layers]
        self._free = [list(range(n, slots, len(layers))) for n in range(len(layers))]
        self._in_use: tuple[int, tuple[int, ...]] | None = None
        self._uses = 0  # of it
        self._reads = self._hits = self._misses = self._copied = 0
        self.last_copied = 0  # bytes, in the last whole pass
        self._copied_before: int | None = None  # when the pass under way began to use experts
        self._step = 0
        self.closed = False
        with ExitStack() as stack:
            place = stack.enter_context(device.alloc(self.place_bytes))
            self.place = place.address
            self._slots_at = 0
            if slots:
                self._slots_at = stack.enter_context(device.alloc(slots * self.slot_bytes)).address
            self._used = stack.enter_context(device.event(timing=False))
            with device.stream() as stream:
                # Code that multiplies experts which were not chosen by 0 finds no NaN here.
                device.fill(place, 0, stream=stream)
                stream.synchronize()
            self._timing = Timing(device) if timing else None
            if self._timing is not None:
                stack.callback(self._timing.close)
            self._memory = stack.pop_all()

    def begin(self, layer: int, chosen: tuple[int, ...], stream: SupportsCudaStream) -> None:
        """Work issued to the stream from now on may use these experts of a layer, until end()."""
        if self._uses and self._in_use != (layer, chosen):
            raise RuntimeError(
                "the experts of two layers are used at once, and have one place: "
                'offload the model with experts="whole"'
            )
        self._come_behind_last_use(stream)
        if self._uses:
            self._uses += 1
            return
        if self._timing is not None:
            self._step = self._timing.asked(layer, stream)
        if self._copied_before is None:
            self._copied_before = self._copied
        try:
            self._bring(layer, chosen, stream)
        except BaseException:
            if self._timing is not None:
                self._timing.fail()
            self._used.record(stream)  # behind what was issued of it
            raise
        if self._timing is not None:
            self._timing.ready(self._step, stream)
        self._in_use, self._uses = (layer, chosen), 1

    def end(self, stream: SupportsCudaStream) -> None:
        """All work that uses the experts has been issued to the stream."""
        self._uses -= 1
        self._used.record(stream)
        if self._timing is not None and not self._uses:
            self._timing.done(self._step, stream)

    def count_read(self) -> None:
        self._reads += 1

    def forget(self, layer: int) -> None:
        """The layer was written in host memory: what is on the card is old."""
        self._free[layer] += self._kept[layer].values()
        self._kept[layer].clear()

    def begin_pass(self) -> None:
        if self._copied_before is not None:
            self.last_copied = self._copied - self._copied_before
            self._copied_before = None
        if self._timing is not None:
            self._timing.begin_pass()

    def last_pass(self) -> MeasuredPass | None:
        """Times by layer; None without timing, or while a pass is under way."""
        return None if self._timing is None else self._timing.last_pass()

    def last_pass_since(self, start: Event) -> MeasuredPass | None:
        """As last_pass(), with times from an event on."""
        last = self.last_pass()
        if last is None or self._timing is None or self._timing.start is None:
            return None
        later = self._timing.start.elapsed_since(start)
        groups = (each._replace(asked=each.asked + later) for each in last.groups)
        return MeasuredPass(last.seconds + later, tuple(groups))

    def stats(self) -> ExpertStats:
        return ExpertStats(self._reads, self._hits, self._misses, self._copied)

    def close(self) -> None:
        """Waits for the copies, which read host memory of the caller."""
        if self.closed:
            return
        self.closed = True
        with self._memory:
            self._used.synchronize()

    def _come_behind_last_use(self, stream: SupportsCudaStream) -> None:
        _core.Stream.from_handle(self._device, stream.__cuda_stream__()[1]).wait(self._used)

    def _bring(self, layer: int, chosen: Sequence[int], stream: SupportsCudaStream) -> None:
        missing = []
        kept = self._kept[layer]
        for expert in chosen:
            slot = kept.get(expert)
            if slot is None:
                missing.append(expert)
                continue
            kept.move_to_end(expert)
            self._hits += 1
            for at, in_place, nbytes in self._pieces(layer, expert, slot):
                self._copy_on_card(in_place, at, nbytes, stream)
        source = self._layers[layer].source
        for first, count in _runs(missing):
            for rows in self._layers[layer].rows:
                begin, nbytes = rows.offset + first * rows.each, count * rows.each
                self._device.copy(
                    Span(self.place + begin, nbytes, "device"),
                    Span(source + begin, nbytes, "host"),
                    stream=stream,
                )
                self._copied += nbytes
        for expert in missing:
            self._misses += 1
            self._keep(layer, expert, stream)

    def _keep(self, layer: int, expert: int, stream: SupportsCudaStream) -> None:
        kept, free = self._kept[layer], self._free[layer]
        if not kept and not free:
            return  # it has no slots
        slot = free.pop() if free else kept.popitem(last=False)[1]
        try:
            for at, in_place, nbytes in self._pieces(layer, expert, slot):
                self._copy_on_card(at, in_place, nbytes, stream)
        except BaseException:
            free.append(slot)
            raise
        kept[expert] = slot

    def _pieces(self, layer: int, expert: int, slot: int) -> Iterator[tuple[int, int, int]]:
        """The parts of an expert: where in the slot, where in the place, and how many bytes."""
        at = self._slots_at + slot * self.slot_bytes
        for rows in self._layers[layer].rows:
            yield at, self.place + rows.offset + expert * rows.each, rows.each
            at += rows.each

    def _copy_on_card(self, to: int, start: int, nbytes: int, stream: SupportsCudaStream) -> None:
        self._device.copy(Span(to, nbytes, "device"), Span(start, nbytes, "device"), stream=stream)


def _runs(experts: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First and count of those in a row: they are one copy."""
    first = count = 0
    for expert in experts:
        if count and expert == first + count:
            count += 1
            continue
        if count:
            yield first, count
        first, count = expert, 1
    if count:
        yield first, count


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
