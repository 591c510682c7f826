"""`vramkit demo` on the simulated GPU."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import msgspec
import pytest

from tests.lab.runs import report
from vramkit.demo import card, overlap, pool, sharing, weights
from vramkit.demo import lab as studies
from vramkit.demo.chapter import Chapter, ChapterResult, Context, same_results
from vramkit.demo.lab import OF_ALLOCATORS, OF_THE_SMALL_CARD, chart
from vramkit.driver import Driver
from vramkit.report.blocks import BarChart, Callout, Text, Timeline

from .support import Vramkit, VramkitHere


@pytest.mark.sim_only
@pytest.mark.usefixtures("driver", "small_groups")
def test_the_facts_show_a_saving_a_pool_and_a_caught_race(
    vramkit_here: VramkitHere, tmp_path: Path
) -> None:
    result = vramkit_here("demo", "--json", "--no-report", "--driver", "sim")
    assert result.status == 0, result.stderr
    document = json.loads(result.stdout)
    assert (document["simulated"], document["profile"]) == (True, "h200")
    assert document["report"] is None
    assert list(tmp_path.iterdir()) == []
    card, overlap, streamed, pool, sharing, studies, race = (
        chapter["facts"] for chapter in document["chapters"]
    )
    assert sharing["same_results"] is True
    assert sharing["turns"] >= 2
    assert 0 < sharing["out_bytes"] <= sharing["turns"] * sharing["program_bytes"]
    assert studies["claims"]["a switch by page faults takes 47 s"] == "in part"
    assert studies["claims"]["`history` takes 16,400 ms"] == "not confirmed"
    assert studies["claims"][OF_THE_SMALL_CARD] == "confirmed"
    assert studies["claims"]["the pool gets faster by 14.2 %"] == "cannot be said here"
    assert set(OF_ALLOCATORS) < studies["claims"].keys()
    assert studies["switch_seconds"]["paged"] == pytest.approx(47.19, abs=0.01)
    assert 0.8 < studies["switch_seconds"]["swap"] < 0.9
    # How long the demo takes follows from how much it measures: cases times subjects.
    assert studies["rows_measured"] == {
        "allocators": 2 * 5,
        "small card": 4 * 2 + 3,
        "fragmentation": 5,
        "sharing": 46 * 3,
        "weights": 4 * 5,
    }
    assert card["multiprocessors"] == 132
    assert overlap["same_results"] is True
    # Four equal pairs: eight steps in a row against five overlapped ones.
    ratio = overlap["two_streams_seconds"] / overlap["one_stream_seconds"]
    assert ratio == pytest.approx(5 / 8, abs=0.02)
    assert streamed["same_results"] is True and streamed["misses"] == 0
    assert streamed["device_bytes"] * 6 == streamed["weights_bytes"]
    # Copies and work are equally long: one behind the other takes twice the bound.
    assert streamed["plain_seconds"] / streamed["bound_seconds"] == pytest.approx(2, abs=0.1)
    assert 1 <= streamed["of_bound"] < 1.1
    assert (pool["pairs"], pool["pairs_from_cache"], pool["pairs_driver_calls"]) == (
        10_000,
        10_000,
        0,
    )
    assert pool["same_stream_reused_at_once"] and pool["other_stream_reused_after_event"]
    assert not pool["other_stream_reused_early"]
    assert pool["scattered_free"] == 96 << 20 and pool["scattered_largest"] == 6 << 20
    assert pool["scattered_request"] > 86 << 20
    assert pool["changing_in_use"] <= pool["changing_held"] <= 1.15 * pool["changing_in_use"]
    assert pool["scattered_reserved"] <= pool["limit"] == 240 << 20
    assert pool["returned"] == pool["scattered_reserved"] and pool["reserved_at_the_end"] == 0
    assert pool["map_live"] < pool["map_held"]
    assert [report["kind"] for report in race["wrong_reports"]] == ["race"]
    assert race["right_reports"] == []


@pytest.mark.sim_only
@pytest.mark.usefixtures("driver", "small_groups")
def test_the_guided_run_says_simulated_and_where_the_report_is(
    vramkit_here: VramkitHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VRAMKIT_DRIVER", "sim")
    monkeypatch.setenv("COLUMNS", "200")
    result = vramkit_here("demo")
    assert result.status == 0, result.stderr
    assert "(simulated, profile h200)" in result.stdout.splitlines()[0]
    report = tmp_path / "vramkit-demo.html"
    assert f"Report: {report}" in result.stdout
    assert "Race (error)" in result.stdout and "No report" in result.stdout
    assert "█" in result.stdout
    text = report.read_text(encoding="utf-8")
    assert "simulated · h200" in text
    assert "wrong_order.py" in text and text.count('class="timeline"') == 4
    assert "simulated: fixed_pool of 2 GiB: out of memory" in text
    assert "The order was kept" in text and text.count('class="chart memory"') == 3
    assert not re.search(r"https?://|@import|url\(|<link|<script[^>]+src|<img", text)


@pytest.mark.sim_only
@pytest.mark.sim(clock="wall")
@pytest.mark.usefixtures("small_groups")
def test_the_weights_chapter_on_a_card_draws_what_is_known(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a card: in real time, with timelines from events."""
    with monkeypatch.context() as patch:
        patch.setattr(driver, "sim", None)
        result = weights.CHAPTER.run(Context(driver, driver.device(), None, None))
    assert result.facts["same_results"] is True and result.facts["misses"] == 0
    plain, ring = (block for block in result.blocks if isinstance(block, Timeline))
    assert [lane.name for lane in plain.lanes] == ["copy", "attn", "ffn"]
    assert [lane.name for lane in ring.lanes] == ["attn", "ffn"]
    assert {len(lane.spans) for lane in ring.lanes} == {weights.LAYERS}
    assert "not drawn" in ring.caption


