"""The slab: exact and populated, pinned by one call, and gone after any failure."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
from host.mappings import is_mapped, resident

from vramkit import _core
from vramkit.driver import ClosedError, Device, Driver, DriverError, OutOfMemoryError, host_memory
from vramkit.host import available, pages
from vramkit.host.available import Bound, HostMemoryError
from vramkit.host.pages import HUGE
from vramkit.weights import slab as module
from vramkit.weights.slab import Slab

PAGE = 4096
MIB = 1 << 20
REGISTER, UNREGISTER = "cuMemHostRegister_v2", "cuMemHostUnregister"


@pytest.fixture
def device(driver: Driver) -> Device:
    return driver.device()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The addresses of all mappings that were made."""
    addresses: list[int] = []

    class Pages(pages.HostPages):
        def __init__(self, nbytes: int) -> None:
            super().__init__(nbytes)
            addresses.append(self.address)

    monkeypatch.setattr(module, "HostPages", Pages)
    yield addresses


def registered(device: Device) -> int:
    """How many registrations the simulated GPU has."""
    assert device.driver.sim is not None
    return device.driver.sim.live_objects()["registered"]


def calls(device: Device, symbol: str) -> int:
    assert device.driver.sim is not None
    return device.driver.sim.call_counts().get(symbol, 0)


# Memory


