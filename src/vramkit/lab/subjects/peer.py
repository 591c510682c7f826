"""What the allocators of other libraries share: whether they are there, and their errors.

They find the card by the context that is current on the calling thread. Opening one makes that of
the device current, and so do the threads of a player.
"""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING

from vramkit.driver import OutOfMemoryError

if TYPE_CHECKING:
    from vramkit.driver import Driver, Stream


def why_missing(driver: Driver, module: str, title: str) -> str:
    """Nothing is imported for it."""
    if driver.sim is not None:
        return f"{title} runs on NVIDIA's driver only, not on the simulated GPU"
    if module not in sys.modules and find_spec(module) is None:
        return f"{title} is not installed"
    return ""


def is_for_cpus(package: str) -> bool:
    try:
        return version(package).endswith("+cpu")
    except PackageNotFoundError:
        return False


def out_of_memory(call: str, error: BaseException) -> OutOfMemoryError:
    """The library's own error as ours."""
    return OutOfMemoryError(call, 2, "CUDA_ERROR_OUT_OF_MEMORY", str(error))


def order_free(own: Stream, stream: Stream) -> None:
    """For libraries that free a block at the current point of the stream of its allocation: that
    stream waits for what the freeing one has now. The host does not wait."""
    if stream is not own:
        own.wait(stream)
