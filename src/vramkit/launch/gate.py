"""The gate before a program: how it is found there under every name of the driver."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
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
    """The program with the gate before the driver, to be run inside the `with`."""
    with tempfile.TemporaryDirectory(prefix="vramkit-gate-") as folder:
        yield gate_launch_in(Path(folder), program, variables)


def gate_launch_in(folder: Path, program: Sequence[str], variables: Mapping[str, str]) -> Launch:
    """The program with the gate before the driver, as long as the folder is there.

    The gate is preloaded, so that `libcuda.so.1` is the gate wherever it is asked for. Programs
    that ask for `libcuda.so` search for a file of that name: links in the folder, made here since
    a wheel holds none, lead to the same file, hence to the same loaded library. Raises LaunchError.
    """
    library = gate_library()
    if not library.is_file():
        raise LaunchError(f"there is no gate at {library}; reinstall vramkit")
    for name in NAMES:
        with suppress(FileExistsError):
            (folder / name).symlink_to(library)
    # LD_PRELOAD has no escapes. The link may end before a program that outlives its launch; the
    # file does not, and is still found.
    plain = not set(" :").intersection(str(library))
    preload = library if plain else folder / NAMES[0]
    return Launch(program, variables, search_first=folder, preload=preload)
