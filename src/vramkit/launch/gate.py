"""The gate before a program: how it is found there under every name of the driver."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from vramkit import _core
from vramkit.launch.errors import LaunchError
from vramkit.launch.launch import Launch

NAMES = ("libcuda.so.1", "libcuda.so")


def gate_library() -> Path:
    """The installed gate."""
    return Path(_core.__file__).parent / "_lib" / "gate" / "libcuda.so.1"


@contextmanager
def gate_launch(program: Sequence[str], variables: Mapping[str, str]) -> Iterator[Launch]:
    """The program with the gate before the driver, to be run inside the `with`.

    The gate is preloaded, so that `libcuda.so.1` is the gate wherever it is asked for. Programs
    that ask for `libcuda.so` search for a file of that name: a folder of links, made here since a
    wheel holds none, leads to the same file, hence to the same loaded library.
    """
    library = gate_library()
    if not library.is_file():
        raise LaunchError(f"there is no gate at {library}; reinstall vramkit")
    with tempfile.TemporaryDirectory(prefix="vramkit-gate-") as folder:
        links = [Path(folder) / name for name in NAMES]
        for link in links:
            link.symlink_to(library)
        # LD_PRELOAD has no escapes. The link ends with the `with`; the file does not, and programs
        # that outlive it still find what they preload.
        plain = not set(" :").intersection(str(library))
        preload = library if plain else links[0]
        yield Launch(program, variables, search_first=Path(folder), preload=preload)