@pytest.mark.parametrize("nbytes", [1, PAGE, PAGE + 1, HUGE, 3 * HUGE + 5 * PAGE + 1])
def test_a_slab_is_exact_aligned_and_populated(device: Device, nbytes: int) -> None:
    with Slab(device, nbytes) as slab:
        assert (slab.nbytes, slab.address % HUGE, slab.pinned) == (nbytes, 0, True)
        rounded = -(-nbytes // PAGE) * PAGE
        assert resident(slab.address, rounded) == rounded
        address = slab.address
    assert slab.closed
    assert not slab.pinned
    assert not is_mapped(address)


def test_the_card_copies_from_and_to_it(device: Device) -> None:
    nbytes = 2 * HUGE + 100
    data = numpy.arange(nbytes, dtype="u1").tobytes()
    with (
        Slab(device, nbytes) as slab,
        device.alloc(nbytes) as memory,
        device.stream() as stream,
    ):
        slab.write(data)
        device.copy(memory, slab, stream=stream)
        stream.synchronize()
        slab.write(bytes(nbytes))
        device.copy(slab.at(HUGE - 50, 100), memory.address + HUGE - 50, stream=stream)
        stream.synchronize()
        assert slab.read(HUGE - 50, 100) == data[HUGE - 50 : HUGE + 50]
        assert slab.read(HUGE + 50) == bytes(HUGE + 50)


@pytest.mark.sim_only
def test_one_call_pins_it_and_one_takes_it_back(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "PART", HUGE)
    with Slab(device, 5 * HUGE, threads=2):
        assert (calls(device, REGISTER), registered(device)) == (1, 1)
    assert (calls(device, UNREGISTER), registered(device)) == (1, 0)


@pytest.mark.sim_only
@pytest.mark.expects_reports
def test_the_checker_sees_what_the_host_reads(device: Device) -> None:
    with Slab(device, PAGE) as slab, device.alloc(PAGE) as memory, device.stream() as stream:
        device.fill(memory, 1, stream=stream)
        device.copy(slab, memory, stream=stream)
        slab.read()
        stream.synchronize()
        assert device.driver.sim is not None
        assert [report.kind for report in device.driver.sim.reports()] == ["race"]


def test_as_many_threads_as_asked_for(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int] = []
    populate = pages.HostPages.populate

    def counted(self: pages.HostPages, threads: int, *args: Any) -> None:
        used.append(threads)
        populate(self, threads, *args)

    monkeypatch.setattr(pages.HostPages, "populate", counted)
    monkeypatch.setattr(module, "default_threads", lambda: 5)
    Slab(device, PAGE, threads=3).close()
    Slab(device, PAGE).close()
    assert used == [3, 5]


# Progress


def test_progress_counts_up_to_all_of_it(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "PART", HUGE)
    told: list[tuple[int, int]] = []
    nbytes = 2 * HUGE + 1
    with Slab(device, nbytes, progress=lambda *counts: told.append(counts)):
        assert told == [(HUGE, nbytes), (2 * HUGE, nbytes), (nbytes, nbytes)]


@pytest.mark.sim_only
def test_progress_is_complete_after_the_pinning(device: Device) -> None:
    pinned: list[int] = []
    with Slab(device, PAGE, progress=lambda *counts: pinned.append(registered(device))):
        assert pinned == [1]


@pytest.mark.sim_only
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_an_interrupt_leaves_nothing_behind(
    device: Device, made: list[int], monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    monkeypatch.setattr(pages, "PART", HUGE)
    told: list[int] = []

    def progress(done: int, total: int) -> None:
        told.append(done)
        if len(told) == nth:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        Slab(device, 3 * HUGE, progress=progress)
    assert len(told) == nth
    assert calls(device, REGISTER) == calls(device, UNREGISTER) == (1 if nth == 3 else 0)
    assert [is_mapped(address) for address in made] == [False]
    assert caught.value.__context__ is None


# Bad input and limits


@pytest.mark.parametrize(
    ("nbytes", "kind", "words"),
    [
        (0, ValueError, "nbytes is 0; it may be an integer from 1"),
        (-1, ValueError, "nbytes is -1"),
        (1 << 48, ValueError, "nbytes is 281474976710656"),
        (1.5, TypeError, "nbytes is 1.5"),
        ("1GiB", TypeError, "nbytes is '1GiB'"),
        (None, TypeError, "nbytes is None"),
    ],
)
@pytest.mark.parametrize("make", [Slab, Slab.unpinned])
def test_bad_sizes_are_refused(
    device: Device, make: Any, nbytes: Any, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        make(device, nbytes)


def test_other_bad_arguments_are_refused(device: Device, made: list[int]) -> None:
    bad: Any
    for bad in (0, -1, 1025):
        with pytest.raises(ValueError, match=f"threads is {bad}; it may be None, or an integer"):
            Slab(device, PAGE, threads=bad)
    bad = "all"
    with pytest.raises(TypeError, match="threads is 'all'"):
        Slab(device, PAGE, threads=bad)
    with pytest.raises(TypeError, match="progress is 'all'; it may be None, or a function"):
        Slab(device, PAGE, progress=bad)
    with pytest.raises(TypeError, match="device is 'all'; it may be a Device"):
        Slab(bad, PAGE)
    with pytest.raises(ValueError, match="released is -1"):
        Slab.unpinned(device, PAGE, released=-1)
    assert made == []


def test_limits_are_checked_before_anything_is_mapped(
    device: Device, made: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow = Bound(HUGE, "the limit allows it", "Raise it.")
    monkeypatch.setattr(available, "bounds", lambda root: [Bound(1 << 60, "", ""), narrow])
    words = "a slab of 2.00 MiB needs 2.00 MiB of host memory, and 2 MiB are left: the limit"
    with pytest.raises(HostMemoryError, match=words):
        Slab(device, HUGE + 1)
    assert made == []
    Slab(device, HUGE).close()


def test_memory_that_is_released_meanwhile_need_not_be_there(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(available, "bounds", lambda root: [Bound(HUGE, "", "")])
    with pytest.raises(HostMemoryError, match="a slab of 8 MiB needs 4 MiB of host memory"):
        Slab.unpinned(device, 8 * MIB, released=4 * MIB)
    Slab.unpinned(device, 8 * MIB, released=6 * MIB).close()


# Failures of the driver


@pytest.mark.sim_only
def test_a_failed_pinning_is_the_drivers_error(device: Device, made: list[int]) -> None:
    assert device.driver.sim is not None
    device.driver.sim.inject("cuMemHostRegister*", code=2)
    with pytest.raises(OutOfMemoryError) as caught:
        Slab(device, HUGE)
    assert caught.value.call == REGISTER
    (note,) = caught.value.__notes__
    assert note.startswith("This was the pinning of a slab of 2 MiB. `vramkit doctor` shows")
    # Although the traceback still refers to the slab.
    assert [is_mapped(address) for address in made] == [False]
    assert calls(device, UNREGISTER) == 0
    Slab(device, HUGE).close()


@pytest.mark.sim_only
def test_the_drivers_limit_for_one_call_is_named(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REGISTERED_AT_ONCE", HUGE)
    assert device.driver.sim is not None
    device.driver.sim.inject("cuMemHostRegister*", code=2)
    with pytest.raises(OutOfMemoryError) as caught:
        Slab(device, HUGE)
    assert "register less than 512 GiB in one call: use several slabs" in caught.value.__notes__[0]


@pytest.mark.sim_only
def test_a_failure_does_not_hide_the_first_one(device: Device, made: list[int]) -> None:
    def progress(done: int, total: int) -> None:
        raise ArithmeticError

    assert device.driver.sim is not None
    device.driver.sim.inject(UNREGISTER, code=719)
    with pytest.raises(ArithmeticError):
        Slab(device, PAGE, progress=progress)
    assert [is_mapped(address) for address in made] == [False]
    _core.memory_unregister(device, made[0])  # the fault left it to the simulated GPU


@pytest.mark.sim_only
def test_memory_goes_even_if_the_driver_does_not_take_it_back(device: Device) -> None:
    slab = Slab(device, PAGE)
    address = slab.address
    assert device.driver.sim is not None
    device.driver.sim.inject(UNREGISTER, code=719)
    with pytest.raises(DriverError):
        slab.close()
    assert slab.closed
    assert not is_mapped(address)
    _core.memory_unregister(device, address)


@pytest.mark.sim_only
@pytest.mark.parametrize("method", ["close", "unpin"])
def test_an_interrupted_wait_keeps_the_memory(
    device: Device, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """The driver's call goes on, and the card may still use the pages."""

    def interrupted(device: Device, address: int) -> None:
        raise KeyboardInterrupt

    slab = Slab(device, PAGE)
    address, unregister = slab.address, _core.memory_unregister
    with monkeypatch.context() as patch:
        patch.setattr(_core, "memory_unregister", interrupted)
        with pytest.raises(KeyboardInterrupt):
            getattr(slab, method)()
    slab.close()
    del slab
    gc.collect()
    assert is_mapped(address)
    unregister(device, address)
    host_memory._held_for_good.pop()
    gc.collect()
    assert not is_mapped(address)


# Views, and memory that is no longer pinned


def test_a_view_keeps_the_slab_open(device: Device) -> None:
    slab = Slab(device, PAGE)
    view = slab.view(8, 8)
    with pytest.raises(BufferError, match=r"a view of this Slab is in use.*unpin\(\)"):
        slab.close()
    assert slab.pinned
    view[0] = 5  # not released, as torch.frombuffer() keeps the object only
    assert slab.read(8, 1) == b"\5"
    view.release()
    slab.close()


def test_an_array_keeps_the_slab_open(device: Device) -> None:
    slab = Slab(device, PAGE)
    array = numpy.frombuffer(slab.view(readonly=True), dtype="<u2")
    with pytest.raises(BufferError):
        slab.close()
    assert array[-1] == 0
    del array
    gc.collect()
    slab.close()


@pytest.mark.sim_only
def test_views_outlive_a_slab_that_is_no_longer_pinned(device: Device) -> None:
    slab = Slab(device, HUGE + PAGE)
    slab.write(b"weights", offset=HUGE)
    address, view = slab.address, slab.view(HUGE, 7)
    array = numpy.frombuffer(slab.view(0, 16), dtype="u1")
    slab.unpin()
    assert (slab.pinned, slab.closed, registered(device)) == (False, False, 0)
    del slab  # without a ResourceWarning
    gc.collect()
    assert view.tobytes() == b"weights"
    array[0] = 1
    del view
    assert is_mapped(address)
    del array
    gc.collect()
    assert not is_mapped(address)


def test_memory_stays_usable_after_unpin(device: Device) -> None:
    with Slab(device, PAGE) as slab, device.alloc(16) as memory:
        slab.write(b"weights")
        slab.unpin()
        slab.unpin()
        assert (slab.read(0, 7), slab.at(4).nbytes) == (b"weights", PAGE - 4)
        slab.write(b"W")
        slab.pin()
        slab.pin()
        assert slab.pinned
        with device.stream() as stream:
            device.copy(memory, slab.at(0, 7), stream=stream)
            stream.synchronize()
        out = bytearray(7)
        device.copy(out, memory.at(0, 7))
        assert out == b"Weights"


@pytest.mark.sim_only
@pytest.mark.expects_reports
def test_unpinning_waits_for_work_in_flight(device: Device) -> None:
    """As the driver does; that nothing promises it is what the checker reports."""
    with Slab(device, HUGE) as slab, device.alloc(HUGE) as memory, device.stream() as stream:
        device.copy(memory, slab, stream=stream)
        assert not stream.query()
        slab.unpin()
        assert stream.query()
        assert device.driver.sim is not None
        assert [report.kind for report in device.driver.sim.reports()] == ["implicit_wait"]


@pytest.mark.sim_only
def test_a_slab_that_is_filled_first_is_pinned_last(device: Device) -> None:
    with Slab.unpinned(device, 2 * HUGE) as slab:
        assert (slab.pinned, slab.address % HUGE) == (False, 0)
        assert resident(slab.address, slab.nbytes) == 0
        slab.write(b"weights", offset=HUGE)
        assert 0 < resident(slab.address, slab.nbytes) <= HUGE
        assert calls(device, REGISTER) == 0
        slab.pin()
        assert (calls(device, REGISTER), registered(device)) == (1, 1)
        assert slab.read(HUGE, 7) == b"weights"
    assert registered(device) == 0


@pytest.mark.sim_only
def test_a_forgotten_slab_is_unpinned_with_a_warning(device: Device) -> None:
    slab = Slab(device, PAGE)
    slab.write(b"weights")
    address, view = slab.address, slab.view()
    with pytest.warns(ResourceWarning, match="unclosed <Slab of 4096 bytes at 0x"):
        del slab
    assert registered(device) == 0
    assert view[:7] == b"weights"
    view.release()
    del view
    assert not is_mapped(address)


# As other memory


def test_a_closed_slab_is_refused(device: Device) -> None:
    slab = Slab(device, PAGE)
    slab.close()
    slab.close()
    for use in (slab.pin, slab.unpin, slab.read, slab.view, slab.at):
        with pytest.raises(ClosedError, match="this Slab is closed"):
            use()
    assert repr(slab) == "<Slab of 4096 bytes closed>"


@pytest.mark.sim_only
def test_a_reset_closes_it(device: Device) -> None:
    slab = Slab(device, PAGE)
    address = slab.address
    assert device.driver.sim is not None
    device.driver.sim.reset()
    assert slab.closed
    assert not slab.pinned
    with pytest.raises(ClosedError, match="was reset"):
        slab.unpin()
    slab.close()
    del slab
    gc.collect()
    assert not is_mapped(address)


def test_a_slab_has_no_copies(device: Device) -> None:
    with Slab(device, PAGE) as slab:
        for way in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="a Slab can be neither copied nor pickled"):
                way(slab)
