"""A bar on the terminal while the weights of a large model move."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[int, int], object]
"""Called with the bytes done and the bytes in all."""

LARGE = 1 << 30
"""Bytes from which on it takes long enough for a bar."""


@contextmanager
def shown(nbytes: int, given: Progress | None) -> Iterator[Progress | None]:
    """What was given; else a bar on stderr if that is a terminal and there is much to do."""
    if given is not None or nbytes < LARGE or not sys.stderr.isatty():
        yield given
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    columns = ("weights to pinned memory", BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=nbytes)
        yield lambda done, total: bar.update(task, completed=done, total=total)
