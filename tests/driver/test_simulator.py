"""The controls of the simulated GPU from Python."""

from __future__ import annotations

from typing import Any

import pytest

from vramkit.driver import Device, Driver, DriverError, Simulator

pytestmark = pytest.mark.sim_only


@pytest.fixture
def device(driver: Driver) -> Device:
    return driver.device()


@pytest.fixture
def sim(driver: Driver) -> Simulator:
    assert driver.sim is not None
    return driver.sim


def test_settings_are_those_of_the_reset(sim: Simulator) -> None:
    sim.reset(
        "allocator-study", clock="wall", checker=False, data=False, capacity="1GiB", devices=2
    )
    settings = sim.settings()
    assert (settings.profile, settings.clock) == ("allocator-study", "wall")
    assert (settings.checker, settings.data) == (False, False)
    assert (settings.capacity, settings.devices) == (1 << 30, 2)
    assert settings.host_to_device_bytes_per_s == 55.4e9
    assert settings.matmul_flops_per_s == 612.5e12


def test_bad_settings_are_refused_and_change_nothing(sim: Simulator, device: Device) -> None:
    with device.alloc(16) as memory:
        for arguments in ({"profile": "nonsense"}, {"devices": -1}, {"stacks": "deep"}):
            with pytest.raises(ValueError):
                sim.reset(**arguments)
        for arguments in ({"data": "x"}, {"checker": None}):
            with pytest.raises(TypeError, match="; it may be True or False"):
                sim.reset(**arguments)
        with pytest.raises(ValueError, match="comma"):
            sim.reset("h200,devices=2")
        assert not memory.closed


def test_device_lives_through_a_reset(sim: Simulator, driver: Driver, device: Device) -> None:
    with device.stream() as stream:
        device.kernels.spin(1000, stream=stream)
    sim.reset(capacity=1 << 28)
    assert driver.device() is device
    assert device.total_memory == 1 << 28
    with device.stream() as stream:
        device.kernels.spin(1000, stream=stream)
        stream.synchronize()


def test_device_that_a_reset_took_away(sim: Simulator, driver: Driver) -> None:
    sim.reset(devices=2)
    second = driver.device(1)
    second.alloc(16).close()
    sim.reset(devices=1)
    with pytest.raises(DriverError) as caught:
        second.alloc(16)
    assert caught.value.code == 101
    with pytest.raises(DriverError):
        driver.device(1)
    sim.reset(devices=2)
    assert driver.device(1) is second
    second.alloc(16).close()


def test_virtual_clock_runs_by_calls_and_by_hand(sim: Simulator, device: Device) -> None:
    before = sim.now()
    sim.advance(0.25)
    assert sim.now() == pytest.approx(before + 0.25)
    with device.stream() as stream:
        device.kernels.spin(1_000_000_000, stream=stream)
        stream.synchronize()
    assert sim.now() >= before + 1.25
    with pytest.raises(ValueError, match="seconds is -1; it may be a number of 0 or more"):
        sim.advance(-1)


def test_calls_are_counted(sim: Simulator, device: Device) -> None:
    sim.reset_call_counts()
    for _ in range(3):
        device.alloc(16).close()
    counts = sim.call_counts()
    assert (counts["cuMemAlloc_v2"], counts["cuMemFree_v2"]) == (3, 3)
    assert "cuMemHostAlloc" not in counts
    sim.reset_call_counts()
    assert sim.call_counts() == {}


def test_faults_come_at_the_call_asked_for(sim: Simulator, device: Device) -> None:
    sim.inject("cuMemAlloc*", nth=2, times=2, code=2)
    outcomes = []
    for _ in range(4):
        try:
            device.alloc(16).close()
            outcomes.append("fine")
        except MemoryError:
            outcomes.append("out of memory")
    assert outcomes == ["fine", "out of memory", "out of memory", "fine"]


def test_faults_without_end_end_when_cleared(sim: Simulator, device: Device) -> None:
    sim.inject("cuMemAlloc_v2", times=None, code=2)
    for _ in range(3):
        with pytest.raises(MemoryError):
            device.alloc(16)
    sim.clear_faults()
    device.alloc(16).close()


