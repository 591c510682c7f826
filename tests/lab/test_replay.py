"""`vramkit replay`: what it measures, tries on other cards, says, draws and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vramkit import Pool
from vramkit.cli import main
from vramkit.driver import Driver, OutOfMemoryError
from vramkit.lab.experiment import Measured, Unmeasured
from vramkit.lab.player import play
from vramkit.lab.program import Program, ProgramBuilder
from vramkit.lab.replay import REPLAY
from vramkit.lab.replay.cards import Cards
from vramkit.lab.replay.settings import read_once, trace_named, traces
from vramkit.lab.result import Report, Row
from vramkit.lab.subjects import SUBJECTS
from vramkit.lab.traces import TraceError
from vramkit.lab.watched import MOST_POINTS, Watched
from vramkit.lab.worker import checked
from vramkit.report.blocks import LineChart, MemoryMap, Table, Text

from .played import simulated_card
from .runs import report
from .support import Plain

MIB = 1 << 20
GIB = 1 << 30

pytestmark = pytest.mark.sim_only


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VRAMKIT_DRIVER", "sim")
    monkeypatch.delenv("VRAMKIT_SIM", raising=False)
    monkeypatch.chdir(tmp_path)


def trace_file(name: str = "t.csv", mebibytes: int = 10, blocks: int = 20) -> Path:
    """At most ten blocks at a time."""
    lines = []
    for number in range(blocks):
        lines.append(f"+{number},{mebibytes * MIB},0\n")
        if number >= 9:
            lines.append(f"-{number - 9}\n")
    path = Path(name)
    path.write_text("".join(lines))
    return path


def replayed(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> Report:
    import msgspec

    assert main(["replay", *words, "--json"]) == status
    return msgspec.json.decode(capsys.readouterr().out, type=Report)


def row(found: Report, subject: str, arm: str = "", workload: str = "t") -> Row:
    wanted = found.row(workload, subject, arm)
    assert wanted is not None
    return wanted


def pool_ratio(found: Report) -> float:
    values = row(found, "pool").values
    return values["held"][0] / values["in_use"][0]


# The command


def test_a_trace_is_replayed_on_every_allocator_that_is_here(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = replayed(
        capsys, str(trace_file()), "--quick", "--html", "page.html", "--output", "r.json"
    )
    here = {row.subject for row in found.rows if row.outcome == "measured"}
    assert here == {"pool", "direct", "async", "fixed_pool", "arena"}
    assert {row.subject for row in found.rows if row.outcome == "not here"} == {*SUBJECTS} - here
    direct, pool = row(found, "direct"), row(found, "pool")
    assert direct.values["in_use"] == direct.values["held"] == [100 * MIB]
    assert direct.values["held_ratio"] == [1.0]
    assert row(found, "pool").values["held_ratio"] == [pool_ratio(found)]
    assert 100 * MIB <= pool.values["held"][0] <= 140 * MIB
    assert {"moved", "fragmentation"} <= pool.values.keys()
    assert not {"moved", "fragmentation"} & direct.values.keys()
    assert max(direct.series["held"]) == 100 * MIB
    # Each of 20 kernels of 20 us follows on the one before.
    assert pool.values["time"][0] >= 0.4
    assert (found.command, found.simulated) == (
        "vramkit replay t.csv --quick --driver sim --seed 0 --repetitions 1 --case-limit 600",
        "h200",
    )
    page = Path("page.html").read_text()
    assert "Memory of vramkit&#x27;s pool when it held most" in page or "pool when it" in page
    assert json.loads(Path("r.json").read_text())["rows"]
    # The saved result is drawn again without the trace.
    Path("t.csv").unlink()
    assert main(["lab", "show", "r.json"]) == 0
    shown = capsys.readouterr().out
    assert "vramkit replay: a recorded program on every allocator" in shown
    assert "t: memory, at its peaks" in shown


def test_cards_of_other_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--subjects", "pool,fixed_pool", "--card", "64MiB", "--card", "1GiB"]
    found = replayed(capsys, str(trace_file()), *words)
    for subject in ("pool", "fixed_pool"):
        assert row(found, subject, "card of 64 MiB").outcome == "out of memory"
        assert row(found, subject, "card of 1 GiB").outcome == "measured"
        (smallest,) = row(found, subject, "smallest card").values["smallest_card"]
        assert 100 * MIB <= smallest <= 160 * MIB
    tones = {finding.text: finding.tone for finding in REPLAY.findings(found)}
    assert tones["t, on a card of 64 MiB: runs out of memory with pool, fixed_pool."] == "bad"
    assert tones["t, on a card of 1 GiB: fits with pool, fixed_pool."] == "good"
    row(found, "pool", "card of 64 MiB").outcome = "measured"
    tones = {finding.text: finding.tone for finding in REPLAY.findings(found)}
    words = "t, on a card of 64 MiB: fits with pool; runs out of memory with fixed_pool."
    assert tones[words] == "warning"


def test_limits_dealing_and_kernels_are_settings(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--quick", "--subjects", "pool,async", "--limit-percent", "10", "--kernel-us", "0"]
    words += ["--streams", "3", "--threads", "2", "--seed", "7"]
    found = replayed(capsys, str(trace_file()), *words)
    limited = row(found, "pool", "with a limit").values["held"][0]
    assert limited <= row(found, "pool").values["held"][0] * 1.1
    assert row(found, "async", "with a limit").outcome == "not here"
    (about,) = {
        drawing.text for row in found.rows for drawing in row.drawings if isinstance(drawing, Text)
    }
    assert "dealt at random over 3 streams and 2 threads" in about
    assert "No kernels stand in" in about
    again = "vramkit replay t.csv --kernel-us 0.0 --streams 3 --threads 2 --limit-percent 10.0 "
    assert found.command.startswith(f"{again}--quick --driver sim --seed 7")


def test_a_limit_that_is_too_small_is_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--quick", "--limit", "50MiB", "--subjects", "pool,direct"]
    found = replayed(capsys, str(trace_file()), *words, status=1)
    assert row(found, "pool").outcome == "out of memory"
    assert row(found, "direct").why == "it has no limit to be set"


def test_several_files_and_traces_of_one_name(capsys: pytest.CaptureFixture[str]) -> None:
    Path("other").mkdir()
    files = [str(trace_file()), str(trace_file("other/t.csv", mebibytes=20))]
    found = replayed(capsys, *files, "--quick", "--subjects", "direct")
    assert row(found, "direct").values["in_use"] == [100 * MIB]
    assert row(found, "direct", workload="t (2)").values["in_use"] == [200 * MIB]


def test_only_the_file_of_a_trace_is_read() -> None:
    Path("other").mkdir()
    names = ("a.csv", "b,c.csv", "other/a.csv", "a.b.csv")
    files = [str(trace_file(name, mebibytes=size)) for size, name in enumerate(names, 1)]
    settings = {"traces": files}
    found = traces(settings)
    assert list(found) == ["a", "b_c", "a (2)", "a.b"]
    read_once.cache_clear()
    Path("b,c.csv").unlink()
    for name in ("a", "a (2)", "a.b"):
        assert trace_named(settings, name) == found[name]
    with pytest.raises(TraceError, match=r"b,c\.csv: cannot be read"):
        trace_named(settings, "b_c")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "replay needs a trace: vramkit replay trace.csv.gz"),
        (["none.csv"], "none.csv: cannot be read: No such file"),
        (["bad.csv"], "bad.csv, line 1: 'oh' is neither"),
        (["t.csv", "--card", "big"], "a card is 'big'"),
        (["t.csv", "--streams", "-1"], "streams is '-1'; it may be a whole number from 0 to 4096"),
        (["t.csv", "--kernel-us", "-1"], "kernel_us is '-1.0'; it may be a number from 0"),
        (["t.csv", "--limit", "much"], "limit is 'much'; it may be a number of bytes"),
        (["t.csv", "--subjects", "nobody"], "no subject is called 'nobody'"),
        (["t.csv", "--repetitions", "0"], "--repetitions is 0; it may be 1 or more"),
    ],
)
def test_wrong_usage(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    trace_file()
    Path("bad.csv").write_text("oh\n")
    assert main(["replay", *words]) == 2
    assert said in capsys.readouterr().err


# Its parts


def steady(nbytes: int, blocks: int = 4) -> Program:
    builder = ProgramBuilder("steady")
    for _ in range(blocks):
        builder.allocate(nbytes)
    builder.free_all()
    return builder.build()


def test_what_is_watched_is_what_happened(driver: Driver) -> None:
    builder = ProgramBuilder("up and down")
    for number in range(500):
        builder.free(builder.allocate(MIB * (1 + number % 7)))
    top = builder.allocate(64 * MIB)
    builder.free(top)
    program = builder.build()
    device = simulated_card(driver, 1)
    looks: list[int] = []
    with Pool(device=device, background=False) as pool:
        first = Watched(Plain(pool))
        play(program, first, device, measure="memory")
        at = first.peak_at()
    assert at == 1001
    with Pool(device=device, background=False) as pool:
        second = Watched(Plain(pool), at, lambda: looks.append(pool.stats().current_usage))
        play(program, second, device, measure="memory")
    assert looks == [64 * MIB]
    series = first.series()
    assert len(series["event"]) == len(series["held"]) == len(series["in_use"]) == MOST_POINTS
    assert series["event"][-1] == 1003  # asked once more at the end
    assert max(series["in_use"]) == 64 * MIB  # one event of a thousand
    assert max(series["held"]) >= 64 * MIB
    assert Watched(Plain(pool)).series() == {"event": [], "in_use": [], "held": []}


def test_the_smallest_card_is_found(driver: Driver) -> None:
    cards = Cards.beside(driver)
    program = steady(32 * MIB)
    smallest = cards.smallest(program, SUBJECTS["fixed_pool"])
    assert cards.fits(program, SUBJECTS["fixed_pool"], smallest)
    assert not cards.fits(program, SUBJECTS["fixed_pool"], smallest - 16 * MIB)
    assert 128 * MIB <= smallest <= 160 * MIB


@pytest.mark.parametrize("name", ["arena", "fixed_pool"])
def test_a_card_of_an_odd_size_is_used(driver: Driver, name: str) -> None:
    cards = Cards.beside(driver)
    assert cards.fits(steady(32 * MIB), SUBJECTS[name], 200 * MIB + 4096)
    assert not cards.fits(steady(32 * MIB), SUBJECTS[name], 100 * MIB + 4096)


def test_a_program_for_no_card_is_out_of_memory(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vramkit.lab.replay.cards.LARGEST_CARD", 256 * MIB)
    with pytest.raises(OutOfMemoryError):
        Cards.beside(driver).smallest(steady(128 * MIB), SUBJECTS["direct"])


def test_peers_are_not_asked_for_simulated_cards(driver: Driver) -> None:
    with pytest.raises(Unmeasured, match="cards of other sizes are simulated ones: RMM runs on"):
        Cards.beside(driver).fits(steady(MIB), SUBJECTS["rmm_pool"], GIB)


def test_a_series_that_is_not_finite_is_no_result() -> None:
    with pytest.raises(ValueError, match="the series held has a value that is not finite"):
        checked(REPLAY, Measured({"held": 1.0}, {"held": [1.0, float("nan")]}))
    found = checked(REPLAY, Measured({"held": 1}, {"held": [2.0]}, [Text("about")]))
    assert found == Measured({"held": 1.0}, {"held": [2.0]}, [Text("about")])


# What it says, from figures made by hand


def made(*rows: Row, **fields: object) -> Report:
    settings = {"kernel_us": 20.0}
    return report(quantities=REPLAY.quantities, rows=list(rows), **{"settings": settings, **fields})


def memory(subject: str, held: float, share: float = 0.0) -> Row:
    values = {"in_use": [1.0 * GIB], "held": [held * GIB], "held_ratio": [held]}
    return Row("t", subject, "", {**values, "allocation_share": [share]}, "measured")


def test_who_holds_less_is_said_of_those_that_keep_memory() -> None:
    rows = [memory("pool", 1.1), memory("direct", 1.0), memory("async", 1.5), memory("arena", 9)]
    held, times = REPLAY.findings(made(*rows))
    assert held.tone == "good"
    assert held.text == (
        "t: vramkit's pool holds 1.10 GiB at most, 1.100 times what is in use; of the others that "
        "keep memory async holds least, 1.50 GiB."
    )
    assert times.text.startswith("The times are simulated: nothing is concluded from them.")
    worse = REPLAY.findings(made(memory("pool", 1.6), memory("async", 1.5)))[0]
    assert worse.tone == "note"
    alone = REPLAY.findings(made(memory("pool", 1.1), memory("direct", 1.0)))[0]
    assert alone.text.endswith("1.100 times what is in use.")


def test_on_a_card_what_is_held_is_compared_by_its_spread() -> None:
    def tone(ours: list[float], simulated: str | None) -> str:
        rows = [memory("pool", 1.0), memory("async", 1.0)]
        rows[0].values["held"] = [value * GIB for value in ours]
        rows[1].values["held"] = [10 * GIB] * len(ours)
        found = REPLAY.findings(made(*rows, simulated=simulated))
        return next(each.tone for each in found if "vramkit's pool holds" in each.text)

    assert tone([9.0], "h200") == "good"
    assert tone([9.0], None) == "note"  # once: too few to tell
    assert tone([9.0] * 5, None) == "good"
    assert tone([11.0] * 5, None) == tone([11.0], "h200") == "note"
    assert tone([9.0, 9.5, 10.5, 11.0, 12.0], None) == "good"  # within the spread


def test_cards_are_said_from_the_smallest_on() -> None:
    rows = [
        Row("t", name, "smallest card", {"smallest_card": [size * GIB]}, "measured")
        for name, size in (("async", 74), ("pool", 61))
    ]
    found = REPLAY.findings(made(*rows))[0]
    assert found.text == "t: needs a card of 61 GiB with pool, 74 GiB with async."


def test_a_share_of_the_time_is_said_of_a_real_card_only() -> None:
    rows = [memory("pool", 1.1, 0.01), memory("async", 1.5, 0.2)]
    assert not any("of the time" in each.text for each in REPLAY.findings(made(*rows)))
    found = REPLAY.findings(made(*rows, simulated=None))
    assert "allocations and frees are 1 % to 20 % of the time of the replay" in found[0].text


def test_without_kernels_it_is_said_that_figures_are_flattered() -> None:
    found = REPLAY.findings(made(memory("pool", 1.1), settings={"kernel_us": 0.0}))
    assert found[-1].tone == "warning" and "No kernels stand in" in found[-1].text


def test_a_run_that_measured_nothing_is_drawn() -> None:
    empty = made(Row("t", "pool"), Row("t", "rmm_pool", outcome="not here", why="absent"))
    assert REPLAY.findings(empty) == REPLAY.blocks(empty) == []


def test_the_page_has_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--subjects", "pool,arena", "--card", "1GiB", "--repetitions", "2"]
    found = replayed(capsys, str(trace_file()), *words)
    kinds = [type(block) for block in REPLAY.blocks(found)]
    assert kinds == [Text, Table, Table, Table, LineChart, MemoryMap]
    (chart,) = (block for block in REPLAY.blocks(found) if isinstance(block, LineChart))
    # The arena takes half of the card at once, and would be all that one sees.
    assert [series.name for series in chart.series] == ["in use", "held by pool"]


def test_a_real_trace_keeps_its_threads(capsys: pytest.CaptureFixture[str]) -> None:
    lines = "".join(
        f"9{number % 4},12:00:00.00000{number},allocate,0x{number + 1}00,1048576,0x{number % 2}\n"
        for number in range(8)
    )
    Path("t.csv").write_text(f"Thread,Time,Action,Pointer,Size,Stream\n{lines}")
    found = replayed(capsys, "t.csv", "--quick", "--subjects", "pool")
    about = row(found, "pool").drawings[0]
    assert isinstance(about, Text)
    assert "as RMM wrote it: 8 blocks, 8 MiB at a time, on 2 streams and 4 threads" in about.text