@pytest.fixture
def only_the_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vramkit.demo.chapters.CHAPTERS", (card.CHAPTER,))


@pytest.mark.usefixtures("only_the_card")
def test_without_a_choice_and_without_a_card_it_simulates_and_says_why(
    vramkit_here: VramkitHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    status, stdout, _ = vramkit_here("demo", "--no-report")
    assert status == 0
    if "simulated" in stdout.splitlines()[0]:
        assert re.search(r"profile \S+: no NVIDIA driver on this machine", stdout)


@pytest.mark.usefixtures("only_the_card")
def test_another_profile_is_named(vramkit_here: VramkitHere) -> None:
    done = vramkit_here("demo", "--json", "--no-report", "--driver", "sim:pcie4-24gb")
    assert done.status == 0
    assert json.loads(done.stdout)["profile"] == "pcie4-24gb"


def failing(context: Context) -> ChapterResult:
    raise RuntimeError("vramkit lab sharing did not end in 120 s")


@pytest.fixture
def one_chapter_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    chapters = (Chapter("The first one", failing), card.CHAPTER)
    monkeypatch.setattr("vramkit.demo.chapters.CHAPTERS", chapters)


@pytest.mark.usefixtures("one_chapter_fails")
def test_a_chapter_that_fails_does_not_take_the_others_with_it(
    vramkit_here: VramkitHere, tmp_path: Path
) -> None:
    done = vramkit_here("demo", "--driver", "sim")
    assert done.status == 1
    assert done.stderr == "vramkit: 1 of 2 chapters failed: “The first one”\n"
    page = (tmp_path / "vramkit-demo.html").read_text(encoding="utf-8")
    for text in (done.stdout, page):
        assert "This chapter failed" in text and "did not end in 120 s" in text
        assert "Multiprocessors" in text


@pytest.mark.usefixtures("one_chapter_fails")
def test_the_facts_say_which_chapter_failed(vramkit_here: VramkitHere) -> None:
    done = vramkit_here("demo", "--driver", "sim", "--json", "--no-report")
    assert done.status == 1 and done.stderr.count("\n") == 1
    failed, fine = json.loads(done.stdout)["chapters"]
    assert failed["facts"] == {} and failed["error"] == "vramkit lab sharing did not end in 120 s"
    assert fine["facts"] and fine["error"] is None


def test_the_studies_on_a_real_card_leave_its_memory_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **options: object) -> SimpleNamespace:
        commands.append(command)
        return SimpleNamespace(stdout=msgspec.json.encode(report(simulated=None)), stderr=b"")

    monkeypatch.setattr(subprocess, "run", run)
    on_card = Context(None, None, None, None)  # type: ignore[arg-type]
    studies.CHAPTER.run(on_card)

    def value(command: list[str], option: str) -> str:
        return command[command.index(option) + 1]

    on_the_card = [each for each in commands if value(each, "--driver") == "cuda"]
    assert [each[4] for each in on_the_card] == ["allocators", "fragmentation"]
    assert not any("memory_limited" in value(each, "--cases") for each in on_the_card)
    # What bounds the time: cases, subjects, and a limit for each.
    assert [value(each, "--cases").count(",") for each in on_the_card] == [6, 0]
    assert {value(each, "--subjects").count(",") for each in on_the_card} == {4}
    assert {value(each, "--time-limit") for each in commands} == {"60"}
    others = [each for each in commands if each not in on_the_card]
    assert {value(each, "--driver") for each in others} == {"sim"}


