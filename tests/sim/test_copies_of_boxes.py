"""Copies of boxes and batches of copies: what they cost, and what the checker knows of them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import pytest

from vramkit.driver import Driver

from .box_calls import ARRAY, HOST, BoxCalls, Copy, side
from .clock_support import ROUND as F
from .clock_support import Card, exactly

pytestmark = pytest.mark.sim_only

NOT_SUPPORTED = 801
STREAM_ORDER, DURING_CALL, ANY_ORDER = 1, 2, 3


@pytest.fixture
def card(driver: Driver, tmp_path: Path) -> Iterator[Card]:
    with Card(driver, tmp_path) as made:
        yield made


@pytest.fixture
def calls(driver: Driver, card: Card) -> BoxCalls:
    return BoxCalls(driver)


def kinds(card: Card) -> list[tuple[str, str, str]]:
    return [(each.kind, each.first.access, each.second.access) for each in card.sim.reports()]


# Time


@pytest.mark.parametrize("pitch", [100, 128])
def test_copy_of_a_box_is_one_copy_of_its_bytes(card: Card, calls: BoxCalls, pitch: int) -> None:
    stream, nbytes = card.stream(), 100 * 1000
    inside, outside = card.inside.address, card.outside.address
    calls.copy(side(inside, pitch), side(outside, 100, HOST), 100, 1000, stream)
    end = F.copy_latency + nbytes / F.to_device
    assert card.end_of(stream) == exactly(end)
    calls.copy(side(card.other.address, 512), side(inside, pitch), 100, 1000, stream)
    end += F.copy_latency + nbytes / F.on_device
    assert card.end_of(stream) == exactly(end)


def test_set_of_rows_takes_the_rate_of_fills(card: Card, calls: BoxCalls) -> None:
    stream = card.stream()
    address, pitch = ctypes.c_uint64(card.inside.address), ctypes.c_size_t(512)
    size = ctypes.c_size_t(100), ctypes.c_size_t(1000)
    handle = ctypes.c_void_p(stream.handle)
    calls.call("cuMemsetD2D8Async", address, pitch, ctypes.c_ubyte(1), *size, handle)
    assert card.end_of(stream) == exactly(F.launch_latency + 100_000 / F.fill)


def test_each_copy_of_a_batch_pays_its_latency(card: Card, calls: BoxCalls) -> None:
    stream = card.stream()
    inside, outside = card.inside.address, card.outside.address
    calls.batch([(inside + at, outside + at, 4000) for at in (0, 4096, 8192)], stream)
    assert card.end_of(stream) == exactly(3 * (F.copy_latency + 4000 / F.to_device))


@pytest.mark.sim(devices=2)
def test_copy_between_devices_crosses_the_link(driver: Driver, tmp_path: Path) -> None:
    with Card(driver, tmp_path, devices=2) as card:
        peer = driver.device(1)
        with peer.alloc(1 << 20) as there:
            card.device.fill(card.inside, 7)
            card.device.synchronize()
            began, stream = card.now(), card.stream()
            contexts = [ctypes.c_void_p(), ctypes.c_void_p()]
            calls = BoxCalls(driver)
            for number, context in enumerate(contexts):
                calls.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), number)
            for to, source in ((there, card.inside), (card.other, there)):
                calls.call(
                    "cuMemcpyPeerAsync",
                    ctypes.c_uint64(to.address),
                    contexts[to is there],
                    ctypes.c_uint64(source.address),
                    contexts[source is there],
                    ctypes.c_size_t(100_000),
                    ctypes.c_void_p(stream.handle),
                )
            time = 2 * F.copy_latency + 100_000 / F.to_host + 100_000 / F.to_device
            assert card.end_of(stream) - began == exactly(time)
            result = bytearray(100_000)
            card.device.copy(result, card.other.at(0, 100_000))
            assert result == b"\x07" * 100_000
            for number in range(2):
                calls.call("cuDevicePrimaryCtxRelease_v2", number)


# Order


def test_rows_between_the_rows_of_a_copy_are_not_touched(card: Card, calls: BoxCalls) -> None:
    one, two, inside = card.stream(), card.stream(), card.inside.address
    calls.copy(side(inside, 128), side(card.outside.address, 64, HOST), 64, 100, one)
    calls.copy(side(inside + 64, 128), side(card.landing.address, 64, HOST), 64, 100, two)
    assert card.sim.reports() == []


@pytest.mark.expects_reports
def test_a_row_that_meets_another_is_a_race(card: Card, calls: BoxCalls) -> None:
    one, two, inside = card.stream(), card.stream(), card.inside.address
    calls.copy(side(inside, 128), side(card.outside.address, 64, HOST), 64, 100, one)
    calls.copy(side(inside + 64, 128), side(card.landing.address, 65, HOST), 65, 100, two)
    (report,) = card.sim.reports()
    assert (report.kind, report.address, report.nbytes) == ("race", inside + 128, 1)
    assert report.count == 99


@pytest.mark.expects_reports
@pytest.mark.parametrize("shift", [0, 63, 64])
def test_sides_of_a_copy_may_interleave_but_not_overlap(
    card: Card, calls: BoxCalls, shift: int
) -> None:
    stream, inside = card.stream(), card.inside.address
    calls.copy(side(inside + shift, 128), side(inside, 128), 64, 100, stream)
    assert kinds(card) == ([] if shift == 64 else [("overlapping_copy", "read", "write")])


@pytest.mark.expects_reports
def test_host_may_not_touch_a_row_before_the_copy_is_over(card: Card, calls: BoxCalls) -> None:
    stream = card.stream()
    calls.copy(side(card.landing.address, 128, HOST), side(card.inside.address, 64), 64, 10, stream)
    card.sim.host_access(card.landing.address + 64, 64, write=True)
    assert card.sim.reports() == []
    card.sim.host_access(card.landing.address + 128, 1, write=False)
    assert kinds(card) == [("race", "write", "read")]


@pytest.mark.expects_reports
def test_launch_of_a_captured_box_touches_its_rows(card: Card, calls: BoxCalls) -> None:
    one, two, inside = card.stream(), card.stream(), card.inside.address
    calls.begin(one)
    calls.copy(side(inside, 128), side(card.outside.address, 64, HOST), 64, 100, one)
    executable = calls.end(one)
    calls.launch(executable, one)
    card.device.fill(card.inside.at(64, 64), 1, stream=two)
    assert card.sim.reports() == []
    card.device.fill(card.inside.at(128, 64), 1, stream=two)
    assert kinds(card) == [("race", "write", "write")]
    card.device.synchronize()
    calls.destroy(executable)


@pytest.mark.expects_reports
@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ((0, 4096), (8, 4104), []),
        ((0, 4096), (8, 4096), []),
        ((0, 4096), (7, 4104), [("race", "write", "write")]),
        ((0, 4096), (4100, 8192), [("race", "read", "write")]),
        ((0, 4), (4096, 8192), [("overlapping_copy", "read", "write")]),
    ],
    ids=["apart", "one source", "two writes", "read and write", "one with itself"],
)
def test_copies_of_a_batch_are_in_no_order(
    card: Card,
    calls: BoxCalls,
    first: tuple[int, int],
    second: tuple[int, int],
    expected: list[tuple[str, str, str]],
) -> None:
    inside = card.inside.address
    copies = [(inside + to, inside + source, 8) for to, source in (first, second)]
    calls.batch(copies, card.stream())
    assert kinds(card) == expected


def test_batches_of_one_stream_are_in_order(card: Card, calls: BoxCalls) -> None:
    stream, inside = card.stream(), card.inside.address
    calls.batch([(inside, inside + 4096, 64)], stream)
    calls.batch([(inside + 8192, inside, 64)], stream)
    assert card.sim.reports() == []


@pytest.mark.expects_reports
@pytest.mark.parametrize("order", [STREAM_ORDER, DURING_CALL, ANY_ORDER])
@pytest.mark.parametrize("waits", [False, True])
def test_source_that_is_read_out_of_order_must_be_ready(
    card: Card, calls: BoxCalls, order: int, waits: bool
) -> None:
    """Only a source in stream order comes after what was issued before."""
    stream = card.stream()
    card.copy_out(4096, stream)
    if waits:
        stream.synchronize()
    calls.batch([(card.inside.address, card.landing.address, 4096)], stream, order=order)
    wrong = order != STREAM_ORDER and not waits
    assert kinds(card) == ([("race", "write", "read")] if wrong else [])


@pytest.mark.expects_reports
@pytest.mark.parametrize("order", [STREAM_ORDER, DURING_CALL, ANY_ORDER])
def test_source_is_free_on_return_only_if_read_during_the_call(
    card: Card, calls: BoxCalls, order: int
) -> None:
    stream = card.stream()
    calls.batch([(card.inside.address, card.outside.address, 4096)], stream, order=order)
    card.sim.host_access(card.outside.address, 1, write=True)
    assert kinds(card) == ([] if order == DURING_CALL else [("race", "read", "write")])


# Not there


def test_arrays_are_listed_as_not_supported(driver: Driver, card: Card, calls: BoxCalls) -> None:
    library = ctypes.CDLL(driver.path)
    array = side(card.inside.address, 64, ARRAY)
    given = Copy(array, side(card.other.address, 64), 64, 4)
    assert library.cuMemcpy2D_v2(ctypes.byref(given)) == NOT_SUPPORTED
    refused = [each.call for each in card.sim.unsupported() if each.reason == "not_supported"]
    assert refused == ["cuMemcpy2D_v2"]
