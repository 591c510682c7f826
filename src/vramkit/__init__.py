"""GPU memory for work that no longer fits the card.

Importing this opens no driver and loads nothing else: the parts are imported when first named.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from vramkit import driver as driver
    from vramkit import lab as lab
    from vramkit import pool as pool
    from vramkit import resources as resources
    from vramkit import share as share
    from vramkit import weights as weights
    from vramkit.pool import Pool as Pool
    from vramkit.weights import offload as offload

    __version__: str

__all__ = [
    "Pool",
    "__version__",
    "driver",
    "get_include",
    "get_library",
    "lab",
    "offload",
    "pool",
    "resources",
    "share",
    "weights",
]

_MODULES = {"driver", "lab", "pool", "resources", "share", "weights"}

_MEMBERS = {"Pool": "pool", "offload": "weights"}


def get_include() -> str:
    """The folder of vramkit.h and vramkit.hpp, for a compiler's -I."""
    return str(_library_folder() / "include")


def get_library() -> str:
    """The path of libvramkit.so, which programs in C and C++ link to."""
    return str(_library_folder() / "libvramkit.so")


def _library_folder() -> "Path":
    from pathlib import Path

    from vramkit import _core

    return Path(_core.__file__).parent / "_lib"


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name in _MEMBERS:
        return getattr(import_module(f"{__name__}.{_MEMBERS[name]}"), name)
    if name == "__version__":
        from importlib.metadata import version

        return version(__name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