def test_slow_call_takes_longer(sim: Simulator, device: Device) -> None:
    device.alloc(16).close()
    sim.inject("cuMemAlloc_v2", delay_us=1000)
    before = sim.now()
    device.alloc(16).close()
    assert sim.now() - before > 1e-3


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "a code or a delay must be given"),
        ({"nth": 0, "code": 1}, "nth is 0; it may be an integer from 1"),
        ({"times": 0, "code": 1}, "times is 0; it may be an integer from 1"),
        ({"delay_us": -1.0}, "delay_us is -1.0; it may be a number of 0 or more"),
    ],
)
def test_fault_that_says_nothing_is_refused(
    sim: Simulator, arguments: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        sim.inject("cuMemAlloc_v2", **arguments)


def test_lost_device_answers_nothing_but_its_code(sim: Simulator, device: Device) -> None:
    device.alloc(16).close()
    sim.lose_device(code=999)
    with pytest.raises(DriverError) as caught:
        device.alloc(16)
    assert caught.value.code == 999
    with pytest.raises(ValueError, match="device 7"):
        sim.lose_device(7)
    sim.reset()
    device.alloc(16).close()


@pytest.mark.expects_reports
def test_race_is_reported_with_both_sites(sim: Simulator, device: Device) -> None:
    with device.stream() as first, device.stream() as second, device.alloc(64) as memory:
        device.fill(memory, 1, stream=first)
        device.fill(memory, 2, stream=second)
        device.synchronize()
        (report,) = sim.reports()
        assert (report.kind, report.severity) == ("race", "error")
        assert (report.address, report.nbytes) == (memory.address, 64)
        assert {report.first.stream, report.second.stream} == {first.id, second.id}
        assert report.first.access == report.second.access == "write"
        assert report.advice
    sim.clear_reports()
    assert sim.reports() == []


@pytest.mark.expects_reports
def test_accessors_tell_the_checker(sim: Simulator, device: Device) -> None:
    with device.stream() as stream, device.alloc(64) as memory, device.alloc_pinned(64) as pinned:
        pinned.write(bytes(64))
        device.fill(memory, 1, stream=stream)
        device.copy(pinned, memory, stream=stream)
        pinned.read()
        (report,) = sim.reports()
        assert report.kind == "race"
        assert None in (report.first.stream, report.second.stream)
        stream.synchronize()


def test_read_after_synchronising_is_no_race(sim: Simulator, device: Device) -> None:
    with device.stream() as stream, device.alloc(64) as memory, device.alloc_pinned(64) as pinned:
        device.fill(memory, 1, stream=stream)
        device.copy(pinned, memory, stream=stream)
        stream.synchronize()
        assert pinned.read() == b"\1" * 64
        pinned.view()[0] = 2


@pytest.mark.expects_reports
def test_use_after_free_inside_a_pool_is_reported(sim: Simulator, device: Device) -> None:
    with device.stream() as stream, device.alloc(1024) as memory:
        sim.block_alloc(memory.address, 1024, stream)
        device.fill(memory, 1, stream=stream)
        sim.block_free(memory.address, 1024, stream)
        device.fill(memory, 2, stream=stream)
        stream.synchronize()
        assert [report.kind for report in sim.reports()] == ["use_after_free"]


def test_alias_reads_device_memory(sim: Simulator, device: Device) -> None:
    import ctypes

    with device.alloc(16) as memory:
        device.copy(memory, b"behind the alias")
        device.synchronize()
        alias = sim.host_alias(memory.address)
        sim.host_access(alias, 16, write=False)
        assert ctypes.string_at(alias, 16) == b"behind the alias"
        address = memory.address
    assert sim.host_alias(address) == 0


def test_live_objects_are_counted(sim: Simulator, device: Device) -> None:
    with device.stream(), device.alloc(16), device.alloc_pinned(16):
        live = sim.live_objects()
    assert (live["streams"], live["device"], live["pinned"]) == (1, 1, 1)
    assert sum(sim.live_objects()[kind] for kind in ("streams", "device", "pinned")) == 0


def test_a_fault_may_name_a_call_without_its_version(sim: Simulator, device: Device) -> None:
    sim.inject("cuMemAlloc", code=2)
    with pytest.raises(MemoryError):
        device.alloc(16)
    device.alloc(16).close()


def test_a_fault_that_no_call_could_suffer_is_refused(sim: Simulator) -> None:
    with pytest.raises(ValueError, match="cuNoSuchCall"):
        sim.inject("cuNoSuchCall", code=2)


def test_a_view_that_outlives_a_reset_can_still_be_read(sim: Simulator, device: Device) -> None:
    memory = device.alloc_pinned(4096)
    view = memory.view()
    view[:4] = b"full"
    sim.reset()
    assert bytes(view[:4]) in (b"full", bytes(4))  # until the former machine is gone, and after


def test_waiting_kernels_end_however_late_it_is(sim: Simulator, device: Device) -> None:
    # So late that the clock's last digit is longer than the rest of a wave may be.
    sim.advance(1e5)
    with device.stream() as first, device.stream() as second:
        for number in range(200):
            device.kernels.spin(1000 + 7 * number, stream=first, blocks=3000, threads=256)
            device.kernels.spin(1500 + 3 * number, stream=second, blocks=700, threads=256)
        device.synchronize()


def test_a_flag_handed_to_and_fro_orders_both_streams(sim: Simulator, device: Device) -> None:
    with (
        device.stream() as first,
        device.stream() as second,
        device.alloc_pinned(4096) as host,
        device.alloc(4096) as data,
        device.alloc(4) as flag,
    ):
        device.fill(flag, 0)
        device.synchronize()
        for _ in range(3):
            device.copy(data, host, stream=first)
            first.write_value(flag, 1)
            second.wait_value(flag, 1, condition="eq")
            device.kernels.sweep(data, 1024, stream=second)
            second.write_value(flag, 0)
            first.wait_value(flag, 0, condition="eq")
        device.synchronize()
