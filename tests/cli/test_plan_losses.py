"""`vramkit plan` where workers are lost, or the user asks twice for the end; no Ray needed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable

import pytest

from vramkit.cli import main
from vramkit.sweep import Batch, local
from vramkit.sweep.place import Gone
from vramkit.sweep.tasks import Answer
from vramkit.sweep.work import answers

pytestmark = pytest.mark.sim_only

PLANS = (
    *("plan", "--layers", "4,8", "--attn-bytes", "100MB", "--ffn-bytes", "150MB", "--attn-ms", "2"),
    *("--ffn-ms", "3", "--budget", "600MB,1GB", "--policy", "auto,stage1", "--json"),
)


class OnePlace:
    """A Place in this process. Loses the first batch that it gets, or is interrupted in it."""

    made: OnePlace

    def __init__(self, workers: int | None = None) -> None:
        OnePlace.made = self
        self.batches: list[tuple[int, Batch]] = []
        self.lost = 0
        self.hurries: list[bool] = []

    def workers(self) -> int:
        return 1

    def room(self) -> bool:
        return not self.batches

    def give(self, key: int, batch: Batch) -> None:
        self.batches.append((key, batch))

    def wait(self, seconds: float) -> list[tuple[int, Answer | Gone]]:
        key, batch = self.batches.pop()
        if not self.lost:
            self.lost = len(batch.tasks)
            return [(key, Gone("its node is gone"))]
        return [(key, answer) for answer in answers(batch)]

    def close(self, hurry: Callable[[], bool]) -> None:
        self.hurries.append(hurry())


class Interrupted(OnePlace):
    def wait(self, seconds: float) -> list[tuple[int, Answer | Gone]]:
        os.kill(os.getpid(), signal.SIGINT)
        return []

    def close(self, hurry: Callable[[], bool]) -> None:
        self.hurries.append(hurry())
        os.kill(os.getpid(), signal.SIGINT)
        self.hurries.append(hurry())


def test_plans_that_were_made_again_are_said_beside_the_same_document(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(list(PLANS)) == 0
    here = capfd.readouterr()
    monkeypatch.setattr(local, "LocalPlace", OnePlace)
    assert main(list(PLANS)) == 0
    there = capfd.readouterr()
    assert here.err == "" and there.out == here.out
    count = OnePlace.made.lost
    plans = "1 plan was" if count == 1 else f"{count} plans were"
    assert there.err == f"vramkit plan: {plans} made again: its node is gone\n"


def test_the_second_ctrl_c_is_a_hurry(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(local, "LocalPlace", Interrupted)
    assert main(list(PLANS)) == 130
    said = capfd.readouterr()
    assert "interrupted; 0 of 8 plans have figures" in said.err
    assert json.loads(said.out)["stopped"] == "interrupted"
    assert OnePlace.made.hurries == [False, True]
