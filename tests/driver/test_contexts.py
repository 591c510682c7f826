"""Calls use the device's primary context and leave a thread's own context alone."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator

import pytest

from vramkit.driver import Driver


class Raw:
    """The driver's own calls on the current context."""

    def __init__(self, driver: Driver) -> None:
        self._library = ctypes.CDLL(driver.path)

    def current(self) -> int | None:
        context = ctypes.c_void_p()
        assert self._library.cuCtxGetCurrent(ctypes.byref(context)) == 0
        return context.value

    def create(self) -> int | None:
        """Makes a context and leaves it current."""
        context = ctypes.c_void_p()
        assert self._library.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
        return context.value

    def destroy(self, context: int | None) -> None:
        assert self._library.cuCtxDestroy_v2(ctypes.c_void_p(context)) == 0


@pytest.fixture
def raw(driver: Driver) -> Raw:
    return Raw(driver)


@pytest.fixture
def other(raw: Raw) -> Iterator[int | None]:
    context = raw.create()
    yield context
    raw.destroy(context)


def in_new_thread(body: Callable[[], None]) -> None:
    failures: list[BaseException] = []

    def run() -> None:
        try:
            body()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]


def test_another_current_context_is_kept(driver: Driver, raw: Raw, other: int | None) -> None:
    device = driver.device()
    with device.stream() as stream, device.alloc(16) as memory:
        device.fill(memory, 1, stream=stream)
        device.kernels.spin(1000, stream=stream)
        stream.synchronize()
        with pytest.raises(RuntimeError):
            device.alloc(0)
        assert raw.current() == other
    assert raw.current() == other


def test_thread_without_a_context_gets_the_primary_one(driver: Driver, raw: Raw) -> None:
    device = driver.device()
    seen: list[int | None] = []

    def body() -> None:
        assert raw.current() is None
        device.memory_info()
        seen.append(raw.current())

    in_new_thread(body)
    in_new_thread(body)
    assert seen[0] is not None
    assert seen[0] == seen[1]


def test_objects_work_from_any_thread(driver: Driver) -> None:
    device = driver.device()
    out = bytearray(4)
    with device.stream() as stream, device.alloc(4) as memory:
        in_new_thread(lambda: device.fill(memory, 5, stream=stream))
        in_new_thread(lambda: device.copy(out, memory, stream=stream))
        in_new_thread(stream.synchronize)
    assert out == b"\5" * 4


@pytest.mark.sim_only
@pytest.mark.sim(devices=2)
def test_devices_do_not_mix(driver: Driver) -> None:
    first, second = driver.device(0), driver.device(1)
    with first.alloc(64 << 20), second.stream() as stream:
        assert first.memory_info().free < second.memory_info().free
        assert stream.device is second
        second.kernels.spin(1000, stream=stream)
        stream.synchronize()
