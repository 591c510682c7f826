"""The CUDA driver as Python objects: NVIDIA's, or a simulated GPU behind the same interface.

>>> device = vramkit.driver.open("sim").device()
>>> with device.stream() as stream, device.alloc(1 << 20) as memory:
...     device.fill(memory, 0, stream=stream)
...     stream.synchronize()
"""

from vramkit._core import Event, Stream
from vramkit.driver.device import Device
from vramkit.driver.driver import Driver
from vramkit.driver.errors import ClosedError, DriverError, DriverNotFoundError, OutOfMemoryError
from vramkit.driver.host_memory import PinnedMemory, RegisteredMemory
from vramkit.driver.kernels import Kernels
from vramkit.driver.memory import DeviceMemory, Memory
from vramkit.driver.opening import open, profiles
from vramkit.driver.reports import LeftOpen, Report, Site, UnsupportedCall
from vramkit.driver.simulator import Simulator, SimulatorSettings
from vramkit.driver.timeline import Timeline, TimelineSpan
from vramkit.driver.types import MemoryInfo, Span, SupportsCudaStream
from vramkit.driver.virtual_memory import AddressRange, PhysicalMemory

__all__ = [
    "AddressRange",
    "ClosedError",
    "Device",
    "DeviceMemory",
    "Driver",
    "DriverError",
    "DriverNotFoundError",
    "Event",
    "Kernels",
    "LeftOpen",
    "Memory",
    "MemoryInfo",
    "OutOfMemoryError",
    "PhysicalMemory",
    "PinnedMemory",
    "RegisteredMemory",
    "Report",
    "Simulator",
    "SimulatorSettings",
    "Site",
    "Span",
    "Stream",
    "SupportsCudaStream",
    "Timeline",
    "TimelineSpan",
    "UnsupportedCall",
    "open",
    "profiles",
]
