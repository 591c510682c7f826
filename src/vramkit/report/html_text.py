"""Texts of a report as HTML."""

from __future__ import annotations

import re
from html import escape


def inline(text: str) -> str:
    """Text with its `code` as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))


def caption(text: str) -> str:
    """The paragraph under a drawing; nothing where there is no text."""
    return f"<p>{inline(text)}</p>" if text else ""
