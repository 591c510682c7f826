"""Unmodified programs: results as natively, in chaos mode and two at a time in turns.

    pytest --driver=cuda tests/share/test_on_card.py

The programs of frameworks need a card; two run on the simulated one too, which tests the rest. A
failure shows what the programs, the gate and the daemon had to say.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from clients.support import scenarios
from sharing_scale import GIB, MIB, SCALES
from sharing_session import FailedError, Program, Session, session

PROGRAMS = Path(__file__).parent / "programs"
SECONDS = 90.0
SCALE = replace(SCALES["small"], link=1.0)
CHAOS = (1, 7, 64)
ON_BOTH = ("vramkit_pool", "per_thread_streams")


def marks(name: str) -> list[pytest.MarkDecorator]:
    if name in ON_BOTH:
        return []
    if name == "compiled_per_thread_streams":
        nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
        return [pytest.mark.frameworks(), nvcc]
    modules = ["torch", "transformers"] if name.startswith("transformers") else [name.split("_")[0]]
    return [pytest.mark.frameworks(*modules)]


SCENARIOS = [
    pytest.param(name, marks=marks(name), id=name) for name in scenarios("on_card", PROGRAMS)
]


class Sizes:
    """Bytes: of a program's block, alone and beside another; of the card for two programs, of which
    one fits; of what each must have moved out and in.
    """

    def __init__(self, driver: str) -> None:
        large = driver == "cuda"
        self.alone = 32 * MIB if large else 8 * MIB
        self.together = 5 * GIB // 4 if large else 28 * MIB
        self.budget = 2 * GIB if large else 48 * MIB
        self.moved = 256 * MIB if large else 8 * MIB


NATIVE: dict[str, Any] = {}
"""What each program gives natively, found once in this process."""


class Runs:
    """Starts one program of on_card.py in a session, with the sizes of the driver."""

    def __init__(self, made: Session, sizes: Sizes, caches: dict[str, str], name: str) -> None:
        self.made, self.sizes, self.caches, self.name = made, sizes, caches, name

    def start(self, options: list[str] | None, ballast: int, **variables: str) -> Program:
        paths = filter(None, [str(PROGRAMS), os.environ.get("PYTHONPATH")])
        told = {"PYTHONPATH": os.pathsep.join(paths), "BALLAST": str(ballast), **self.caches}
        # JAX takes this part of what it is shown of the card, at its start.
        told["XLA_PYTHON_CLIENT_MEM_FRACTION"] = "0.75" if variables else "0.05"
        command = [sys.executable, "-c", f"import on_card; on_card.{self.name}()"]
        return self.made.run(command, options, **told, **variables)

    def native(self) -> Any:
        if self.name not in NATIVE:
            (printed,) = self.made.ended(self.start(None, self.sizes.alone))
            NATIVE[self.name] = printed["result"]
        return NATIVE[self.name]


def require(condition: object, what: str) -> None:
    if not condition:
        raise FailedError(what)


Running = Callable[[str], AbstractContextManager[Runs]]


@pytest.fixture
def running(request: pytest.FixtureRequest, caches: dict[str, str]) -> Running:
    """A session for a program; its failure shows what programs, gate and daemon had to say."""
    driver = str(request.config.getoption("driver")).partition(":")[0]

    @contextmanager
    def open_session(name: str) -> Iterator[Runs]:
        problem = ""
        try:
            with session(driver, SCALE, False, time.monotonic() + SECONDS) as made:
                yield Runs(made, Sizes(driver), caches, name)
        except FailedError as error:
            problem = str(error)
        if problem:
            pytest.fail(f"{name}: {problem}", pytrace=False)

    return open_session


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """One cache of compiled code for all, so that all run the very same kernels."""
    folder = tmp_path_factory.mktemp("caches")
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "TORCHINDUCTOR_DETERMINISTIC": "1",
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "CUPY_CACHE_DIR": str(folder / "cupy"),
        "OMP_NUM_THREADS": "2",
    }


def swapped(program: Program) -> int:
    """Bytes that the self-test says it moved, the lesser of out and in."""
    log = (program.folder / "gate").read_text("utf-8")
    found = re.findall(r"swapped \d+ times, (\d+) bytes out, (\d+) bytes in", log)
    return min(map(int, found[-1])) if found else 0


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_alone_and_in_chaos(scenario: str, running: Running) -> None:
    """All at once, each with everything of it out and in again every so many launches."""
    options = [["--mode", "swap"], *(["--chaos", str(chaos)] for chaos in CHAOS)]
    with running(scenario) as runs:
        native = runs.native()
        runs.made.start_daemon()
        started = [runs.start(words, runs.sizes.alone) for words in options]
        for words, printed in zip(options, runs.made.ended(*started), strict=True):
            found = printed["result"]
            require(found == native, f"{words} gave {found}, natively {native}")
        for words, program in zip(options[1:3], started[1:3], strict=True):
            require(swapped(program), f"nothing was moved with {words}")


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_two_at_a_time(scenario: str, running: Running) -> None:
    """Until both were moved out and came back, on a card that holds one of them."""
    with running(scenario) as runs:
        native = runs.native()
        made, until = runs.made, runs.made.folder / "until"
        made.start_daemon(quantum=0.3, budget=runs.sizes.budget)
        both = [
            runs.start(["--mode", "swap"], runs.sizes.together, UNTIL=str(until)) for _ in range(2)
        ]
        moved: set[int] = set()

        def took_turns() -> bool:
            status = made.status()
            for card in status.cards:
                require(card.held <= card.budget, f"more than the budget: {card}")
            for each in status.programs:
                out = sum(card.out_bytes for card in each.cards)
                into = sum(card.in_bytes for card in each.cards)
                if each.turns >= 2 and min(out, into) >= runs.sizes.moved:
                    moved.add(each.pid)
            return len(moved) >= 2

        made.until(took_turns, "both were moved out and in")
        until.touch()
        for printed in made.ended(*both):
            found = printed["result"]
            require(found == native, f"in turns it gave {found}, natively {native}")
