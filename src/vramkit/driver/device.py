"""A GPU: what it is, and everything that is made on it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING

from vramkit import _core
from vramkit._core import Event, Stream
from vramkit.driver.host_memory import PinnedMemory, RegisteredMemory
from vramkit.driver.kernels import Kernels
from vramkit.driver.memory import DeviceMemory
from vramkit.driver.operands import Addressed, Operand, addressed, copy_size, locate
from vramkit.driver.timeline import SPANS_KEPT, EventRecorder, Timeline
from vramkit.driver.types import (
    MemoryInfo,
    SupportsBuffer,
    SupportsCudaStream,
    integer,
    size,
    truth,
    whole,
)
from vramkit.driver.virtual_memory import AddressRange, PhysicalMemory

if TYPE_CHECKING:
    from vramkit.driver.driver import Driver

LEGACY_HANDLE = 1
PER_THREAD_HANDLE = 2

# By the kinds of destination and source: the lane of the timeline, and the call.
COPIES = {
    ("device", "host"): ("host to device", _core.copy_to_device),
    ("host", "device"): ("device to host", _core.copy_to_host),
    ("device", "device"): ("on device", _core.copy_on_device),
    ("host", "host"): ("on host", _core.copy_on_host),
}

ATTRIBUTES = _core.device_attributes()  # numbers by name

NOT_RECORDED: AbstractContextManager[None] = nullcontext()


class Device(_core.Device):
    """One GPU of a driver; Driver.device() returns it, the same object each time.

    Uses the primary context, as the CUDA runtime does. A thread that has another context current
    keeps it; in a thread without one, this becomes current. Usable from any thread.
    """

    def __init__(self, driver: Driver, ordinal: int, handle: int) -> None:
        super().__init__(driver.session, ordinal, handle)
        self.driver = driver
        self.recorder: EventRecorder | None = None

    def __repr__(self) -> str:
        if self.forked:
            return f"<Device {self.ordinal} of the parent process>"
        return f"<Device {self.ordinal}: {self.name}; {self.driver.description}>"

    @property
    def compute_capability(self) -> tuple[int, int]:
        return (
            self.attribute("COMPUTE_CAPABILITY_MAJOR"),
            self.attribute("COMPUTE_CAPABILITY_MINOR"),
        )

    @property
    def multiprocessors(self) -> int:
        return self.attribute("MULTIPROCESSOR_COUNT")

    def attribute(self, which: int | str) -> int:
        """A device attribute, by its number or by its name without CU_DEVICE_ATTRIBUTE_."""
        if isinstance(which, str):
            name = which.removeprefix("CU_DEVICE_ATTRIBUTE_")
            if name not in ATTRIBUTES:
                raise ValueError(
                    f"no attribute {which!r} is known here; it may be a number, or one of "
                    f"{', '.join(sorted(ATTRIBUTES))}"
                )
            which = ATTRIBUTES[name]
        number = whole(which, "which", "the name or the number of an attribute")
        return _core.device_attribute(self, number)

    def memory_info(self) -> MemoryInfo:
        """Free and total bytes of the card."""
        return MemoryInfo(*_core.memory_info(self))

    # Streams and events

    def stream(self, *, blocking: bool = False, priority: int = 0) -> Stream:
        """A new stream; a blocking one is ordered with the legacy default stream."""
        return _core.create_stream(
            self, truth(blocking, "blocking"), integer(priority, "priority", -(2**31), 2**31 - 1)
        )

    @property
    def legacy_stream(self) -> Stream:
        """The default stream that all threads share."""
        return Stream.from_handle(self, LEGACY_HANDLE)

    @property
    def per_thread_stream(self) -> Stream:
        """The per-thread default stream: that of the thread that uses it."""
        return Stream.from_handle(self, PER_THREAD_HANDLE)

    def event(self, *, timing: bool = True) -> Event:
        """A new event; without timing it is cheaper, and elapsed_since() fails."""
        return _core.create_event(self, truth(timing, "timing"))

    # Memory

    def alloc(self, nbytes: int) -> DeviceMemory:
        """Memory on the card, by cuMemAlloc; a pool is faster and frees without a wait."""
        return DeviceMemory(self, size(nbytes))

    def alloc_pinned(self, nbytes: int) -> PinnedMemory:
        """Host memory that the card reads and writes at the full rate of the link."""
        return PinnedMemory(self, size(nbytes))

    def register(
        self, buffer: SupportsBuffer | int, *, nbytes: int | None = None
    ) -> RegisteredMemory:
        """Pin existing memory: a writable buffer object, or an address with nbytes."""
        return RegisteredMemory(self, buffer, nbytes)

    @property
    def granularity(self) -> int:
        """Sizes for reserve() and create() must be multiples of this."""
        return _core.virtual_granularity(self)

    def reserve(self, nbytes: int) -> AddressRange:
        """Reserve addresses without memory; AddressRange.map() maps memory there."""
        return AddressRange(self, size(nbytes))

    def create(self, nbytes: int) -> PhysicalMemory:
        """Create memory without an address."""
        return PhysicalMemory(self, size(nbytes))

    # Work

    def copy(
        self,
        dst: Operand,
        src: Operand,
        nbytes: int | None = None,
        *,
        stream: SupportsCudaStream | None = None,
    ) -> None:
        """Copy bytes between memory, spans, Buffers of a pool, addresses and buffer objects.

        Without nbytes, the whole source, which must fit. An address must be that of device, pinned
        or registered memory; pageable memory is passed as a buffer object (bytes, bytearray,
        array). Without a stream it is the driver's synchronous call. In a stream, pinned memory
        must stay valid until the copy is done; a pageable source may be reused on return, and a
        pageable destination is complete on return.
        """
        target = locate(self, dst, writable=True)
        source = locate(self, src, writable=False)
        count = copy_size(target, source, nbytes)
        lane, call = COPIES[target.kind, source.kind]
        with self.recorded("copy", lane, stream, count):
            call(self, target.address, source.address, count, stream)

    def fill(
        self,
        dst: Addressed,
        value: int,
        nbytes: int | None = None,
        *,
        width: int = 1,
        stream: SupportsCudaStream | None = None,
    ) -> None:
        """Set every 1-, 2- or 4-byte word to a value. Without nbytes, the whole destination."""
        width = integer(width, "width")
        if width not in (1, 2, 4):
            raise ValueError(f"width is {width}; it may be 1, 2 or 4 bytes")
        value = integer(value, "value", 0, (1 << 8 * width) - 1)
        target, known = addressed(dst, "dst")
        if nbytes is None and known is None:
            raise TypeError("fill() of an address needs nbytes")
        count = known if nbytes is None else size(nbytes)
        assert count is not None
        if known is not None and count > known:
            raise ValueError(f"cannot fill {count} bytes: the destination has {known}")
        if count % width:
            raise ValueError(f"nbytes is {count}; it must be a multiple of width, {width}")
        with self.recorded("fill", "on device", stream, count):
            _core.fill(self, target, value, count // width, width, stream)

    @cached_property
    def kernels(self) -> Kernels:
        return Kernels(self)

    def timeline(self, *, limit: int = SPANS_KEPT) -> Timeline:
        """Records what runs inside a with statement; see Timeline."""
        return Timeline(self, limit)

    def recorded(
        self, name: str, lane: str, stream: SupportsCudaStream | None, nbytes: int
    ) -> AbstractContextManager[None]:
        """Records events around an operation while a timeline of a real card is recorded."""
        if self.recorder is None:
            return NOT_RECORDED
        return self.recorder.operation(name, lane, stream, nbytes)
