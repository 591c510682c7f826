"""Fixtures of the conformance suite: the driver, its current context, clean-up and outcomes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from .kernels import Kernels
from .scope import Scope
from .support import Raw, ok, open_driver

RECORDED_OUTCOMES = Path(__file__).parent / "observed_h200.json"
CHILD_SECONDS = 20


class Cu:
    """cuda.bindings.driver, with the device and its retained primary context."""

    def __init__(self, driver: ModuleType, device: Any, primary: Any) -> None:
        self.module = driver
        self.device = device
        self.primary = primary

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self.module, attribute)


@pytest.fixture(scope="session")
def driver_spec(request: pytest.FixtureRequest) -> str:
    """What --driver says: "cuda", "sim" or "sim:PROFILE"."""
    return str(request.config.getoption("--driver"))


@pytest.fixture(scope="session")
def driver(driver_spec: str) -> ModuleType:
    module = open_driver(driver_spec)
    ok(module.cuInit(0))
    return module


@pytest.fixture(scope="module")
def retained(driver: ModuleType) -> Iterator[Cu]:
    device = ok(driver.cuDeviceGet(0))
    primary = ok(driver.cuDevicePrimaryCtxRetain(device))
    yield Cu(driver, device, primary)
    ok(driver.cuDevicePrimaryCtxRelease(device))


@pytest.fixture
def cu(retained: Cu) -> Iterator[Cu]:
    """The driver with the primary context current; the test must leave it current and healthy."""
    ok(retained.cuCtxPushCurrent(retained.primary))
    yield retained
    left = ok(retained.cuCtxPopCurrent())
    assert int(left) == int(retained.primary), "the test left another context current"
    ok(retained.cuCtxPushCurrent(retained.primary))
    health = retained.cuCtxSynchronize()
    ok(retained.cuCtxPopCurrent())
    ok(health)


@pytest.fixture
def scope(cu: Cu) -> Iterator[Scope]:
    with Scope(cu.module, cu.device) as scope:
        yield scope


@pytest.fixture
def raw(cu: Cu) -> Raw:
    return Raw(cu.module)


@pytest.fixture(scope="module")
def loaded_kernels(retained: Cu) -> Iterator[Kernels]:
    ok(retained.cuCtxPushCurrent(retained.primary))
    kernels = Kernels(retained.module)
    ok(retained.cuCtxPopCurrent())
    yield kernels
    ok(retained.cuCtxPushCurrent(retained.primary))
    kernels.unload()
    ok(retained.cuCtxPopCurrent())


@pytest.fixture
def kernels(loaded_kernels: Kernels, cu: Cu) -> Kernels:
    return loaded_kernels


@pytest.fixture(scope="session")
def observe(driver_spec: str) -> Callable[[str, Any], None]:
    """observe(name, value): an outcome that the documentation leaves open.

    It must equal the outcome recorded on the real card. Where none is recorded, a real card
    passes and the simulated one fails; where the record is null, no card has been asked yet, and
    the simulated one skips. VRAMKIT_OBSERVATIONS names a JSON file that collects what was seen,
    in the form of the recorded one, beside what it had from other tests before.
    """
    recorded: dict[str, Any] = json.loads(RECORDED_OUTCOMES.read_text())
    seen: dict[str, Any] = {}
    collected_in = os.environ.get("VRAMKIT_OBSERVATIONS")
    earlier: dict[str, Any] = {}
    if collected_in and Path(collected_in).exists():
        earlier = json.loads(Path(collected_in).read_text())
    if collected_in and "PYTEST_XDIST_WORKER" in os.environ:
        pytest.fail("VRAMKIT_OBSERVATIONS needs one process: run pytest without -n", pytrace=False)

    def observe(name: str, value: Any) -> None:
        assert name not in seen, f"two observations are called {name!r}"
        seen[name] = value
        if collected_in:
            every = earlier | seen
            Path(collected_in).write_text(json.dumps(every, indent=2, sort_keys=True) + "\n")
        if name not in recorded:
            assert driver_spec == "cuda", f"no recorded outcome for {name!r} (here: {value!r})"
            return
        if recorded[name] is None:
            if driver_spec != "cuda":
                pytest.skip(f"no card has been asked yet (here: {value!r})")
            return
        if _crashed(recorded[name]):
            # A card's driver dies of it: what it does before that is no promise of it.
            if driver_spec != "cuda":
                assert value["ended"] == "normally", value
            return
        assert value == recorded[name]

    return observe


@pytest.fixture(scope="session")
def undefined(driver_spec: str) -> Callable[[dict[str, Any]], None]:
    """undefined(outcome): of a use that CUDA leaves undefined, as `isolated` saw it.

    Cards and driver versions answer differently, or die: nothing is recorded and a card may do
    what it likes. The simulated one must neither crash nor hang.
    """

    def undefined(outcome: dict[str, Any]) -> None:
        if driver_spec != "cuda":
            assert outcome["ended"] == "normally", outcome

    return undefined


def _crashed(outcome: Any) -> bool:
    return isinstance(outcome, dict) and str(outcome.get("ended", "")).startswith("signal")


@pytest.fixture(scope="session")
def isolated(driver_spec: str) -> Callable[..., dict[str, Any]]:
    """isolated(source): what a snippet notes in a process of its own, and how that one ended.

    "ended" is "normally", "signal N", "time limit", or the last line of an exception.
    """

    def isolated(source: str, *, start: str = "initialised") -> dict[str, Any]:
        package = Path(__file__).parent
        search = [str(package.parent), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(part for part in search if part)}
        process = subprocess.Popen(
            [sys.executable, "-m", f"{package.name}.child", driver_spec, start],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        try:
            output, errors = process.communicate(textwrap.dedent(source), timeout=CHILD_SECONDS)
            ended = _ending(process.returncode, errors)
        except subprocess.TimeoutExpired:
            process.kill()
            output, errors = process.communicate()
            ended = "time limit"
        notes: dict[str, Any] = {}
        for line in output.splitlines():
            notes.update(json.loads(line))
        return {**notes, "ended": ended}

    return isolated


def _ending(status: int, errors: str) -> str:
    if status == 0:
        return "normally"
    if status < 0:
        return f"signal {-status}"
    lines = errors.strip().splitlines()
    return lines[-1] if lines else f"exit status {status}"
