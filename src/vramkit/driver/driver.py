"""An opened driver."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Literal

from vramkit import _core
from vramkit.driver.device import Device
from vramkit.driver.simulator import Simulator
from vramkit.driver.types import Owner, whole

if TYPE_CHECKING:
    from vramkit.driver.timeline import Timeline


class Driver(Owner):
    """One libcuda.so.1, NVIDIA's or the simulated one; made by open()."""

    def __init__(self, session: _core.Session) -> None:
        self.session = session
        self.sim: Simulator | None = Simulator(session) if session.simulated else None
        self._devices: dict[int, Device] = {}
        self._lock = Lock()
        self._timeline: Timeline | None = None

    @property
    def simulated(self) -> bool:
        return self.sim is not None

    @property
    def kind(self) -> Literal["cuda", "sim"]:
        return "cuda" if self.sim is None else "sim"

    @property
    def path(self) -> str:
        return self.session.path

    @property
    def version(self) -> int:
        """13000 for CUDA 13.0."""
        return self.session.version()

    @property
    def description(self) -> str:
        """For tables and reports; says "simulated" and the profile if it is."""
        number = f"CUDA {self.version // 1000}.{self.version % 1000 // 10}"
        if self.sim is None:
            return f"NVIDIA driver, {number}"
        settings = self.sim.settings()
        return f"simulated GPU, profile {settings.profile}, {settings.clock} clock, {number}"

    def __repr__(self) -> str:
        if self.session.forked:
            return "<Driver of the parent process>"
        return f"<Driver: {self.description}>"

    def device_count(self) -> int:
        return self.session.device_count()

    def device(self, ordinal: int = 0) -> Device:
        """The same object for the same ordinal."""
        ordinal = whole(ordinal, "ordinal", "the number of a device")
        # Asked every time: a reset of the simulated GPU may have taken the device away. The driver
        # refuses a number that is too large; a C int must hold it.
        handle = _core.find_device(self.session, max(-1, min(ordinal, 2**31 - 1)))
        with self._lock:
            if ordinal not in self._devices:
                self._devices[ordinal] = Device(self, ordinal, handle)
            return self._devices[ordinal]

    def begin_timeline(self, timeline: Timeline) -> None:
        self.session.require_own_process()  # in a forked child the lock may be held for ever
        with self._lock:
            if self._timeline is not None:
                raise RuntimeError("a timeline of this driver is being recorded already")
            self._timeline = timeline

    def end_timeline(self, timeline: Timeline) -> None:
        with self._lock:
            if self._timeline is timeline:
                self._timeline = None
