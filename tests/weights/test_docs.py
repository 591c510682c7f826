"""The examples of docs/weights.md run, in their order, as one program."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import vramkit.weights
from vramkit.driver import Driver

PAGE = Path(__file__).parents[2] / "docs" / "weights.md"


OFFLOAD = PAGE.with_name("offload.md")


def examples(page: Path = PAGE) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.sim_only
def test_the_examples_run(
    driver: Driver,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for number, example in enumerate(examples(), 1):
        exec(compile(example, f"{PAGE.name}, example {number}", "exec"), names)
    for kept in ("stream", "total", "store"):
        names[kept].close()  # type: ignore[attr-defined]
    names.clear()
    said = capsys.readouterr().out
    assert said.startswith("76\n1\n")
    first = said.splitlines()[2]
    assert first.startswith("after 0.attn: copy 2.attn")
    assert f"```text\n{first}\n```" in PAGE.read_text("utf-8")
    assert (tmp_path / "pass.json").exists()


def test_the_page_names_every_policy() -> None:
    words = set(re.findall(r"`(\w+)`", PAGE.read_text("utf-8")))
    assert set(vramkit.weights.POLICIES) <= words


@pytest.mark.sim_only
def test_the_example_of_offload_runs(
    driver: Driver, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("VRAMKIT_DRIVER", "sim")
    (example,) = examples(OFFLOAD)
    names: dict[str, object] = {}
    exec(compile(example, OFFLOAD.name, "exec"), names)
    assert "streamed in a pass" in capsys.readouterr().out
    names.clear()
