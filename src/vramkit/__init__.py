"""GPU memory for work that no longer fits the card.

Importing this opens no driver and loads nothing else: the parts are imported when first named.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vramkit import driver as driver

    __version__: str

__all__ = ["__version__", "driver"]

_MODULES = {"driver"}


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name == "__version__":
        from importlib.metadata import version

        return version(__name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
