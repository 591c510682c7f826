"""How a long run ends early and keeps what it has: by a signal, or at its time limit."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(Exception):
    """The whole run ends early; says why."""


@dataclass
class Stopping:
    """Signals are noted, and looked at between answers only: nothing is ever half written."""

    seconds: float | None = None
    """After which the run ends early."""
    clock: Callable[[], float] = time.monotonic
    signals: list[int] = field(default_factory=list)
    """Those that asked the run to end."""
    _deadline: float | None = None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """The time of a limit begins here."""

        def note(number: int, frame: FrameType | None) -> None:
            self.signals.append(number)

        if self.seconds is not None:
            self._deadline = self.clock() + self.seconds
        before: dict[signal.Signals, object] = {}
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    before[number] = signal.signal(number, note)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)  # type: ignore[arg-type]

    def check(self) -> None:
        """Raises Stopped."""
        if self.signals:
            name = signal.Signals(self.signals[0]).name
            raise Stopped("interrupted" if name == "SIGINT" else f"ended by {name}")
        if self._deadline is not None and self.clock() > self._deadline:
            raise Stopped(f"the time limit of {self.seconds:g} s was reached")

    def in_a_hurry(self) -> bool:
        """Asked a second time."""
        return len(self.signals) > 1

    @property
    def status(self) -> int | None:
        """Of the command that was ended by a signal."""
        return 128 + self.signals[0] if self.signals else None
