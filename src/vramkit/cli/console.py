"""Where the commands print: results to stdout, what happens meanwhile to stderr."""

from __future__ import annotations

import codecs
import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import Console

# One character for one, so that columns stay in line; all others become a question mark.
PLAIN = str.maketrans(
    "█▉▊▋▌▍▎▏▒▓░▁▂▃▄▅▆▇✓✗·…–µ×●─│└┤┬╌━",  # noqa: RUF001
    "####||||==-1234567+x..-uxo-|++--=",
)
PLAIN.update({braille: ord("*") for braille in range(0x2800, 0x2900)})


class Progress(Protocol):
    """Told what is being done now."""

    def __call__(self, what: str) -> None: ...


def _replacement(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(PLAIN)
    return text.encode("ascii", "replace").decode(), error.end


def print_anywhere() -> None:
    """From now on a character that the terminal's encoding lacks is replaced, never an error."""
    codecs.register_error("vramkit", _replacement)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="vramkit")


def output() -> Console:
    from rich.console import Console

    return Console(highlight=False)


def errors() -> Console:
    from rich.console import Console

    return Console(stderr=True, highlight=False)


@contextmanager
def text_file(path: Path) -> Iterator[Console]:
    """A file of plain text, 100 columns wide."""
    from rich.console import Console

    with path.open("w", encoding="utf-8", errors="replace") as file:
        yield Console(file=file, highlight=False, width=100)


@contextmanager
def progress() -> Iterator[Progress]:
    """A status line on stderr while it is a terminal; elsewhere nothing at all."""
    if not sys.stderr.isatty():
        yield lambda what: None
        return
    with errors().status("starting") as status:
        yield lambda what: status.update(f"{what} ...")


def json_bytes(document: object) -> bytes:
    """One JSON document, indented, with a line end."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def print_json(document: object) -> None:
    """Exactly one JSON document on stdout, as UTF-8 whatever the terminal's encoding."""
    sys.stdout.flush()
    sys.stdout.buffer.write(json_bytes(document))
