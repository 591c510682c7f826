"""A card with round figures, and what the tests of the clock share. All times are nanoseconds."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pytest

from vramkit.driver import DeviceMemory, Driver, Event, Stream

MEMORY = 1 << 20  # bytes of each of the blocks that tests copy between
THREADS = 1024  # of a multiprocessor, and of the blocks that tests launch


@dataclass(frozen=True)
class Figures:
    """What the profile says: rates in bytes a nanosecond, times in nanoseconds."""

    to_device: float = 4
    to_host: float = 2
    duplex: float = 1
    pageable_to_device: float = 0.5
    pageable_to_host: float = 0.25
    on_device: float = 8
    fill: float = 16
    kernel_memory: float = 10
    copy_latency: float = 1000
    launch_latency: float = 500
    minimum_duration: float = 100
    record: float = 10
    wait: float = 20
    host_function: float = 300
    multiprocessors: int = 10
    calls: dict[str, object] = field(default_factory=dict)  # all others cost nothing
    calls_busy: dict[str, object] = field(default_factory=dict)

    def write(self, folder: Path) -> Path:
        """A profile of its own file: nothing is taken from those that are shipped."""

        def rate(bytes_per_ns: float) -> str:
            return repr(bytes_per_ns * 1e9)

        lines = [
            'name = "round"',
            'device_name = "Round figures"',
            "compute_major = 9",
            "compute_minor = 0",
            f"multiprocessors = {self.multiprocessors}",
            f"threads_per_multiprocessor = {THREADS}",
            "total_memory = 200_000_000_000",
            "granularity = 2_097_152",
            "copy_engines = 3",
            "link_generation = 5",
            "link_width = 16",
            "l2_bytes = 0",
            "clock_khz = 1_000_000",
            "memory_clock_khz = 1_000_000",
            "memory_bus_bits = 1024",
            "driver_version = 13000",
            "[link]",
            f"host_to_device_bytes_per_s = {rate(self.to_device)}",
            f"device_to_host_bytes_per_s = {rate(self.to_host)}",
            f"duplex_bytes_per_s = {rate(self.duplex)}",
            f"pageable_host_to_device_bytes_per_s = {rate(self.pageable_to_device)}",
            f"pageable_device_to_host_bytes_per_s = {rate(self.pageable_to_host)}",
            f"device_to_device_bytes_per_s = {rate(self.on_device)}",
            f"memset_bytes_per_s = {rate(self.fill)}",
            f"copy_latency_ns = {self.copy_latency}",
            "[kernels]",
            f"launch_latency_ns = {self.launch_latency}",
            f"minimum_duration_ns = {self.minimum_duration}",
            *(
                f"{kernel}_bytes_per_s = {rate(self.kernel_memory)}"
                for kernel in ("fill", "add", "sweep", "checksum")
            ),
            f"event_record_ns = {self.record}",
            f"event_wait_ns = {self.wait}",
            f"host_function_ns = {self.host_function}",
            "[calls]",
            "default = 0",
            *(f"{call} = {cost}" for call, cost in self.calls.items()),
            "[calls_busy]",
            *(f"{call} = {cost}" for call, cost in self.calls_busy.items()),
        ]
        path = folder / "round.toml"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path


ROUND = Figures()


class Card:
    """A fresh simulated card, its clock at 0; what is made on it is closed in the end."""

    def __init__(
        self, driver: Driver, folder: Path, figures: Figures = ROUND, **options: Any
    ) -> None:
        assert driver.sim is not None
        driver.sim.reset(profile=figures.write(folder), **options)
        self.sim = driver.sim
        self.device = driver.device()
        self.figures = figures
        self._things = ExitStack()
        self.inside, self.other = self.memory(), self.memory()
        self.outside = self._things.enter_context(self.device.alloc_pinned(MEMORY))
        self.landing = self._things.enter_context(self.device.alloc_pinned(MEMORY))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        self.device.synchronize()
        self._things.close()

    def memory(self, nbytes: int = MEMORY) -> DeviceMemory:
        return self._things.enter_context(self.device.alloc(nbytes))

    def stream(self, *, blocking: bool = False, priority: int = 0) -> Stream:
        return self._things.enter_context(self.device.stream(blocking=blocking, priority=priority))

    def streams(self, count: int) -> list[Stream]:
        return [self.stream() for _ in range(count)]

    def event(self) -> Event:
        return self._things.enter_context(self.device.event())

    # Work. The two directions use memory of their own, so that they may run at once.

    def copy_in(self, nbytes: int, stream: Stream, *, into: DeviceMemory | None = None) -> None:
        self.device.copy((into or self.inside).at(0, nbytes), self.outside, nbytes, stream=stream)

    def copy_out(self, nbytes: int, stream: Stream) -> None:
        self.device.copy(self.landing, self.other.at(0, nbytes), nbytes, stream=stream)

    def spin(self, nanoseconds: int, stream: Stream, *, multiprocessors: int | None = None) -> None:
        """Fills as many multiprocessors, by default all; more than there are run in waves."""
        blocks = self.figures.multiprocessors if multiprocessors is None else multiprocessors
        self.device.kernels.spin(nanoseconds, stream=stream, blocks=blocks, threads=THREADS)

    # Time

    def now(self) -> float:
        return self.sim.now() * 1e9

    def advance(self, nanoseconds: float) -> None:
        self.sim.advance(nanoseconds * 1e-9)

    def end_of(self, stream: Stream) -> float:
        """When all that the stream was given is done; the host waits for it."""
        stream.synchronize()
        return self.now()


def exactly(nanoseconds: float) -> Any:
    """Sums of a few terms: equal but for the last bits."""
    return pytest.approx(nanoseconds, rel=1e-9, abs=1e-6)


def as_event_time(nanoseconds: float) -> Any:
    """Seconds that went through the driver's 32-bit milliseconds."""
    return pytest.approx(nanoseconds * 1e-9, rel=1e-6)
