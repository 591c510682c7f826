"""Where the daemon's socket and files are, and whether the place can be trusted."""

from __future__ import annotations

import os
import stat
from pathlib import Path

SYSTEM_FOLDER = Path("/run/vramkit")
SOCKET = "daemon.sock"
# Of the path of a Unix socket; the kernel has room for 108 with the zero behind it.
LONGEST_SOCKET = 107


class PlaceError(OSError):
    """The folder of the socket could belong to somebody else."""


def user_socket() -> Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.path.isabs(runtime):
        return Path(runtime) / "vramkit" / SOCKET
    return Path(f"/tmp/vramkit-{os.getuid()}") / SOCKET


def system_socket() -> Path:
    return SYSTEM_FOLDER / SOCKET


def chosen_socket() -> Path:
    """$VRAMKIT_SOCKET, else a system-wide daemon's where there is one, else the user's own."""
    given = os.environ.get("VRAMKIT_SOCKET")
    if given:
        return Path(given).absolute()
    system = system_socket()
    try:
        found = system.stat()
    except OSError:
        return user_socket()
    return system if stat.S_ISSOCK(found.st_mode) and found.st_uid == 0 else user_socket()


def must_be_short(socket: Path) -> None:
    """Raises PlaceError for a path that no socket can have."""
    length = len(os.fsencode(socket))
    if length > LONGEST_SOCKET:
        raise PlaceError(
            f"{socket} has {length} bytes, and the path of a socket may have {LONGEST_SOCKET}; "
            "set VRAMKIT_SOCKET to a shorter one"
        )


def make_folder(folder: Path, system: bool) -> None:
    """The folder of a socket: made for its owner alone, or checked. Raises PlaceError.

    A system daemon's folder may be entered by all: the daemon itself asks who they are.
    """
    mode = 0o755 if system else 0o700
    try:
        folder.mkdir(mode=mode, parents=True)
        folder.chmod(mode)
    except FileExistsError:
        pass
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise PlaceError(f"{folder} is no folder; it is to hold the daemon's socket")
    if found.st_uid != os.getuid():
        raise PlaceError(f"{folder} belongs to user {found.st_uid}; it must be yours")
    if found.st_mode & 0o022:
        raise PlaceError(
            f"{folder} may be written by others (mode {stat.S_IMODE(found.st_mode):o}); "
            f"chmod {mode:o} {folder}"
        )


def settings_file(system: bool) -> Path:
    if system:
        return Path("/etc/vramkit/share.json")
    home = os.environ.get("XDG_CONFIG_HOME")
    base = Path(home) if home and os.path.isabs(home) else Path.home() / ".config"
    return base / "vramkit" / "share.json"


def private_folder(socket: Path, system: bool) -> Path:
    """What is the daemon's alone. Containers have the folder of a system-wide daemon's socket, and
    root of any of them could read what lies in it, or hold the lock."""
    folder = socket.parent
    return folder.with_name(f"{folder.name}-daemon") if system else folder


def log_file(socket: Path, system: bool) -> Path:
    return private_folder(socket, system) / "daemon.log"


def lock_file(socket: Path, system: bool) -> Path:
    return private_folder(socket, system) / "daemon.lock"


def clients_file(socket: Path, system: bool) -> Path:
    """The processes that hold memory: a daemon that is started again waits for them."""
    return private_folder(socket, system) / "clients.json"
