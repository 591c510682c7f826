"""Options that take several values."""

from __future__ import annotations


def names(given: list[str]) -> list[str]:
    """ "a,b" and "c": a, b and c."""
    return [name.strip() for text in given for name in text.split(",") if name.strip()]
