"""Files of results: whole or not at all, and one clear error for what is none."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from vramkit.lab.result import FORMAT, ResultError, load, save

from .runs import report, row


def test_a_result_comes_back_as_it_was(tmp_path: Path) -> None:
    given = report(
        rows=[row("pool", time=[1.5, 2.0], room=[3.0]), row("other", why="it did not work")],
        settings={"rows": 3, "share": 0.5, "touch": True, "sizes": ["a", "b"]},
        stopped="interrupted",
        command="vramkit lab fake",
    )
    save(given, tmp_path / "a.json")
    assert load(tmp_path / "a.json") == given
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_save_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    save(report(seed=1), path)

    def full(self: Path, data: bytes) -> int:
        self.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space"):
        save(report(seed=2), path)
    assert load(path).seed == 1
    assert [each.name for each in tmp_path.iterdir()] == ["a.json"]


def test_what_is_no_regular_file_is_never_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="is no regular file"):
        save(report(), pipe)
    assert pipe.is_fifo() and [each.name for each in tmp_path.iterdir()] == ["pipe"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "real" / "a.json")
    save(report(seed=3), link)
    assert link.is_symlink() and load(tmp_path / "real" / "a.json").seed == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "no result of vramkit lab"),
        (b"\xff\xfe\x00", "no result of vramkit lab"),
        (b"[1, 2]", "no result of vramkit lab"),
        (b'{"name": "of another program"}', "no result of vramkit lab"),
        (b'{"experiment": "a", "format": "1"}', "no result of vramkit lab"),
        (b"[" * 100_000, "no result of vramkit lab"),
        (b'{"experiment": "a", "format": 1, "x": ' + b"[" * 100_000, "no result of vramkit lab"),
        (b'{"experiment": "a", "format": 2, "shape": "new"}', "written in format 2; .* format 1"),
    ],
)
def test_what_is_no_result_is_one_error(tmp_path: Path, text: bytes, words: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(text)
    with pytest.raises(ResultError, match=words) as caught:
        load(path)
    assert str(path) in str(caught.value)


def test_a_file_that_was_cut_short_is_one_error(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    save(report(rows=[row("pool", time=[1.0] * 50)]), path)
    whole = path.read_bytes()
    for length in range(0, len(whole) - 1, 97):
        path.write_bytes(whole[:length])
        with pytest.raises(ResultError, match="no result of vramkit lab"):
            load(path)


def test_figures_of_an_unknown_quantity_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    save(report(rows=[row("pool", heat=[1.0])]), path)
    with pytest.raises(ResultError, match="has values of heat"):
        load(path)


@pytest.mark.parametrize("values", [[], [1.0, -2.0]])
def test_figures_that_cannot_be_are_refused(tmp_path: Path, values: list[float]) -> None:
    path = tmp_path / "a.json"
    save(report(rows=[row("pool", time=values)]), path)
    with pytest.raises(ResultError, match="time of pool, work, has the values"):
        load(path)


def test_fields_of_a_later_minor_version_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    save(report(), path)
    document = json.loads(path.read_text()) | {"weather": "fine"}
    path.write_text(json.dumps(document))
    assert load(path) == report() and document["format"] == FORMAT
