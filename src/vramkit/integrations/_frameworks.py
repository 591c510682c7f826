"""What every integration checks first: the framework is there, and the GPU is a real one."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vramkit.driver import Driver


def imported(module: str, packages: str) -> Any:
    """The framework's module. Any: no framework is needed to check the types of ours."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not (module + ".").startswith(error.name + "."):
            raise  # it is there, and misses something of its own
        raise ModuleNotFoundError(
            f"this integration needs {module}, which is not installed; install {packages}",
            name=error.name,
        ) from None


def refuse_simulated(driver: Driver, framework: str) -> None:
    """These load NVIDIA's runtime, which does not run on the simulated GPU."""
    if driver.sim is not None:
        raise RuntimeError(
            f"the driver is simulated, and {framework} needs NVIDIA's; unset VRAMKIT_DRIVER, or "
            'give a pool of vramkit.driver.open("cuda")'
        )
