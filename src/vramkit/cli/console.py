"""Where the commands print: results to stdout, what happens meanwhile to stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import Console


class Progress(Protocol):
    """Told what is being done now."""

    def __call__(self, what: str) -> None: ...


def output() -> Console:
    from rich.console import Console

    return Console(highlight=False)


def errors() -> Console:
    from rich.console import Console

    return Console(stderr=True, highlight=False)


@contextmanager
def progress() -> Iterator[Progress]:
    """A status line on stderr while it is a terminal; elsewhere nothing at all."""
    if not sys.stderr.isatty():
        yield lambda what: None
        return
    with errors().status("starting") as status:
        yield lambda what: status.update(f"{what} ...")


def print_json(document: object) -> None:
    """Exactly one JSON document on stdout, indented."""
    import msgspec

    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
