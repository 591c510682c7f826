"""Keeps a daemon at a socket for as long as this process lives: for the agents of cluster nodes."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from vramkit.share.connect import Controls, DaemonError, ensure_daemon

logger = logging.getLogger(__name__)

AGAIN_SECONDS = 0.5


class Keeper:
    """Without it a daemon ends when no program was connected for a while. Starts one again where
    one has ended; when this process ends, so does the daemon, after `idle_exit`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.connected = threading.Event()
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        # One of several threads starts the daemon, and the others find it.
        self._lock = threading.Lock()

    def start(self) -> None:
        """A daemon answers when this returns; any thread may ask.

        Raises DaemonError, NoDaemonError or PlaceError.
        """
        with self._lock:
            ensure_daemon(self.path)
        self.watch()

    def watch(self) -> None:
        """Returns at once; `connected` says whether there is a daemon."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._keep, daemon=True)
                self._thread.start()

    def _keep(self) -> None:
        said = ""
        while not self._ended.is_set():
            try:
                ensure_daemon(self.path)
                with Controls(self.path) as controls:
                    self.connected.set()
                    said = ""
                    controls.wait_for_end()
            except (DaemonError, OSError) as error:
                if str(error) != said:
                    said = str(error)
                    logger.warning("no daemon at %s: %s", self.path, said)
            self.connected.clear()
            self._ended.wait(AGAIN_SECONDS)

    def stop(self) -> None:
        """Starts no daemon any more; the one that is there is left alone."""
        self._ended.set()
