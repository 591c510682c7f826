"""Errors carry the driver's code and name and the call that failed."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from vramkit import _core
from vramkit.driver import Driver, DriverError, OutOfMemoryError

ERRORS = Path(__file__).parents[2] / "native" / "driver" / "errors.def"


def test_failed_call_tells_code_name_and_call(driver: Driver) -> None:
    with pytest.raises(DriverError) as caught:
        driver.device().alloc(0)
    error = caught.value
    assert (error.code, error.name, error.call) == (1, "CUDA_ERROR_INVALID_VALUE", "cuMemAlloc_v2")
    assert str(error).startswith("cuMemAlloc_v2 failed: CUDA_ERROR_INVALID_VALUE (1): ")
    assert not isinstance(error, MemoryError)


def test_out_of_memory_is_a_memory_error(driver: Driver) -> None:
    device = driver.device()
    with pytest.raises(MemoryError) as caught:
        device.alloc(device.total_memory * 2)
    assert isinstance(caught.value, OutOfMemoryError)
    assert (caught.value.code, caught.value.call) == (2, "cuMemAlloc_v2")


@pytest.mark.parametrize("kind", [DriverError, OutOfMemoryError])
def test_errors_can_be_pickled(kind: type[DriverError]) -> None:
    error = pickle.loads(pickle.dumps(kind("cuInit", 999, "CUDA_ERROR_UNKNOWN", "unknown")))
    assert type(error) is kind
    assert (error.call, error.code, error.name) == ("cuInit", 999, "CUDA_ERROR_UNKNOWN")


def test_every_code_of_the_list_has_its_name_and_meaning() -> None:
    rows = re.findall(r'VRAMKIT_RESULT\((\w+), (\d+), "(.*)"\)', ERRORS.read_text("utf-8"))
    assert len(rows) > 50
    assert [(name, meaning) for name, _, meaning in rows] == [
        _core.error_name(int(code)) for _, code, _ in rows
    ]


def test_code_outside_the_list_keeps_its_number() -> None:
    assert _core.error_name(12345)[0] == "CUDA_ERROR_12345"


@pytest.mark.sim_only
@pytest.mark.parametrize(("code", "name"), [(719, "CUDA_ERROR_LAUNCH_FAILED"), (12345, "")])
def test_any_code_of_the_driver_arrives(driver: Driver, code: int, name: str) -> None:
    assert driver.sim is not None
    driver.sim.inject("cuMemHostAlloc", code=code)
    with pytest.raises(DriverError) as caught:
        driver.device().alloc_pinned(4096)
    assert caught.value.code == code
    assert caught.value.call == "cuMemHostAlloc"
    assert name in caught.value.name
