"""The bar on the terminal while weights move."""

from __future__ import annotations

import io
import sys

import pytest

from vramkit.weights.progress import LARGE, shown


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_a_bar_for_large_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with shown(2 * LARGE, None) as told:
        assert told is not None
        told(LARGE, 2 * LARGE)
        told(2 * LARGE, 2 * LARGE)
    assert "weights to pinned memory" in terminal.getvalue()


def test_no_bar_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    def own(done: int, total: int) -> None:
        pass

    with shown(2 * LARGE, None) as told:
        assert told is None  # no terminal
    monkeypatch.setattr(sys, "stderr", Terminal())
    with shown(LARGE - 1, None) as told:
        assert told is None  # little to do
    with shown(2 * LARGE, own) as told:
        assert told is own
