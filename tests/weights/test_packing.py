"""Packed weights: every bit pattern comes back, sizes are exact, damage is an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from numpy.typing import NDArray
from sim.clock_support import Card, exactly
from soak import rounds

from vramkit.driver import Device, Driver
from vramkit.weights.packing import ALIGNMENT, Packing, packed_counts, unpack

Patterns = NDArray[numpy.uint16]
HEADER = 512
PIECE = 256 << 10
"""Weights that one thread packs at a time."""


@pytest.fixture
def device(driver: Driver) -> Device:
    return driver.device()


# Weights


def patterns(*values: int) -> Patterns:
    return numpy.array(values, "<u2")


def gaussian(count: int, seed: int = 1) -> Patterns:
    floats = numpy.random.default_rng(seed).normal(0, 0.02, count).astype("<f4")
    return (floats.view("<u4") >> 16).astype("<u2")


def uniform(count: int, seed: int = 1) -> Patterns:
    return numpy.random.default_rng(seed).integers(0, 1 << 16, count, "<u2")


def every_pattern() -> Patterns:
    return numpy.arange(1 << 16, dtype="<u4").astype("<u2")


def exponents(weights: Patterns) -> Patterns:
    return (weights >> 7) & 0xFF


def commonest(weights: Patterns) -> int:
    """Exponent."""
    return int(numpy.bincount(exponents(weights)).argmax())


def exceptions_in(weights: Patterns) -> int:
    counts = numpy.bincount(exponents(weights), minlength=256)
    return int(numpy.sort(counts)[:-15].sum())


# The format, written down a second time


def aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def packed_size(weights: int, exceptions: int) -> int:
    parts = HEADER, weights, (weights + 1) // 2, 4 * exceptions, 2 * exceptions
    return sum(map(aligned, parts))


class Parts:
    """Views of the parts of a packed chunk; the padding behind each of them must be zero."""

    def __init__(self, packed: bytearray) -> None:
        self.packed = packed
        self.header = numpy.frombuffer(packed, "<u8", 4)
        self.table = numpy.frombuffer(packed, "u1", 16, 32)
        count, exceptions = int(self.header[1]), int(self.header[2])
        self._at = HEADER
        assert bytes(packed[:8]) == b"bf16-12\0"
        assert not any(packed[48:HEADER])
        self.low = self._part("u1", count)
        self.pairs = self._part("u1", (count + 1) // 2)
        self.positions = self._part("<u4", exceptions)
        self.values = self._part("<u2", exceptions)
        assert self._at == len(packed)

    def _part(self, dtype: str, count: int) -> NDArray[Any]:
        part = numpy.frombuffer(self.packed, dtype, count, self._at)
        end = self._at + part.nbytes
        self._at = aligned(end)
        assert not any(self.packed[end : self._at])
        return part

    def indices(self) -> NDArray[Any]:
        both = numpy.stack([self.pairs & 15, self.pairs >> 4], 1).reshape(-1)
        assert not both[len(self.low) :].any()
        return both[: len(self.low)]

    def decoded(self) -> Patterns:
        indices = self.indices()
        assert (numpy.flatnonzero(indices == 15) == self.positions).all()
        low = self.low.astype("<u2")
        weights = (low & 1) << 15 | self.table[indices].astype("<u2") << 7 | low >> 1
        weights[self.positions] = self.values
        return weights.astype("<u2")


def packed(weights: Patterns, **options: Any) -> bytearray:
    """One chunk, packed whether that pays or not."""
    packing = Packing(weights, always=True, **options)
    assert len(packing.chunks) == 1
    out = bytearray(b"\xaa" * packing.nbytes)
    packing.pack(weights, out)
    return out


def unpacked(chunk: bytearray) -> Patterns:
    out = numpy.full(packed_counts(chunk)[0], 0xAAAA, "<u2")
    unpack(chunk, out)
    return out


def assert_comes_back(weights: Patterns) -> None:
    chunk = packed(weights)
    assert len(chunk) == packed_size(len(weights), exceptions_in(weights))
    assert packed_counts(chunk) == (len(weights), exceptions_in(weights))
    assert (Parts(chunk).decoded() == weights).all()
    assert (unpacked(chunk) == weights).all()


# No loss


@settings(max_examples=rounds(60, 5000))
@given(some.lists(some.integers(0, 0xFFFF), min_size=1, max_size=200))
def test_arbitrary_patterns_come_back(values: list[int]) -> None:
    assert_comes_back(patterns(*values))


@settings(max_examples=rounds(30, 2000))
@given(some.integers(1, 3000), some.integers(1, 20), some.integers(0, 1 << 32))
def test_few_exponents_come_back(count: int, kinds: int, seed: int) -> None:
    chosen = numpy.random.default_rng(seed).choice(256, kinds, replace=False).astype("<u2")
    weights = (uniform(count, seed) & 0x807F) | (chosen[uniform(count, seed + 1) % kinds] << 7)
    assert_comes_back(weights.astype("<u2"))


def test_all_patterns_at_once_come_back() -> None:
    """NaNs with every payload, infinities, denormals and both zeros among them."""
    assert_comes_back(every_pattern())


@pytest.mark.parametrize("count", [*range(1, 70), 255, 256, 257, 511, 512, 513, 1023, 1025])
def test_any_number_of_weights_comes_back(count: int) -> None:
    assert_comes_back(gaussian(count))
    assert_comes_back(uniform(count))


@pytest.mark.parametrize("exponent", [0, 1, 15, 127, 255])
def test_one_exponent_is_one_entry_of_the_table(exponent: int) -> None:
    weights = (uniform(777) & 0x807F) | (exponent << 7)
    chunk = packed(weights)
    assert (Parts(chunk).table == [exponent, *[0] * 15]).all()
    assert packed_counts(chunk) == (777, 0)
    assert (unpacked(chunk) == weights).all()


def test_table_has_the_commonest_exponents_and_ties_by_size() -> None:
    """Twenty exponents, the last one twice: it is first, and the five greatest others are left."""
    values = [exponent << 7 for exponent in (*range(100, 120), 119)]
    chunk = Parts(packed(patterns(*values)))
    assert (chunk.table == [119, *range(100, 114), 0]).all()
    assert (chunk.positions == [14, 15, 16, 17, 18]).all()
    assert (chunk.values == [exponent << 7 for exponent in range(114, 119)]).all()


def test_bytes_of_a_small_chunk() -> None:
    """1.0, -1.0, 1.5 and the smallest denormal: sign in bit 0, mantissa above it."""
    chunk = Parts(packed(patterns(0x3F80, 0xBF80, 0x3FC0, 0x0001)))
    assert (chunk.table[:2] == [127, 0]).all()
    assert (chunk.low == [0x00, 0x01, 0x80, 0x02]).all()
    assert (chunk.pairs == [0x00, 0x10]).all()


# Sizes


def test_gaussian_weights_take_three_quarters() -> None:
    weights = gaussian(1 << 18)
    packing = Packing(weights)
    (chunk,) = packing.chunks
    assert chunk.packed
    assert chunk.exceptions == exceptions_in(weights) > 0
    assert packing.nbytes == chunk.nbytes == packed_size(len(weights), chunk.exceptions)
    assert packing.pays
    assert 1.32 < packing.plain_nbytes / packing.nbytes < 4 / 3


def test_weights_for_which_it_does_not_pay_are_stored_as_they_are() -> None:
    weights = uniform(100_001)
    packing = Packing(weights)
    (chunk,) = packing.chunks
    assert not chunk.packed
    assert not packing.pays
    assert packing.nbytes == chunk.nbytes == aligned(2 * len(weights))
    out = bytearray(b"\xaa" * packing.nbytes)
    packing.pack(weights, out)
    assert out == weights.tobytes() + bytes(packing.nbytes - weights.nbytes)


@pytest.mark.parametrize("exceptions", [0, 1])
def test_a_chunk_is_packed_only_if_that_takes_fewer_bytes(exceptions: int) -> None:
    """3072 weights are 6144 bytes. Packed they are 5120, and the first exception adds 1024."""
    weights = numpy.full(3072, 0x3F80, "<u2")
    others = numpy.arange(14 + exceptions, dtype="<u2")
    weights[: len(others)] = others << 7
    assert packed_size(3072, exceptions) == [5120, 6144][exceptions]
    (chunk,) = Packing(weights).chunks
    assert (chunk.packed, chunk.exceptions) == (exceptions == 0, exceptions)


def test_chunks_follow_each_other_and_are_decoded_alone() -> None:
    weights = numpy.concatenate([gaussian(8192), uniform(8192), gaussian(5001, 2)])
    packing = Packing(weights, chunk_weights=8192)
    assert [chunk.packed for chunk in packing.chunks] == [True, False, True]
    assert [chunk.weights for chunk in packing.chunks] == [8192, 8192, 5001]
    out = bytearray(packing.nbytes)
    packing.pack(weights, out)
    end = 0
    for chunk in packing.chunks:
        assert chunk.offset == end
        end += chunk.nbytes
        own = weights[chunk.first : chunk.first + chunk.weights]
        stored = out[chunk.offset : end]
        if chunk.packed:
            assert (unpacked(stored) == own).all()
        else:
            assert stored[: own.nbytes] == own.tobytes()
    assert end == packing.nbytes


def test_no_weights_are_no_chunks() -> None:
    packing = Packing(b"")
    assert packing.chunks == ()
    assert packing.nbytes == 0
    packing.pack(b"", bytearray())


def test_threads_give_the_same_bytes_as_one() -> None:
    """Several pieces a chunk, each with exceptions, and chunks that end inside of one."""
    weights = numpy.concatenate([gaussian(PIECE * 2 + 4001), uniform(999), gaussian(PIECE, 3)])
    stored = []
    for threads in (1, 2, 7):
        packing = Packing(weights, chunk_weights=PIECE + 2560, threads=threads)
        out = bytearray(b"\xaa" * packing.nbytes)
        packing.pack(weights, out, threads=threads)
        stored.append((packing.chunks, out))
    assert stored[0] == stored[1] == stored[2]
    chunks, out = stored[0]
    assert all(chunk.packed and chunk.exceptions > 0 for chunk in chunks)
    for chunk in chunks:
        own = weights[chunk.first : chunk.first + chunk.weights]
        assert (unpacked(out[chunk.offset : chunk.offset + chunk.nbytes]) == own).all()


def test_exceptions_of_pieces_follow_each_other() -> None:
    weights = numpy.full(PIECE * 3 + 5, 0x3F80, "<u2")
    weights[:28] = numpy.arange(28) % 14 << 7  # with 127, a full table
    at = [PIECE - 1, PIECE, 2 * PIECE + 17, 3 * PIECE + 4]
    weights[at] = [0x7F80, 0x8000 | 200 << 7, 201 << 7, 202 << 7]
    chunk = packed(weights)
    assert Parts(chunk).positions.tolist() == at
    assert (unpacked(chunk) == weights).all()


# Reading a part back


@settings(max_examples=rounds(40, 2000))
@given(some.data())
def test_any_part_of_a_chunk_is_decoded(data: some.DataObject) -> None:
    weights = uniform(301)
    chunk = packed(weights)
    first = data.draw(some.integers(0, 301))
    out = numpy.zeros(data.draw(some.integers(0, 301 - first)), "<u2")
    unpack(chunk, out, first=first)
    assert (out == weights[first : first + len(out)]).all()


def test_a_part_outside_of_the_chunk_is_refused() -> None:
    chunk = packed(gaussian(100))
    with pytest.raises(ValueError, match="weights 98 to 101 are not inside a chunk of 100"):
        unpack(chunk, bytearray(6), first=98)
    with pytest.raises(ValueError, match="not inside a chunk of 100"):
        unpack(chunk, bytearray(2), first=2**64 - 1)


@settings(max_examples=rounds(20, 1000))
@given(some.data())
def test_any_weights_are_read_back_from_several_chunks(data: some.DataObject) -> None:
    weights = numpy.concatenate([gaussian(4096), uniform(4096), gaussian(3001, 2)])
    packing = Packing(weights, chunk_weights=4096)
    assert [chunk.packed for chunk in packing.chunks] == [True, False, True]
    stored = numpy.zeros(packing.nbytes, "u1")
    packing.pack(weights, stored)
    first = data.draw(some.integers(0, len(weights)))
    out = numpy.zeros(data.draw(some.integers(0, len(weights) - first)), "<u2")
    packing.unpack(stored, out, first=first)
    assert (out == weights[first : first + len(out)]).all()
    with pytest.raises(ValueError, match=r"are not inside the 11193 packed ones"):
        packing.unpack(stored, bytearray(4), first=11192)
    with pytest.raises(ValueError, match=f"stored has 1 bytes; pack.. wrote {packing.nbytes}"):
        packing.unpack(bytes(1), out)
    with pytest.raises(ValueError, match="out has 3 bytes; weights take 2 bytes each"):
        packing.unpack(stored, bytearray(3))
    with pytest.raises(TypeError, match="out is 3; it may be a buffer object"):
        packing.unpack(stored, 3)  # type: ignore[arg-type]


# Damage


def put(part: str, at: int, value: int) -> Callable[[Parts], None]:
    def change(parts: Parts) -> None:
        getattr(parts, part)[at] = value

    return change


def name_twice(parts: Parts) -> None:
    parts.positions[3], parts.values[3] = parts.positions[2], parts.values[2]


def name_a_neighbour(parts: Parts) -> None:
    """Instead of an exception, the weight behind it, which is none, with the value that it has."""
    plain = parts.indices() != 15
    number = next(n for n, at in enumerate(parts.positions[:-1]) if plain[at + 1])
    at = parts.positions[number] + 1
    parts.positions[number], parts.values[number] = at, parts.decoded()[at]


DAMAGE: dict[str, tuple[Callable[[Parts], None], str]] = {
    "mark": (put("header", 0, 0), "its header is another's"),
    "no weights": (put("header", 1, 0), "claims 0 weights"),
    "more weights": (put("header", 1, 100_000), "by its header it has"),
    "too many weights": (put("header", 1, 2**64 - 1), "claims 18446744073709551615 weights"),
    "more exceptions": (put("header", 2, 1000), "by its header it has"),
    "too many exceptions": (put("header", 2, 2**63), "exceptions"),
    "reserved": (put("header", 3, 1), "its header is another's"),
    "entry 15": (put("table", 15, 1), "its header is another's"),
    "position beyond the end": (put("positions", 3, 5000), "an exception is not in the list"),
    "position of none": (put("positions", 3, 0), "exception 3 is none"),
    "position twice": (lambda parts: put("positions", 3, parts.positions[2])(parts), "is none"),
    "exception twice": (name_twice, "exception 3 is none"),
    "a weight that is none": (name_a_neighbour, r"exception \d+ is none"),
    "another value": (lambda parts: put("values", 3, parts.values[3] ^ 1)(parts), "is none"),
    "index of an exception": (put("pairs", 0, 0xFF), "an exception is not in the list"),
    "no index 15": (lambda parts: put("pairs", parts.positions[0] // 2, 0)(parts), "is none"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_an_error(kind: str) -> None:
    weights = uniform(2000)
    weights[:2] = commonest(weights) << 7
    change, message = DAMAGE[kind]
    chunk = packed(weights)
    change(Parts(chunk))
    with pytest.raises(ValueError, match=message):
        unpack(chunk, bytearray(4000))


def test_truncated_and_longer_chunks_are_errors() -> None:
    chunk = packed(uniform(2000))
    for size in (0, 1, 47, 511, 512, 513, len(chunk) - 512, len(chunk) - 1):
        with pytest.raises(ValueError, match="this is no packed chunk of bf16-12: it has"):
            unpack(chunk[:size], bytearray(2))
    with pytest.raises(ValueError, match="by its header it has"):
        unpack(chunk + b"\0", bytearray(2))


@settings(max_examples=rounds(200, 20_000))
@given(some.data())
def test_any_damage_is_an_error_or_other_weights(data: some.DataObject) -> None:
    chunk = packed(uniform(300, 5))
    for _ in range(data.draw(some.integers(1, 4))):
        chunk[data.draw(some.integers(0, len(chunk) - 1))] = data.draw(some.integers(0, 255))
    try:
        unpack(chunk, bytearray(600))
    except ValueError as error:
        assert "this is no packed chunk" in str(error)


# Arguments


def test_weights_that_were_changed_are_refused() -> None:
    weights = gaussian(50_000)
    packing = Packing(weights)
    assert packing.chunks[0].exceptions > 0
    out = bytearray(packing.nbytes)
    # With more exceptions than were counted, and without any.
    for changed in (uniform(50_000), weights & 0x807F | commonest(weights) << 7):
        with pytest.raises(ValueError, match="not those that were planned"):
            packing.pack(changed, out)
    with pytest.raises(ValueError, match="there are 49999 weights; the plan is of 50000"):
        packing.pack(weights[:-1], out)


def test_bad_arguments_are_refused() -> None:
    weights = gaussian(5000)
    packing = Packing(weights)
    with pytest.raises(ValueError, match=f"take {packing.nbytes} bytes as planned; there are 9"):
        packing.pack(weights, bytearray(9))
    with pytest.raises(ValueError, match="onto themselves"):
        both = bytearray(weights.tobytes())
        packing.pack(both, memoryview(both)[: packing.nbytes])
    with pytest.raises(BufferError):
        packing.pack(weights, bytes(packing.nbytes))
    with pytest.raises((BufferError, ValueError), match="contiguous"):
        Packing(weights[::2])
    with pytest.raises(ValueError, match="weights has 3 bytes"):
        Packing(b"123")
    with pytest.raises(ValueError, match="even addresses"):
        Packing(memoryview(bytearray(9))[1:])
    with pytest.raises(TypeError, match="weights is None; it may be a buffer object"):
        Packing(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="chunk_weights is 100; it may be a multiple of 256"):
        Packing(weights, chunk_weights=100)
    with pytest.raises(ValueError, match="chunk_weights is 0; it may be an integer from 1"):
        Packing(weights, chunk_weights=0)
    with pytest.raises(ValueError, match="threads is 0; it may be None, or an integer from 1"):
        Packing(weights, threads=0)
    with pytest.raises(TypeError, match="always is 1; it may be True or False"):
        Packing(weights, always=1)  # type: ignore[arg-type]


# On the card


def decoded_on(device: Device, chunk: bytearray, **shape: int) -> Patterns:
    """With bytes behind the weights that must stay as they are."""
    count, exceptions = packed_counts(chunk)
    behind = 24
    with (
        device.alloc(len(chunk)) as source,
        device.alloc(2 * count + behind) as target,
        device.stream() as stream,
    ):
        device.copy(source, chunk, stream=stream)
        device.fill(target, 0x55, stream=stream)
        device.kernels.unpack_bf16(target, source, count, exceptions, stream=stream, **shape)
        out = bytearray(2 * count + behind)
        device.copy(out, target, stream=stream)
        stream.synchronize()
    assert out[2 * count :] == b"\x55" * behind
    return numpy.frombuffer(out, "<u2", count)


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 15, 16, 17, 512, 4095, 4097, 100_003])
def test_card_decodes_what_the_host_packed(device: Device, count: int) -> None:
    for weights in (gaussian(count), uniform(count)):
        assert (decoded_on(device, packed(weights)) == weights).all()


def test_card_decodes_all_patterns(device: Device) -> None:
    weights = every_pattern()
    chunk = packed(weights)
    assert (decoded_on(device, chunk) == weights).all()
    assert (decoded_on(device, chunk, blocks=3, threads=96) == weights).all()


def test_card_needs_one_kernel_without_exceptions(device: Device) -> None:
    sim = device.driver.sim
    for weights, kernels in ((patterns(0x3F80, 0xBF80), 1), (every_pattern(), 2)):
        before = sim.call_counts().get("cuLaunchKernel", 0) if sim else 0
        decoded_on(device, packed(weights))
        if sim:
            assert sim.call_counts()["cuLaunchKernel"] - before == kernels


def test_card_leaves_out_positions_beyond_the_end(device: Device) -> None:
    weights = every_pattern()
    chunk = packed(weights)
    Parts(chunk).positions[-1] = 0xFFFF_FFFF
    assert (decoded_on(device, chunk)[:-128] == weights[:-128]).all()


def test_bad_sizes_are_refused(device: Device) -> None:
    kernels = device.kernels
    with device.alloc(4096) as memory, device.stream() as stream:
        with pytest.raises(ValueError, match="2049 weights take 4098 bytes; dst has 4096"):
            kernels.unpack_bf16(memory, memory, 2049, 0, stream=stream)
        with pytest.raises(
            ValueError,
            match="2000 packed weights with 1 exceptions take 4608 bytes; packed has 4096",
        ):
            kernels.unpack_bf16(memory, memory, 2000, 1, stream=stream)
        with pytest.raises(ValueError, match=r"dst is at address \d+; it may be a multiple of 16"):
            kernels.unpack_bf16(memory.at(2), memory, 8, 0, stream=stream)
        with pytest.raises(ValueError, match=r"packed is at address \d+; it may be a multiple"):
            kernels.unpack_bf16(memory, memory.at(8), 8, 0, stream=stream)
        with pytest.raises(ValueError, match="count is 0; it may be an integer from 1"):
            kernels.unpack_bf16(memory, memory, 0, 0, stream=stream)
        with pytest.raises(ValueError, match="exceptions is 9; it may be an integer from 0 to 8"):
            kernels.unpack_bf16(memory, memory, 8, 9, stream=stream)


@pytest.mark.sim_only
@pytest.mark.expects_reports
@pytest.mark.parametrize("part", ["table", "low", "pairs", "positions", "values", "weights"])
def test_checker_knows_what_is_read_and_written(driver: Driver, part: str) -> None:
    """Another stream overwrites two bytes that are read, or reads two that are written."""
    assert driver.sim is not None
    device, chunk = driver.device(), packed(uniform(1000))
    exceptions = packed_counts(chunk)[1]
    offsets = {"table": 32, "low": HEADER + 998, "pairs": HEADER + 1024 + 498}
    offsets["positions"] = HEADER + 1024 + 512 + 4 * exceptions - 2
    offsets["values"] = HEADER + 1024 + 512 + aligned(4 * exceptions) + 2 * exceptions - 2
    with (
        device.alloc(len(chunk)) as source,
        device.alloc(2000) as target,
        device.alloc_pinned(len(chunk)) as host,
        device.stream() as one,
        device.stream() as two,
    ):
        device.copy(source, host, stream=one)
        device.fill(target, 0, stream=one)
        two.wait(one)
        device.kernels.unpack_bf16(target, source, 1000, exceptions, stream=two)
        assert not driver.sim.reports()
        if part == "weights":
            device.copy(host, target.at(1998), stream=one)
        else:
            device.fill(source.at(offsets[part], 2), 0, stream=one)
        assert len(driver.sim.reports()) > 0
        device.synchronize()


@pytest.mark.sim_only
def test_card_takes_the_rate_of_memory(driver: Driver, tmp_path: Any) -> None:
    with Card(driver, tmp_path) as card:
        stream = card.stream()
        card.device.kernels.unpack_bf16(card.other, card.inside, 4096, 0, stream=stream)
        moved = HEADER + 4096 + 2048 + 2 * 4096
        took = card.figures.launch_latency + moved / card.figures.kernel_memory
        assert card.end_of(stream) == exactly(took)
        card.device.kernels.unpack_bf16(card.other, card.inside, 4096, 3000, stream=stream)
        # An exception is read, and written as a sector of 32 bytes.
        took += card.figures.launch_latency + moved / card.figures.kernel_memory
        took += card.figures.launch_latency + 3000 * (6 + 32) / card.figures.kernel_memory
        assert card.end_of(stream) == exactly(took)
