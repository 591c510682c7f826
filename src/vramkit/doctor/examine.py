"""The examination: host limits always, then driver, card and measurements as far as they get."""

from __future__ import annotations

import platform
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

import msgspec

from vramkit.doctor.calls import measure_calls
from vramkit.doctor.card import card_facts, driver_facts, read_link
from vramkit.doctor.clock import clock_of
from vramkit.doctor.copies import measure_copies
from vramkit.doctor.facts import (
    CallCost,
    Card,
    CopyRate,
    Examination,
    Finding,
    Limits,
    Link,
    Pinning,
)
from vramkit.doctor.judge import in_order, judge
from vramkit.doctor.limits import read_limits
from vramkit.doctor.missing import broken_measurement, missing_driver, refusing_driver
from vramkit.doctor.pinning import measure_pinning
from vramkit.doctor.simulated import profile_link, unknown_link

if TYPE_CHECKING:
    from vramkit.driver import Device, Driver

Result = TypeVar("Result")
Open = Callable[[], "Driver"]
Tell = Callable[[str], None]


class _Run:
    """The state of one examination: what was found so far, and what went wrong."""

    def __init__(self, tell: Tell) -> None:
        self.tell = tell
        self.findings: list[Finding] = []

    def measure(self, what: str, action: Callable[[], list[Result]]) -> list[Result]:
        """A measurement that fails is a finding; the others go on."""
        from vramkit.driver import DriverError

        self.tell(f"measuring {what}")
        try:
            return action()
        except (DriverError, OSError, MemoryError) as error:
            self.findings.append(broken_measurement(what, str(error)))
            return []


def examine(open_driver: Open, ordinal: int, *, quick: bool, tell: Tell) -> Examination:
    """Opens the driver, looks at one card and measures it. Raises nothing for a missing driver.

    Takes some seconds; `quick` uses smaller sizes and fewer samples.
    """
    from vramkit.driver import DriverError, DriverNotFoundError

    run = _Run(tell)
    limits = read_limits()
    result = Examination(
        vramkit=_version(),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=f"{platform.node()}, {limits.cpus} CPUs, Linux {platform.release()}",
        limits=limits,
        driver=None,
        card=None,
        copies=[],
        calls=[],
        pinning=[],
        findings=[],
    )
    tell("opening the driver")
    try:
        driver = open_driver()
        result = _with_driver(result, driver)
        device = driver.device(ordinal)
        result = msgspec.structs.replace(result, card=_card(driver, device))
        result = _with_figures(result, run, device, quick)
    except DriverNotFoundError as error:
        run.findings.append(missing_driver(str(error)))
    except DriverError as error:
        run.findings.append(refusing_driver(str(error), error.code))
    findings = in_order(run.findings + judge(result))
    return msgspec.structs.replace(result, findings=findings)


def _version() -> str:
    import vramkit

    return vramkit.__version__


def _with_driver(result: Examination, driver: Driver) -> Examination:
    return msgspec.structs.replace(result, driver=driver_facts(driver))


def _with_figures(result: Examination, run: _Run, device: Device, quick: bool) -> Examination:
    clock = clock_of(device.driver)
    samples = 3 if quick else 5
    nbytes = _size(result.limits, device, quick)
    copies: list[CopyRate] = run.measure(
        "copies", lambda: measure_copies(device, clock, nbytes, samples)
    )
    calls: list[CallCost] = run.measure("calls", lambda: measure_calls(device, clock, samples))
    pinning: list[Pinning] = run.measure(
        "pinning", lambda: measure_pinning(device, clock, result.limits, nbytes, 3)
    )
    return msgspec.structs.replace(result, copies=copies, calls=calls, pinning=pinning)


def _size(limits: Limits, device: Device, quick: bool) -> int:
    """Bytes a buffer: enough that latency does not show, at most an eighth of what is free."""
    wanted = (64 if quick else 256) << 20
    free = min(limits.ram_available, limits.host_memory(), device.memory_info().free)
    return max(1 << 20, min(wanted, free // 8 >> 20 << 20))


def _card(driver: Driver, device: Device) -> Card:
    """The link is read under load, where it can be."""
    if driver.sim is not None:
        return card_facts(device, profile_link(driver.sim))
    return card_facts(device, _link_under_load(device))


def _link_under_load(device: Device) -> Link:
    from vramkit.driver import DriverError

    nbytes = 64 << 20
    read_link(device.pci_bus_id)  # loads NVML, which may take longer than the copies
    try:
        with ExitStack() as stack:
            stream = stack.enter_context(device.stream())
            memory = stack.enter_context(device.alloc(nbytes))
            host = stack.enter_context(device.alloc_pinned(nbytes))
            for _ in range(64):
                device.copy(memory, host, nbytes, stream=stream)
            link = read_link(device.pci_bus_id)
            stream.synchronize()
            return link
    except DriverError as error:
        return unknown_link(str(error))
