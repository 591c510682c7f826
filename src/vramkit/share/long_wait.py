"""Says once that a program has waited long for its turn, or that its daemon does not answer.

From outside, by `vramkit run`: the library inside the program never prints. A program that waits
cannot tell a daemon that hangs from a long queue; who asks the daemon something can.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from vramkit.share.connect import Controls, DaemonError, NoDaemonError
from vramkit.share.status import ProgramStatus, Status

LONG_SECONDS = 60.0
LOOK_SECONDS = 10.0
WAITS = ("waiting", "starting")


class MuteDaemonError(RuntimeError):
    """A daemon took the connection, and says nothing."""


def ask(path: Path) -> Status | None:
    """None: there is no daemon, and programs go on without one. Raises MuteDaemonError."""
    try:
        controls = Controls(path)
    except OSError:
        return None
    with controls:
        try:
            return controls.status()
        except (NoDaemonError, DaemonError) as error:
            raise MuteDaemonError(str(error)) from error


class LongWait:
    """Told of the time; `look` gives the text as soon as there is one, and then no more."""

    def __init__(
        self,
        path: Path,
        ask: Callable[[Path], Status | None] = ask,
        descendants: Callable[[], set[int]] | None = None,
    ) -> None:
        self.path = path
        self.said = False
        self._ask = ask
        self._descendants = descendants or (lambda: descendants_of(os.getpid()))
        self._since: dict[tuple[int, int], float] = {}
        """Of programs that wait, by process and the turns that they have had."""
        self._mute_since: float | None = None

    def look(self, now: float) -> str | None:
        if self.said:
            return None
        try:
            status = self._ask(self.path)
        except MuteDaemonError:
            text = self._mute(now)
        else:
            self._mute_since = None
            text = self._waits(status, now) if status is not None else None
        self.said = text is not None
        return text

    def _mute(self, now: float) -> str | None:
        if self._mute_since is None:
            self._mute_since = now
        seconds = now - self._mute_since
        if seconds < LONG_SECONDS:
            return None
        return (
            f"the daemon at {self.path} has not answered for {seconds:.0f} s. A program that waits "
            "for its turn waits for it; if it is ended, programs go on without it"
        )

    def _waits(self, status: Status, now: float) -> str | None:
        ours = self._descendants()
        waiting = [each for each in status.programs if each.pid in ours and each.state in WAITS]
        before = self._since
        self._since = {
            (each.pid, each.turns): before.get((each.pid, each.turns), now) for each in waiting
        }
        for each in waiting:
            seconds = now - self._since[each.pid, each.turns]
            if seconds >= LONG_SECONDS:
                return self._text(each, seconds)
        return None

    def _text(self, program: ProgramStatus, seconds: float) -> str:
        what = "memory that does not become free" if program.blocked else "its turn"
        return (
            f"process {program.pid} ({program.name}) has waited {seconds:.0f} s for {what} at the "
            f"daemon at {self.path}. `vramkit status` says who has the card"
        )


@contextmanager
def told_of_long_waits(path: Path) -> Iterator[None]:
    """One line on stderr at most, while this lasts."""
    ended = threading.Event()

    def watch() -> None:
        wait = LongWait(path)
        while not wait.said and not ended.wait(LOOK_SECONDS):
            text = wait.look(time.monotonic())
            if text is not None:
                print(f"vramkit: {text}.", file=sys.stderr, flush=True)

    # It may wait for a daemon that hangs, and is not waited for.
    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def descendants_of(pid: int) -> set[int]:
    """All processes that this one has started, and those that these have."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            text = (folder / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        parent = int(text.rpartition(")")[2].split()[1])
        children.setdefault(parent, []).append(int(folder.name))
    found: set[int] = set()
    left = [pid]
    while left:
        new = children.get(left.pop(), [])
        found.update(new)
        left += new
    return found
