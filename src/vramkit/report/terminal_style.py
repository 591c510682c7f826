"""How tones and series look in a terminal, and texts that must fit."""

from __future__ import annotations

from vramkit.report.blocks import Tone

TONES: dict[Tone, str] = {
    "plain": "default",
    "good": "green",
    "note": "cyan",
    "warning": "yellow",
    "bad": "red",
}
SERIES = ("blue", "yellow", "green", "magenta", "cyan", "red", "white", "bright_blue")


def shortened(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"
