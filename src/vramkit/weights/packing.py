"""Packed weights: bf16 in 12 bits, without loss for any bit pattern.

The format, bf16-12, is in native/weights/packing.h. A packed chunk can be copied to the card and
decoded there by itself (Kernels.unpack_bf16), while the next one is on its way. Weights of neural
networks take three quarters of their bytes.
"""

from __future__ import annotations

from typing import NamedTuple, NoReturn

from vramkit import _core
from vramkit.driver.operands import is_buffer
from vramkit.driver.types import SupportsBuffer, integer, shown, truth
from vramkit.host.pages import default_threads
from vramkit.weights.slab import MOST_THREADS

CHUNK_WEIGHTS = _core.DEFAULT_CHUNK_WEIGHTS
"""64 MiB of bf16."""
ALIGNMENT = _core.PACKED_ALIGNMENT
"""Of chunks and their parts, in bytes. Tensors of PyTorch are aligned in this way."""


class PackedChunk(NamedTuple):
    """Some weights that are next to each other, as they are stored."""

    first: int
    """Weight; a multiple of 256, so that the bytes of the decoded chunk are aligned too."""
    weights: int
    """How many."""
    exceptions: int
    """Weights whose exponent is not among the 15 commonest ones of the chunk."""
    packed: bool
    """False: it would take no fewer bytes, and is stored as it is."""
    offset: int
    """Byte among all that is stored; a multiple of 512."""
    nbytes: int
    """Stored; a multiple of 512."""


class Packing:
    """How weights are packed: the exact size of every chunk, before anything is written.

    `weights` is a buffer of bf16, taken as 16-bit patterns. It is read once here and once by
    pack(), by `threads` threads (default: the CPUs of the process, 16 at most). The bytes that come
    out do not depend on the number of threads. A chunk that would take no fewer bytes packed is
    stored as it is, unless `always` is set.
    """

    def __init__(
        self,
        weights: SupportsBuffer,
        *,
        chunk_weights: int = CHUNK_WEIGHTS,
        always: bool = False,
        threads: int | None = None,
    ) -> None:
        chunk = integer(chunk_weights, "chunk_weights", 1, _core.MOST_WEIGHTS_IN_CHUNK)
        if chunk * 2 % ALIGNMENT:
            raise ValueError(
                f"chunk_weights is {chunk}; it may be a multiple of {ALIGNMENT // 2}, so that "
                "every chunk begins at an aligned address"
            )
        always = truth(always, "always")
        source = _buffer(weights, "weights", writable=False)
        self._plan = _core.PackingPlan(source, chunk, always, _threads(threads))
        self.plain_nbytes = source.nbytes
        """Of the weights as they are."""
        first = offset = 0
        chunks = []
        for count, exceptions, packed, nbytes in self._plan.chunks:
            chunks.append(PackedChunk(first, count, exceptions, packed, offset, nbytes))
            first += count
            offset += nbytes
        self.chunks = tuple(chunks)
        self.nbytes = offset
        """Stored, all chunks together: what pack() writes."""

    @property
    def pays(self) -> bool:
        """Whether fewer bytes are stored than the weights have."""
        return self.nbytes < self.plain_nbytes

    def pack(
        self, weights: SupportsBuffer, out: SupportsBuffer, *, threads: int | None = None
    ) -> None:
        """Store the weights, unchanged since they were planned, in a buffer of `nbytes` bytes."""
        source = _buffer(weights, "weights", writable=False)
        self._plan.pack(source, _buffer(out, "out", writable=True), _threads(threads))

    def unpack(self, stored: SupportsBuffer, out: SupportsBuffer, *, first: int = 0) -> None:
        """Read weights back from what pack() stored: from weight `first` on, as many as `out` has
        room for."""
        source, target = _bytes(stored, "stored"), _bytes(out, "out")
        start = integer(first, "first")
        end = start + target.nbytes // 2
        if source.nbytes != self.nbytes:
            raise ValueError(f"stored has {source.nbytes} bytes; pack() wrote {self.nbytes}")
        if target.nbytes % 2:
            raise ValueError(f"out has {target.nbytes} bytes; weights take 2 bytes each")
        if end > self.plain_nbytes // 2:
            raise ValueError(
                f"weights {start} to {end} are not inside the {self.plain_nbytes // 2} packed ones"
            )
        for chunk in self.chunks:
            begin = max(start, chunk.first)
            stop = min(end, chunk.first + chunk.weights)
            if begin >= stop:
                continue
            own = source[chunk.offset : chunk.offset + chunk.nbytes]
            part = target[2 * (begin - start) : 2 * (stop - start)]
            inside = begin - chunk.first
            if chunk.packed:
                unpack(own, part, first=inside)
            else:
                part[:] = own[2 * inside : 2 * inside + part.nbytes]

    def __repr__(self) -> str:
        return (
            f"<Packing of {self.plain_nbytes // 2} weights in {len(self.chunks)} chunks: "
            f"{self.plain_nbytes} bytes become {self.nbytes}>"
        )


def unpack(packed: SupportsBuffer, out: SupportsBuffer, *, first: int = 0) -> None:
    """Decode the weights of one packed chunk on the host, from weight `first` of it on, as many as
    `out` has room for. Bytes that are no packed chunk are a ValueError."""
    target = _buffer(out, "out", writable=True)
    first = integer(first, "first")
    _core.unpack_weights(_buffer(packed, "packed", writable=False), first, target)


def packed_counts(packed: SupportsBuffer) -> tuple[int, int]:
    """How many weights a packed chunk has, and how many of them are exceptions."""
    return _core.read_packed(_buffer(packed, "packed", writable=False))


def _buffer(given: SupportsBuffer, what: str, *, writable: bool) -> _core.Buffer:
    """Held while it is used. Whoever owns it refuses what is not contiguous or cannot be written,
    with BufferError or, in NumPy, ValueError."""
    if not is_buffer(given):
        _refuse(given, what)
    return _core.Buffer(given, writable)


def _bytes(given: SupportsBuffer, what: str) -> memoryview:
    if not is_buffer(given):
        _refuse(given, what)
    view = memoryview(given)
    # Not cast() alone: that refuses an empty array.
    return view.cast("B") if view.nbytes else memoryview(bytearray())


def _refuse(given: object, what: str) -> NoReturn:
    raise TypeError(
        f"{what} is {shown(given)}; it may be a buffer object (bytes, bytearray, array, memoryview)"
    )


def _threads(threads: int | None) -> int:
    if threads is None:
        return default_threads()
    return integer(threads, "threads", 1, MOST_THREADS, besides="None, or ")
