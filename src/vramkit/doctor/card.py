"""What the driver says about itself and the card; the link from NVML or from the profile."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from vramkit.doctor.facts import Card, DriverFacts, Link
from vramkit.doctor.simulated import profile_name, unknown_link

if TYPE_CHECKING:
    from vramkit.driver import Device, Driver


def driver_facts(driver: Driver) -> DriverFacts:
    return DriverFacts(
        kind=driver.kind,
        simulated=driver.simulated,
        profile=profile_name(driver),
        path=driver.path,
        version=driver.version,
        description=driver.description,
        nvidia_version=None if driver.simulated else _nvidia_version(),
    )


def card_facts(device: Device, link: Link) -> Card:
    memory = device.memory_info()
    sim = device.driver.sim
    return Card(
        ordinal=device.ordinal,
        name=device.name,
        uuid=device.uuid,
        pci_bus_id=device.pci_bus_id,
        compute_capability=device.compute_capability,
        multiprocessors=device.multiprocessors,
        memory_total=memory.total,
        memory_free=memory.free,
        profile_memory=None if sim is None else sim.settings().profile_memory,
        link=link,
    )


def _nvml() -> Any:
    """The module, or None; it is Python over libnvidia-ml, which need not be there."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import pynvml  # type: ignore[import-untyped]
    except ImportError:
        return None
    return pynvml


def _nvidia_version() -> str | None:
    nvml = _nvml()
    if nvml is None:
        return None
    try:
        nvml.nvmlInit()
        try:
            version = nvml.nvmlSystemGetDriverVersion()
            return version.decode() if isinstance(version, bytes) else str(version)
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError:
        return None


def read_link(pci_bus_id: str) -> Link:
    """The link as it is now. An idle card lowers its generation: read it while copies run."""
    nvml = _nvml()
    if nvml is None:
        return unknown_link("nvidia-ml-py is not installed")
    try:
        nvml.nvmlInit()
        try:
            handle = nvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id.encode())
            return Link(
                generation=nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle),
                width=nvml.nvmlDeviceGetCurrPcieLinkWidth(handle),
                max_generation=nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle),
                max_width=nvml.nvmlDeviceGetMaxPcieLinkWidth(handle),
                source="NVML",
            )
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError as error:
        return unknown_link(f"NVML does not say: {error}")
