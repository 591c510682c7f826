"""Streams: foreign ones, order, values, host functions."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from typing import Any

import pytest
from pool.graphs import Graphs
from pool.support import eventually

from vramkit.driver import Driver, DriverError, Stream

LONG_NS = 100_000_000


class Foreign:
    """A stream of some other library."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def __cuda_stream__(self) -> Any:
        return self.answer


def test_stream_offers_the_protocol(driver: Driver) -> None:
    with driver.device().stream() as stream:
        assert stream.__cuda_stream__() == (0, stream.handle)


def test_foreign_stream_is_used_as_the_stream_it_names(driver: Driver) -> None:
    device = driver.device()
    with device.stream() as stream, device.alloc(16) as memory:
        foreign = Foreign(stream.__cuda_stream__())
        device.kernels.spin(LONG_NS, stream=foreign)
        assert not stream.query()
        device.fill(memory, 7, stream=foreign)
        with device.stream() as other, device.event() as event:
            other.wait(foreign)
            event.record(foreign)
            other.synchronize()
            assert event.query()
        out = bytearray(16)
        device.copy(out, memory, stream=foreign)
        stream.synchronize()
        assert out == b"\7" * 16


@pytest.mark.parametrize(
    ("stream", "error", "text"),
    [
        (5, TypeError, "Stream.from_handle"),
        ("stream", TypeError, "__cuda_stream__, not str"),
        (Foreign(5), TypeError, r"\(version, handle\)"),
        (Foreign((0, 1, 2)), TypeError, r"\(version, handle\)"),
        (Foreign((0, "x")), TypeError, r"Foreign.*\(version, handle\).*integer.*not \(0, 'x'\)"),
        (Foreign((0, "0")), TypeError, r"not \(0, '0'\)"),
        (Foreign((0, None)), TypeError, r"not \(0, None\)"),
        (Foreign((0, -5)), TypeError, r"not \(0, -5\)"),
        (Foreign((0, 2**64)), TypeError, r"not \(0, 18446744073709551616\)"),
        (Foreign((1, 0)), ValueError, "version 0"),
        (Foreign((2**70, 0)), ValueError, "version 0"),
    ],
)
def test_what_is_no_stream_is_refused(
    driver: Driver, stream: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        driver.device().kernels.spin(1, stream=stream)


def test_stream_from_handle_is_borrowed(driver: Driver) -> None:
    device = driver.device()
    with device.stream() as stream:
        with Stream.from_handle(device, stream.handle) as borrowed:
            assert (borrowed.handle, borrowed.id) == (stream.handle, stream.id)
        assert borrowed.closed
        stream.synchronize()


def test_stream_knows_its_device_and_kind(driver: Driver) -> None:
    device = driver.device()
    least, greatest = device.priority_range
    with device.stream() as plain, device.stream(blocking=True, priority=greatest) as urgent:
        assert plain.device is device
        assert (plain.blocking, urgent.blocking) == (False, True)
        assert (plain.priority, urgent.priority) == (0, greatest)
        assert plain.id != urgent.id
    assert greatest <= least


def test_ids_are_not_reused(driver: Driver) -> None:
    device = driver.device()
    seen = set()
    for _ in range(5):
        with device.stream() as stream:
            seen.add(stream.id)
    assert len(seen) == 5


def test_default_streams_have_their_handles(driver: Driver) -> None:
    device = driver.device()
    assert (device.legacy_stream.handle, device.per_thread_stream.handle) == (1, 2)
    assert "legacy" in repr(device.legacy_stream)
    device.legacy_stream.close()
    device.legacy_stream.synchronize()


def test_per_thread_stream_is_another_on_every_thread(driver: Driver) -> None:
    device = driver.device()
    stream = device.per_thread_stream
    ids = [stream.id]
    thread = threading.Thread(target=lambda: ids.append(stream.id))
    thread.start()
    thread.join()
    assert len(set(ids)) == 2
    assert stream.id == ids[0]


def test_stream_waits_for_an_event_and_for_a_stream(driver: Driver) -> None:
    device = driver.device()
    with device.stream() as first, device.stream() as second, device.stream() as third:
        device.kernels.spin(LONG_NS, stream=first)
        second.wait(first.record())
        third.wait(second)
        assert not third.query()
        third.synchronize()
        assert first.query()
        assert second.query()


def test_record_makes_an_event_or_takes_one(driver: Driver) -> None:
    device = driver.device()
    with device.stream() as stream, device.event() as event:
        assert stream.record(event) is event
        with stream.record() as made:
            made.synchronize()
            assert made.elapsed_since(event) >= 0


def test_elapsed_time_spans_the_work_between(driver: Driver) -> None:
    device = driver.device()
    with device.stream() as stream, stream.record() as begin:
        device.kernels.spin(2_000_000, stream=stream)
        with stream.record() as end:
            end.synchronize()
            assert 0.002 <= end.elapsed_since(begin) < 0.1


def test_event_without_timing_has_no_time(driver: Driver) -> None:
    device = driver.device()
    with device.stream() as stream, device.event(timing=False) as a, device.event() as b:
        stream.record(a)
        stream.record(b)
        stream.synchronize()
        with pytest.raises(DriverError) as caught:
            b.elapsed_since(a)
    assert caught.value.call == "cuEventElapsedTime"


@pytest.mark.parametrize("width", [4, 8])
def test_values_hold_and_release_a_stream(driver: Driver, width: int) -> None:
    device = driver.device()
    with device.stream() as holder, device.stream() as giver, device.alloc(8) as flag:
        device.fill(flag, 0)
        device.synchronize()
        value = (1 << 8 * width) - 1
        holder.wait_value(flag, value, condition="eq", width=width)
        assert not holder.query()
        giver.write_value(flag.address, value, width=width)
        holder.synchronize()


def test_bad_values_are_refused(driver: Driver) -> None:
    device = driver.device()
    with device.stream() as stream, device.alloc(8) as flag:
        with pytest.raises(ValueError, match="width=8"):
            stream.write_value(flag, 1 << 32)
        with pytest.raises(ValueError, match="4 or 8"):
            stream.write_value(flag, 1, width=2)
        with pytest.raises(ValueError, match='"geq", "eq", "and" or "nor"'):
            stream.wait_value(flag, 1, condition="gt")
        with pytest.raises(TypeError, match="address"):
            stream.write_value("flag", 1)


def test_host_functions_run_in_order_on_the_stream(driver: Driver) -> None:
    device = driver.device()
    ran: list[int] = []
    with device.stream() as stream:
        for number in range(10):
            stream.host_function(lambda number=number: ran.append(number))
        stream.synchronize()
        assert ran == list(range(10))


def test_host_function_lives_until_it_has_run_and_no_longer(driver: Driver) -> None:
    ran: list[str] = []

    class Function:
        def __init__(self) -> None:
            self.text = "alive"

        def __call__(self) -> None:
            ran.append(self.text)

    device = driver.device()
    with device.stream() as stream:
        function = Function()
        alive = weakref.ref(function)
        device.kernels.spin(LONG_NS, stream=stream)
        stream.host_function(function)
        del function
        stream.synchronize()
        gc.collect()
    assert ran == ["alive"]
    assert alive() is None


@pytest.mark.sim_only
def test_host_function_of_a_graph_runs_with_every_launch_and_goes_with_it(driver: Driver) -> None:
    ran: list[int] = []

    class Function:
        def __call__(self) -> None:
            ran.append(1)

    with driver.device().stream() as stream:
        function = Function()
        alive = weakref.ref(function)
        graphs = Graphs(driver)
        with graphs.capture(stream) as graph:
            stream.host_function(function)
        del function
        for _ in range(3):
            graph.launch(stream)
        stream.synchronize()
        gc.collect()
        assert (len(ran), alive() is not None) == (3, True)
        graph.close()
        assert eventually(lambda: alive() is None)
        graphs.close()


def test_error_in_a_host_function_reaches_the_unraisable_hook(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    caught: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda info: caught.append(info.exc_type))
    with driver.device().stream() as stream:
        stream.host_function(lambda: 1 / 0)
        stream.synchronize()
        stream.synchronize()
    assert caught == [ZeroDivisionError]


@pytest.mark.sim_only
def test_host_function_that_is_refused_is_let_go(driver: Driver) -> None:
    assert driver.sim is not None

    def function() -> None:
        pass

    driver.sim.inject("cuLaunchHostFunc", code=719)
    alive = weakref.ref(function)
    with driver.device().stream() as stream, pytest.raises(DriverError):
        stream.host_function(function)
    del function
    gc.collect()
    assert alive() is None


def test_host_function_must_be_callable(driver: Driver) -> None:
    with driver.device().stream() as stream, pytest.raises(TypeError):
        stream.host_function(5)  # type: ignore[arg-type]
