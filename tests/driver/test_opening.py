"""Which driver is opened, and what is said where none can be."""

from __future__ import annotations

import subprocess
import sys

import pytest

import vramkit
from vramkit import _core
from vramkit.driver import Driver, DriverError, DriverNotFoundError, opening


@pytest.fixture
def nothing_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "_opened", {})


def test_import_opens_no_driver() -> None:
    program = (
        "import vramkit, vramkit.driver, vramkit._core\n"
        "vramkit.driver.profiles()\n"
        "assert 'libcuda' not in open('/proc/self/maps').read()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_missing_driver_names_the_simulated_one(
    nothing_opened: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VRAMKIT_DRIVER", raising=False)
    monkeypatch.setattr(_core, "open_cuda", lambda: "no NVIDIA driver: the reason")
    with pytest.raises(DriverNotFoundError, match=r"the reason.*VRAMKIT_DRIVER=sim"):
        vramkit.driver.open()


def test_driver_without_a_card_names_the_simulated_one(
    nothing_opened: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoCard:
        def initialise(self) -> None:
            raise DriverError("cuInit", 100, "CUDA_ERROR_NO_DEVICE", "no CUDA device was found")

    monkeypatch.setattr(_core, "open_cuda", NoCard)
    with pytest.raises(DriverError, match="VRAMKIT_DRIVER=sim") as caught:
        vramkit.driver.open("cuda")
    assert (caught.value.code, caught.value.call) == (100, "cuInit")


@pytest.mark.parametrize("spec", ["", "gpu", "cuda:0", "sim:", "SIM"])
def test_bad_spec_is_refused_with_what_is_allowed(spec: str) -> None:
    with pytest.raises(ValueError, match=r'"cuda", "sim" or "sim:PROFILE".*h200'):
        vramkit.driver.open(spec)


def test_bad_spec_in_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VRAMKIT_DRIVER", "simulated")
    with pytest.raises(ValueError, match="'simulated'"):
        vramkit.driver.open()


def test_environment_chooses_the_driver(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VRAMKIT_DRIVER", driver.kind)
    assert vramkit.driver.open() is driver


def test_opened_twice_it_is_the_same_driver_and_device(driver: Driver) -> None:
    again = vramkit.driver.open(driver.kind)
    assert again is driver
    assert again.device(0) is driver.device()


@pytest.mark.sim_only
def test_simulated_driver_says_so(driver: Driver) -> None:
    assert (driver.kind, driver.simulated) == ("sim", True)
    assert driver.path.endswith("_lib/sim/libcuda.so.1")
    assert "simulated" in driver.description
    assert "h200" in driver.description
    assert "simulated" in repr(driver.device())


@pytest.mark.sim_only
def test_cuda_never_means_the_simulated_driver(driver: Driver) -> None:
    try:
        real = vramkit.driver.open("cuda")
    except (DriverNotFoundError, DriverError) as error:
        assert "VRAMKIT_DRIVER=sim" in str(error)
    else:
        assert not real.simulated


@pytest.mark.sim_only
def test_another_profile_resets_and_the_same_does_not(driver: Driver) -> None:
    assert driver.sim is not None
    device = driver.device()
    with device.alloc(1024) as memory:
        vramkit.driver.open("sim:h200")
        assert not memory.closed
        vramkit.driver.open("sim:allocator-study")
        assert memory.closed
    assert driver.sim.settings().profile == "allocator-study"
    assert driver.sim.live_objects()["device"] == 0


@pytest.mark.sim_only
def test_profile_of_the_environment_never_resets_an_open_driver(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert driver.sim is not None
    monkeypatch.setenv("VRAMKIT_DRIVER", "sim:allocator-study")
    with driver.device().alloc(1024) as memory:
        assert vramkit.driver.open() is driver
        assert not memory.closed


@pytest.mark.sim_only
def test_unknown_profile_is_refused(driver: Driver) -> None:
    with pytest.raises(ValueError, match="nonsense"):
        vramkit.driver.open("sim:nonsense")


def test_version_is_that_of_cuda(driver: Driver) -> None:
    assert driver.version >= 12000
    assert f"CUDA {driver.version // 1000}." in driver.description


def test_device_that_is_not_there(driver: Driver) -> None:
    with pytest.raises(DriverError) as caught:
        driver.device(driver.device_count())
    assert (caught.value.code, caught.value.call) == (101, "cuDeviceGet")
