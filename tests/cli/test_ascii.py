"""A terminal whose encoding has ASCII only gets every command's output, with replacements."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from vramkit.demo import card, overlap, pool, race

from .support import VramkitHere

PROGRAMS = Path(__file__).with_name("programs")


@pytest.mark.parametrize("arguments", [("--help",), ("check", "--help"), ("--version",)])
def test_help_and_version(vramkit_here: VramkitHere, arguments: tuple[str, ...]) -> None:
    status, stdout, stderr = vramkit_here(*arguments, encoding="ascii")
    assert (status, stderr) == (0, "")
    assert stdout.isascii() and "vramkit" in stdout


@pytest.mark.sim_only
@pytest.mark.sim(capacity="64MiB")
@pytest.mark.usefixtures("driver")
def test_doctor(vramkit_here: VramkitHere) -> None:
    status, stdout, _ = vramkit_here("doctor", "--quick", "--driver", "sim", encoding="ascii")
    assert stdout.isascii()
    assert "Verdict" in stdout and "Host . vramkit" in stdout and " us" in stdout
    assert status == 0


@pytest.mark.sim_only
@pytest.mark.usefixtures("driver", "small_groups")
def test_demo(vramkit_here: VramkitHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = (card.CHAPTER, overlap.CHAPTER, pool.CHAPTER, race.CHAPTER)
    monkeypatch.setattr("vramkit.demo.chapters.CHAPTERS", drawn)
    status, stdout, _ = vramkit_here("demo", "--driver", "sim", encoding="ascii")
    assert status == 0
    assert stdout.isascii()
    # The timeline: neighbouring spans in two shades.
    assert "########=====" in stdout.replace(" ", "")
    assert "x Race (error)" in stdout and "+ No report" in stdout
    assert "simulated · h200" in (tmp_path / "vramkit-demo.html").read_text("utf-8")


def test_check(vramkit_here: VramkitHere) -> None:
    program = [sys.executable, str(PROGRAMS / "wrong.py")]
    status, _, stderr = vramkit_here("check", "--", *program, encoding="ascii")
    assert status == 1
    assert stderr.isascii() and "x Race (error)" in stderr


def test_json_is_utf8_as_json_always_is(vramkit_here: VramkitHere) -> None:
    program = [sys.executable, "-S", "-c", "'ä'"]
    status, stdout, _ = vramkit_here("check", "--json", "--", *program, encoding="ascii")
    assert status == 3
    assert "'ä'" in stdout


def test_an_error_names_what_it_cannot_print(vramkit_here: VramkitHere) -> None:
    status, _, stderr = vramkit_here("check", "--", "prögram…", encoding="ascii")
    assert status == 127
    assert stderr == "vramkit: pr?gram.: not found\n"


def test_a_file_name_that_is_no_text_is_printed_in_utf8_too(vramkit_here: VramkitHere) -> None:
    status, _, stderr = vramkit_here("check", "--", "pr\udcffgram")
    assert status == 127
    assert stderr == "vramkit: pr?gram: not found\n"