def test_an_experiment_that_does_not_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vramkit.demo.lab.SECONDS", 0.01)
    on_card = Context(None, None, "h200", None)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match=r"vramkit lab allocators did not end in 0\.01 s"):
        studies.CHAPTER.run(on_card)


def test_a_report_in_no_folder_is_refused_before_anything_runs(vramkit_here: VramkitHere) -> None:
    result = vramkit_here("demo", "--driver", "sim", "--report", "nowhere/report.html")
    assert result.status == 2
    assert "nowhere" in result.stderr
    assert result.stdout == ""


def test_a_folder_for_a_report_is_refused_before_anything_runs(
    vramkit_here: VramkitHere, tmp_path: Path
) -> None:
    result = vramkit_here("demo", "--driver", "sim", "--report", str(tmp_path))
    assert result.status == 2
    assert f"--report {tmp_path}: that is a folder" in result.stderr
    assert result.stdout == ""


def test_report_and_no_report_exclude_each_other(vramkit_here: VramkitHere) -> None:
    result = vramkit_here("demo", "--driver", "sim", "--report", "x.html", "--no-report")
    assert result.status == 2
    assert "exclude each other" in result.stderr


@pytest.mark.parametrize(
    "command",
    [("demo", "--no-report"), ("doctor", "--quick")],
)
def test_our_own_commands_are_clean_under_the_checker(
    vramkit: Vramkit, command: tuple[str, ...]
) -> None:
    ours = [sys.executable, "-m", "vramkit.cli", *command, "--driver", "sim"]
    # Smaller buffers where the command takes its sizes from the card: the order is the same.
    small = "capacity=1GiB" if "demo" in command else "capacity=64MiB"
    result = vramkit("check", "--warnings-as-errors", "--", *ours, VRAMKIT_SIM=small)
    assert result.returncode == 0, result.stderr
    assert "no report" in result.stderr


def test_a_mark_follows_from_the_figures_and_not_from_whose_they_are() -> None:
    def marked(**seconds: float | None) -> list[str]:
        drawn = chart(seconds)
        assert isinstance(drawn, BarChart)
        return [bar.label for bar in drawn.bars if bar.tone == "good"]

    assert marked(swap=0.893, prefetch=0.889, paged=47.0) == ["swap", "prefetch"]
    assert marked(swap=0.9, prefetch=0.889, paged=47.0) == ["prefetch"]
    assert marked(swap=0.8, prefetch=None, paged=47.0) == ["swap"]
    assert marked(swap=50.0, paged=47.0) == ["paged"]
    assert marked(swap=None) == []


@pytest.mark.parametrize("chapter", [overlap, weights, pool, sharing, studies])
def test_code_that_a_chapter_shows_fits_a_terminal_of_80_columns(chapter: ModuleType) -> None:
    """Beside the numbers of its lines."""
    assert max(map(len, chapter.SHOWN.splitlines())) <= 74


def test_results_that_differ_are_told() -> None:
    assert isinstance(same_results(True, "groups"), Text)
    told = same_results(False, "groups")
    assert isinstance(told, Callout) and told.tone == "bad"
