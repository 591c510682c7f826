"""`vramkit plan` over a grid on a terminal: each plan is shown when it is made, above the bar."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from types import SimpleNamespace

import pytest

from vramkit.cli import main, steps
from vramkit.sweep import Batch, local
from vramkit.sweep.place import Gone
from vramkit.sweep.tasks import Answer
from vramkit.sweep.work import answers

from .support import VramkitHere

pytestmark = pytest.mark.sim_only

PLANS = (
    *("plan", "--layers", "4", "--attn-bytes", "100MB", "--ffn-bytes", "150MB", "--attn-ms", "2"),
    *("--ffn-ms", "3", "--budget", "600MB,10MB,1GB", "--workers", "1"),
)
ROWS = ("600MB: 20.0 ms a pass", "10MB: refused, budget is 9.54 MiB", "1GB: 20.0 ms a pass")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@contextmanager
def on_a_terminal() -> Iterator[Terminal]:
    """What is on stderr. Not a fixture: pytest sets its own streams again before the test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERM", "xterm")
        terminal = Terminal()
        patch.setattr(sys, "stderr", terminal)
        yield terminal


def seconds_pass(monkeypatch: pytest.MonkeyPatch, clock: Callable[[], float]) -> None:
    monkeypatch.setattr(steps, "time", SimpleNamespace(monotonic=clock))


class OneByOne:
    """A Place in this process that gives an answer a look, and notes what is shown until then."""

    terminal: Terminal
    seen: list[str]

    def __init__(self, workers: int | None = None) -> None:
        OneByOne.seen = []
        self.left: list[tuple[int, Answer]] = []

    def workers(self) -> int:
        return 1

    def room(self) -> bool:
        return not self.left

    def give(self, key: int, batch: Batch) -> None:
        self.left = [(key, answer) for answer in answers(batch)]

    def wait(self, seconds: float) -> list[tuple[int, Answer | Gone]]:
        OneByOne.seen.append(self.terminal.getvalue())
        return [self.left.pop(0)]

    def close(self, hurry: Callable[[], bool]) -> None:
        pass


def test_plan_is_shown_before_the_next_one_is_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds_pass(monkeypatch, count().__next__)
    monkeypatch.setattr(local, "LocalPlace", OneByOne)
    with on_a_terminal() as terminal:
        monkeypatch.setattr(OneByOne, "terminal", terminal, raising=False)
        assert main(list(PLANS)) == 0
    shown = [[row in text for row in ROWS] for text in [*OneByOne.seen, terminal.getvalue()]]
    assert shown == [[number < made for number in range(3)] for made in range(4)]
    assert all(terminal.getvalue().count(row) == 1 for row in ROWS)


@pytest.mark.parametrize("json", [(), ("--json",)], ids=["table", "document"])
def test_what_is_printed_is_the_same_with_a_terminal_and_without(
    vramkit_here: VramkitHere,
    capfdbinary: pytest.CaptureFixture[bytes],
    json: tuple[str, ...],
) -> None:
    piped = vramkit_here(*PLANS, *json)
    assert piped.stderr == ""
    with on_a_terminal() as terminal:
        assert main([*PLANS, *json]) == 0
    assert all(row in terminal.getvalue() for row in ROWS)
    assert capfdbinary.readouterr().out.decode() == piped.stdout


def test_results_that_come_quickly_are_shown_together_and_none_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each print draws the bar again, which would take longer than a plan."""
    seconds_pass(monkeypatch, lambda: 100.0)
    with (
        on_a_terminal() as terminal,
        pytest.raises(KeyboardInterrupt),
        steps.steps("vramkit plan", lines=False) as bar,
    ):
        for text in ("one [x]", "two", "three"):
            bar.result(text)
        assert "one [x]" in terminal.getvalue() and "two" not in terminal.getvalue()
        raise KeyboardInterrupt
    assert "two\nthree\n" in terminal.getvalue()
