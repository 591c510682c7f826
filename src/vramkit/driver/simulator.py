"""The controls of a simulated GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from os import fspath
from pathlib import Path
from typing import Literal

import msgspec

from vramkit import _core
from vramkit.driver.reports import Report, UnsupportedCall
from vramkit.driver.types import MOST, Owner, SupportsCudaStream, integer, number, truth

MOST_ADVANCE = 1e9  # seconds


class SimulatorSettings(msgspec.Struct):
    """The current settings of the simulated GPU; `capacity` in bytes for each device.

    `profile_memory` is the memory of the profile's card, which may be more than `capacity`. The
    rates are those of the profile; of those that compute, 0 is one that it does not know.
    """

    profile: str
    clock: Literal["virtual", "wall"]
    checker: bool
    data: bool
    capacity: int
    profile_memory: int
    devices: int
    card: str
    link_generation: int
    link_width: int
    host_to_device_bytes_per_s: float
    device_to_host_bytes_per_s: float
    matmul_flops_per_s: float
    attention_flops_per_s: float
    weights_bytes_per_s: float


class CardProcess(msgspec.Struct):
    """One of the processes that share a card, and the bytes of device memory it has."""

    pid: int
    nbytes: int = msgspec.field(name="bytes")


class SharedCard(msgspec.Struct):
    """A card that processes share: its file, its capacity in bytes, and those that use it now."""

    name: str
    path: str
    capacity: int
    processes: list[CardProcess]


class _Refusal(msgspec.Struct):
    error: str = ""


class Simulator(Owner):
    """Driver.sim: resets, the clock, the checker's reports, faults on demand and counters."""

    def __init__(self, session: _core.Session) -> None:
        self._session = session
        self._controls = _core.Controls(session)

    def reset(
        self,
        profile: str | Path = "h200",
        *,
        clock: Literal["virtual", "wall"] = "virtual",
        scale: float | None = None,
        checker: bool = True,
        data: bool = True,
        capacity: int | str | None = None,
        devices: int = 1,
        patience: float | None = None,
        stacks: Literal["off", "python", "native"] = "off",
        reports: str | Path | None = None,
        card: str | None = None,
    ) -> None:
        """Forget everything and start again.

        Streams, events and memory made before are gone and raise ClosedError when used; Device
        objects stay valid. `scale` is simulated seconds per real second on the wall clock;
        `data=False` keeps sizes and times only; `capacity` is bytes, or text such as "4GiB";
        `patience` is the real seconds after which a wait that nothing can end is a deadlock;
        `reports` is a file written at exit; `card` is the name of a card that processes of this
        user share, on the wall clock. Raises ValueError for a setting that cannot be used.
        """
        truth(checker, "checker")
        truth(data, "data")
        settings: dict[str, object] = {
            "profile": fspath(profile),
            "clock": clock,
            "checker": "on" if checker else "off",
            "data": "on" if data else "off",
            "devices": devices,
            "stacks": stacks,
        }
        if scale is not None:
            settings["scale"] = scale
        if patience is not None:
            settings["patience"] = patience
        if capacity is not None:
            settings["capacity"] = capacity
        if reports is not None:
            settings["reports"] = fspath(reports)
        if card is not None:
            settings["card"] = card
        self.apply(settings)

    def apply(self, settings: dict[str, object]) -> None:
        """Reset to settings by their names in VRAMKIT_SIM; those left out take their defaults."""
        for key, value in settings.items():
            if "," in str(value):
                raise ValueError(f"{key} is {str(value)!r}; a setting cannot hold a comma")
        self._controls.reset(",".join(f"{key}={value}" for key, value in settings.items()))
        self._session.initialise()  # forgotten with all the rest

    def settings(self) -> SimulatorSettings:
        """The settings in force. Raises ValueError if those in VRAMKIT_SIM cannot be used."""
        text = self._controls.settings()
        if error := msgspec.json.decode(text, type=_Refusal).error:
            raise ValueError(f"VRAMKIT_SIM: {error}")
        return msgspec.json.decode(text, type=SimulatorSettings)

    # Time

    def now(self) -> float:
        """Seconds since the reset on the calling thread's host clock."""
        return self._controls.now() * 1e-9

    def advance(self, seconds: float) -> None:
        """Advance the calling thread's host clock, as host work would. Virtual clock only."""
        if number(seconds, "seconds") > MOST_ADVANCE:
            raise ValueError(f"seconds is {seconds}; it may be a number from 0 to {MOST_ADVANCE:g}")
        if not self._controls.advance(seconds * 1e9):
            raise ValueError("the wall clock runs by itself; advance() needs clock='virtual'")

    def start_timeline(self, limit: int) -> None:
        """Keep the newest `limit` spans from now on; 0 stops. Device.timeline() is the way in."""
        self._controls.timeline_start(integer(limit, "limit"))

    def timeline(self) -> bytes:
        """The spans kept, as JSON."""
        return self._controls.timeline()

    # The checker

    def reports(self) -> list[Report]:
        return msgspec.json.decode(self._controls.reports(), type=list[Report])

    def reports_left_out(self) -> int:
        """How many pairs of call sites beyond the first 1000 are not in reports()."""
        return self._controls.reports_left_out()

    def unsupported(self) -> list[UnsupportedCall]:
        """Driver calls that the program asked for and the simulated GPU does not have."""
        return msgspec.json.decode(self._controls.unsupported(), type=list[UnsupportedCall])

    def clear_reports(self) -> None:
        self._controls.clear_reports()

    def host_access(self, address: int, nbytes: int, write: bool) -> None:
        """Tell the checker that host code reads or writes pinned memory, or an alias: now, or in a
        host function at that point of its stream."""
        self._controls.host_access(address, nbytes, write)

    def block_alloc(self, address: int, nbytes: int, stream: SupportsCudaStream) -> None:
        """Tell the checker that a pool hands out a range in the order of a stream."""
        self._controls.block_alloc(address, nbytes, stream)

    def block_free(self, address: int, nbytes: int, stream: SupportsCudaStream) -> None:
        """Tell the checker that a pool takes a range back in the order of a stream."""
        self._controls.block_free(address, nbytes, stream)

    def block_hold(self, address: int, nbytes: int, stream: SupportsCudaStream) -> None:
        """Tell the checker that the program has freed a block which the pool holds for uses on
        other streams; block_free() follows when they are over."""
        self._controls.block_hold(address, nbytes, stream)

    def block_region(self, address: int, nbytes: int) -> None:
        """Tell the checker that all of a range is handed out in blocks: an access outside of a
        block is an error."""
        self._controls.block_region(address, nbytes)

    @contextmanager
    def relying_on_waits(self) -> Iterator[None]:
        """Inside, the checker counts on the calling thread's cuMemFree, cuMemFreeHost and
        cuMemHostUnregister to wait for the work issued before them, which nothing documents."""
        self._controls.rely_on_waits(True)
        try:
            yield
        finally:
            self._controls.rely_on_waits(False)

    def host_alias(self, address: int) -> int:
        """The readable host address behind a device address; 0 if there is none."""
        return self._controls.host_alias(address)

    # The card that processes share

    def card(self) -> SharedCard | None:
        """The shared card and the processes that use it; None if this process has its own."""
        return msgspec.json.decode(self._controls.card(), type=SharedCard | None)

    # Faults

    def inject(
        self,
        call_glob: str,
        *,
        nth: int = 1,
        times: int | None = 1,
        code: int = 0,
        delay_us: float = 0.0,
    ) -> None:
        """From now on the nth call whose symbol matches, and the times - 1 after it, take longer
        and, with a code, do nothing but return it. times=None: all from the nth on."""
        nth = integer(nth, "nth", 1)
        count = MOST - nth if times is None else integer(times, "times", 1)
        code = integer(code, "code", 0, 2**31 - 1)
        delay_ns = number(delay_us, "delay_us") * 1e3
        if not (code or delay_ns):
            raise ValueError(f"inject({call_glob!r}): a code or a delay must be given")
        if not self._controls.inject(call_glob, nth, count, code, delay_ns):
            raise ValueError(f"the simulated GPU refuses a fault for {call_glob!r}")

    def clear_faults(self) -> None:
        self._controls.clear_faults()

    def lose_device(self, ordinal: int = 0, code: int = 719) -> None:
        """Simulate a lost device: every call on its contexts returns this code from now on."""
        ordinal = integer(ordinal, "ordinal", 0, 2**31 - 1)
        code = integer(code, "code", 1, 2**31 - 1)
        if not self._controls.lose_device(ordinal, code):
            raise ValueError(f"cannot lose device {ordinal} with code {code}")

    # Counters

    def call_counts(self) -> dict[str, int]:
        """Calls since the reset, by symbol."""
        return msgspec.json.decode(self._controls.call_counts(), type=dict[str, int])

    def reset_call_counts(self) -> None:
        self._controls.reset_call_counts()

    def live_objects(self) -> dict[str, int]:
        """How many objects of each kind exist."""
        return msgspec.json.decode(self._controls.live_objects(), type=dict[str, int])
