"""How far a run is: a bar on a terminal, else a line now and then; always on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from vramkit.cli.console import errors

if TYPE_CHECKING:
    from rich.progress import Progress

    from vramkit.sweep import Step

LINE_SECONDS = 10.0
REFRESH_PER_SECOND = 2.0
"""Drawing takes time from what is measured."""


class Steps(Protocol):
    def line(self, text: str) -> None: ...

    def step(self, step: Step) -> None: ...

    def result(self, text: str) -> None:
        """One of many, as it comes: on a terminal only, above the bar."""
        ...


@contextmanager
def steps(said: str, *, lines: bool = True) -> Iterator[Steps]:
    """`said` stands before each line: the command. Without `lines` it is quiet off a terminal."""
    if not sys.stderr.isatty():
        yield Lines(said) if lines else Quiet()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[left]}"),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(
        *columns, console=errors(), transient=True, refresh_per_second=REFRESH_PER_SECOND
    ) as drawn:
        bar = Bar(said, drawn)
        try:
            yield bar
        finally:
            bar.show_results()


class Lines:
    """The first step, and then one every ten seconds."""

    def __init__(self, said: str) -> None:
        self._said = said
        self._next = 0.0

    def line(self, text: str) -> None:
        print(f"{self._said}: {text}", file=sys.stderr, flush=True)

    def step(self, step: Step) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + LINE_SECONDS
            self.line(", ".join(filter(None, (f"{step.done} of {step.of}", left(step), step.what))))

    def result(self, text: str) -> None:
        pass


class Quiet:
    def line(self, text: str) -> None:
        pass

    def step(self, step: Step) -> None:
        pass

    def result(self, text: str) -> None:
        pass


class Bar:
    def __init__(self, said: str, bar: Progress) -> None:
        self._said = said
        self._bar = bar
        self._task = bar.add_task("starting", total=None, left="")
        self._results: list[str] = []
        self._next = 0.0

    def line(self, text: str) -> None:
        self._bar.console.print(f"{self._said}: {text}", markup=False, soft_wrap=True)

    def step(self, step: Step) -> None:
        self._bar.update(
            self._task,
            completed=step.done,
            total=step.of,
            description=step.what,
            left=left(step),
        )

    def result(self, text: str) -> None:
        """At once, or with others that come soon: each print draws the bar again."""
        self._results.append(text)
        now = time.monotonic()
        if now >= self._next:
            self._next = now + 1 / REFRESH_PER_SECOND
            self.show_results()

    def show_results(self) -> None:
        if self._results:
            self._bar.console.print("\n".join(self._results), markup=False, soft_wrap=True)
            self._results.clear()


def left(step: Step) -> str:
    """ "about 3 min left"; empty where nobody can say."""
    if step.seconds_left is None:
        return ""
    seconds = step.seconds_left
    if seconds < 100:
        return f"about {max(1, round(seconds))} s left"
    if seconds < 6000:
        return f"about {seconds / 60:.0f} min left"
    return f"about {seconds / 3600:.1f} h left"
