"""The examples of docs/driver.md run, in their order, as one program."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import vramkit
from vramkit.driver import Driver

PAGE = Path(__file__).parents[2] / "docs" / "driver.md"


def examples() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.sim_only
def test_the_examples_run(driver: Driver, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}
    for number, example in enumerate(examples(), 1):
        exec(compile(example, f"{PAGE.name}, example {number}", "exec"), names)
    for kept in ("pool", "stream", "urgent"):
        names[kept].close()  # type: ignore[attr-defined]
    names.clear()
    said = capsys.readouterr().out
    assert "3072\n" in said
    assert "['here']\n" in said
    assert "nbytes is -1; it may be an integer from 0 to 18446744073709551615\n" in said


def test_the_page_names_all_that_is_public() -> None:
    words = set(re.findall(r"\w+", PAGE.read_text()))
    elsewhere = {"Simulator", "SimulatorSettings"}  # docs/simulated-gpu.md
    elsewhere |= {"Report", "Site", "LeftOpen", "UnsupportedCall"}  # docs/check.md
    types = {"SupportsCudaStream", "MemoryInfo", "TimelineSpan", "Memory", "Timeline", "Kernels"}
    assert set(vramkit.driver.__all__) - words - elsewhere - types == set()
