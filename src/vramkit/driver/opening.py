"""Chooses and opens a driver."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from threading import Lock

from vramkit import _core
from vramkit.driver.device import Device
from vramkit.driver.driver import Driver
from vramkit.driver.errors import DriverError, DriverNotFoundError
from vramkit.driver.types import shown, whole

HINT = (
    "To work without an NVIDIA GPU, choose the simulated one: VRAMKIT_DRIVER=sim, "
    'or vramkit.driver.open("sim").'
)

_lock = Lock()
_opened: dict[str, Driver] = {}


def open(spec: str | None = None) -> Driver:
    """Open "cuda" (NVIDIA's driver), "sim" or "sim:PROFILE" (a simulated GPU).

    Without a spec, the environment's VRAMKIT_DRIVER decides, else "cuda"; nothing is simulated
    unless asked for. Opened twice, a driver is the same object. A profile given here resets the
    simulated GPU if another one is in use; one from VRAMKIT_DRIVER counts on first opening only.
    """
    _refuse_forked()
    given = spec is not None
    if spec is None:
        spec = os.environ.get("VRAMKIT_DRIVER") or "cuda"
    kind, profile = parse_spec(spec)
    with _lock:
        known = _opened.get(kind)
        driver = known or (_open_sim() if kind == "sim" else _open_cuda())
        if profile is not None and (given or known is None):
            _apply_profile(driver, profile)
        _opened[kind] = driver
        return driver


def parse_spec(spec: str) -> tuple[str, str | None]:
    """Kind and profile. Raises ValueError."""
    if not isinstance(spec, str):
        raise TypeError(f'the driver is {shown(spec)}; it may be "cuda", "sim" or "sim:PROFILE"')
    kind, colon, profile = spec.partition(":")
    if kind == "sim" and (profile or not colon):
        return kind, profile or None
    if spec == "cuda":
        return kind, None
    raise ValueError(
        f'the driver is {spec!r}; it may be "cuda", "sim" or "sim:PROFILE", where PROFILE is one '
        f"of {', '.join(profiles()) or '(none installed)'} or a path to a .toml"
    )


def sim_folder() -> Path:
    """Where the simulated libcuda.so.1 and its profiles are installed."""
    return Path(_core.__file__).parent / "_lib" / "sim"


def profiles() -> list[str]:
    """The profiles that come with the simulated GPU."""
    return sorted(path.stem for path in (sim_folder() / "profiles").glob("*.toml"))


def device_of(given: Device | int | None) -> Device:
    """The given device, or that of a number (None: 0) of the driver that open() chooses.

    Raises ClosedError in a forked child.
    """
    _refuse_forked()
    if isinstance(given, Device):
        return given
    ordinal = 0 if given is None else whole(given, "device", "a Device, an int or None")
    return open().device(ordinal)


def _refuse_forked() -> None:
    """CUDA does not survive a fork: a child cannot use the parent's driver, nor open it again."""
    for driver in _opened.values():
        driver.session.require_own_process()


def _open_cuda() -> Driver:
    found = _core.open_cuda()
    if isinstance(found, str):
        raise DriverNotFoundError(f"{found.rstrip('.')}. {HINT}")
    try:
        found.initialise()
    except DriverError as error:
        meaning = f"{error.meaning}. {HINT}"
        raise type(error)(error.call, error.code, error.name, meaning) from None
    return Driver(found)


def _open_sim() -> Driver:
    library = sim_folder() / "libcuda.so.1"
    found = _core.open_path(str(library))
    if isinstance(found, str):
        raise DriverNotFoundError(f"the simulated GPU is not usable: {found}; reinstall vramkit")
    if not found.simulated:
        raise DriverNotFoundError(f"{library} is not the simulated GPU; reinstall vramkit")
    driver = Driver(found)
    assert driver.sim is not None
    driver.sim.settings()  # a bad VRAMKIT_SIM is told by its reason, not by the code of cuInit
    found.initialise()
    return driver


def reset_simulator(driver: Driver, spec: str, settings: Mapping[str, object]) -> None:
    """A fresh simulated GPU: these settings, over the profile of `spec`, over VRAMKIT_SIM."""
    assert driver.sim is not None
    profile = parse_spec(spec)[1]
    chosen: dict[str, object] = {} if profile is None else {"profile": profile}
    driver.sim.apply(_environment_settings() | chosen | dict(settings))


def _apply_profile(driver: Driver, profile: str) -> None:
    assert driver.sim is not None
    if driver.sim.settings().profile != profile:
        reset_simulator(driver, f"sim:{profile}", {})


def _environment_settings() -> dict[str, object]:
    """Of VRAMKIT_SIM, which the library itself reads on first use."""
    pairs = (item.partition("=") for item in os.environ.get("VRAMKIT_SIM", "").split(",") if item)
    return {key.strip(): value for key, _, value in pairs}
