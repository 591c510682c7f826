"""Memory along a program: the series come from the run, and the plots from the series."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from tests.lab.played import simulated_card
from tests.lab.runs import report
from tests.lab.support import MIB, Noted, Plain
from vramkit import Pool
from vramkit.cli import main
from vramkit.driver import Driver, OutOfMemoryError
from vramkit.lab.allocators.memory_limited import CARD, PEAK
from vramkit.lab.catalog import EXPERIMENTS
from vramkit.lab.document import document
from vramkit.lab.experiment import Lab, Unmeasured
from vramkit.lab.memory_plots import memory_over_time, peak_maps, with_plots, without_size
from vramkit.lab.player import play
from vramkit.lab.program import Program, ProgramBuilder
from vramkit.lab.result import Report, Row, load
from vramkit.lab.subjects import Allocator
from vramkit.report.blocks import Block, LineChart, MemoryMap
from vramkit.report.html import page
from vramkit.report.terminal import print_document
from vramkit.resources import DirectResource

pytestmark = pytest.mark.sim_only

VALUES = {"time": 1.0}


def hill() -> Program:
    """Up to 60 MiB in use in the middle, 10 MiB on either side."""
    builder = ProgramBuilder("hill")
    builder.free(builder.allocate(10 * MIB))
    blocks = [builder.allocate(20 * MIB) for _ in range(3)]
    for block in blocks:
        builder.free(block)
    builder.free(builder.allocate(10 * MIB))
    return builder.build()


class Hill:
    """The hill on a resource, and how often it was gone through."""

    def __init__(self, driver: Driver, make: Callable[[], Pool | DirectResource]) -> None:
        self.driver = driver
        self.device = simulated_card(driver, 1)
        self.make = make
        self.gone = 0

    @contextmanager
    def opened(self) -> Iterator[Allocator]:
        with self.make() as resource:
            yield Plain(resource)

    def go(self, allocator: Allocator) -> None:
        self.gone += 1
        play(hill(), allocator, self.device, measure="memory")

    def lab(self, repetition: int = 0) -> Lab:
        return Lab(self.driver, self.device, 0, repetition, {})


def of_the_pool(driver: Driver) -> Hill:
    return Hill(driver, lambda: Pool(device=driver.device(), background=False))


def test_a_row_gets_what_was_in_use_and_held_at_each_call(driver: Driver) -> None:
    way = Hill(driver, lambda: DirectResource(device=driver.device()))
    found = with_plots(VALUES, way.lab(), way.opened, way.go)
    assert found.values == VALUES
    in_use = [0, 10, 0, 20, 40, 60, 40, 20, 0, 10, 0, 0]  # asked once more at the end
    assert found.series["in_use"] == found.series["held"] == [each * MIB for each in in_use]
    assert found.series["event"] == list(range(12))
    assert (found.drawings, way.gone) == ([], 1)


def test_the_map_has_the_pool_at_its_peak(driver: Driver) -> None:
    way = of_the_pool(driver)
    found = with_plots(VALUES, way.lab(), way.opened, way.go)
    assert way.gone == 2
    (drawn,) = found.drawings
    assert isinstance(drawn, MemoryMap)
    assert sum(row.nbytes.get("live", 0) for row in drawn.rows) == 60 * MIB
    held = sum(sum(row.nbytes.values()) for row in drawn.rows)
    assert held == max(found.series["held"])


def test_only_the_first_repetition_is_gone_through_once_more(driver: Driver) -> None:
    way = of_the_pool(driver)
    found = with_plots(VALUES, way.lab(repetition=1), way.opened, way.go)
    assert (found.values, found.series, found.drawings, way.gone) == (VALUES, {}, [], 0)


@pytest.mark.parametrize(
    "error",
    [
        OutOfMemoryError("the plot", 2, "CUDA_ERROR_OUT_OF_MEMORY", "too small"),
        Unmeasured("the card has too little free"),
    ],
    ids=["out of memory", "unmeasured"],
)
def test_one_that_has_no_memory_this_time_keeps_its_values(
    driver: Driver, error: Exception
) -> None:
    way = of_the_pool(driver)

    def fail(allocator: Allocator) -> None:
        raise error

    found = with_plots(VALUES, way.lab(), way.opened, fail)
    assert (found.values, found.series, found.drawings) == (VALUES, {}, [])


def test_an_allocator_that_cannot_tell_has_no_line(driver: Driver) -> None:
    device = simulated_card(driver, 1)

    @contextmanager
    def opened() -> Iterator[Allocator]:
        yield Noted(device)

    def go(allocator: Allocator) -> None:
        play(hill(), allocator, device, measure="memory")

    found = with_plots(VALUES, Lab(driver, device, 0, 0, {}), opened, go)
    row = Row("t", "noted", series=found.series, drawings=found.drawings)
    assert memory_over_time("t", [row]) == peak_maps([row]) == []


def told(subject: str, held: list[float], events: int = 2) -> Row:
    series = {"event": [0.0, 9.0][:events], "in_use": [1.0, 2.0], "held": held}
    return Row("t", subject, "", {}, "measured", series=series)


def test_what_is_in_use_is_drawn_once_beside_what_each_holds() -> None:
    rows = [Row("t", "old"), told("changed", [1, 2], events=1), told("pool", [3, 4])]
    (chart,) = memory_over_time("t", [*rows, told("direct", [1, 2])])
    assert [(line.name, line.points) for line in chart.series] == [
        ("in use", [(0, 1), (9, 2)]),
        ("held by pool", [(0, 3), (9, 4)]),
        ("held by direct", [(0, 1), (9, 2)]),
    ]
    assert memory_over_time("t", rows[:2]) == []


def test_who_takes_a_size_at_once_can_be_left_out() -> None:
    rows = [told(name, [1, 2]) for name in ("pool", "fixed_pool", "arena", "unknown")]
    assert [row.subject for row in without_size(rows)] == ["pool", "unknown"]


# The two experiments of allocators

RUNS = {
    "allocators": ("--cases", "memory_limited", "--subjects", "pool,direct,fixed_pool"),
    "fragmentation": (
        *("--cases", "alone/cold,alone/warm", "--subjects", "pool,direct,fixed_pool"),
        *("--set", "scale=0.02"),
    ),
}
CASES = {"allocators": ("memory_limited", "default"), "fragmentation": ("alone", "cold")}


@pytest.fixture(scope="module", params=RUNS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    name: str = request.param
    path = tmp_path_factory.mktemp(name) / "result.json"
    words = ["lab", name, "--driver", "sim", "--repetitions", "2", *RUNS[name]]
    assert main([*words, "--output", str(path)]) == 0
    return path


def figures(found: Report) -> list[Block]:
    return EXPERIMENTS[found.experiment].blocks(found)


def charts(found: Report) -> list[LineChart]:
    return [block for block in figures(found) if isinstance(block, LineChart)]


def maps(found: Report) -> list[MemoryMap]:
    return [block for block in figures(found) if isinstance(block, MemoryMap)]


def test_series_and_map_come_from_the_run(run: Path) -> None:
    found = load(run)
    workload, arm = CASES[found.experiment]
    rows = {row.subject: row for row in found.rows if (row.workload, row.arm) == (workload, arm)}
    pool, direct = rows["pool"], rows["direct"]
    for row in (pool, direct):
        assert max(row.series["held"]) == pytest.approx(row.values["peak_held"][0], rel=0.05)
    # A block is a whole number of the 2 MiB that a card gives memory out in.
    assert max(direct.series["in_use"]) <= max(direct.series["held"])
    assert pool.series["in_use"] == direct.series["in_use"]
    (drawn,) = maps(found)
    assert pool.drawings == [drawn]
    live = sum(row.nbytes.get("live", 0) for row in drawn.rows)
    assert 0 < live <= sum(sum(row.nbytes.values()) for row in drawn.rows)


@pytest.mark.parametrize("run", ["allocators"], indirect=True)
def test_memory_over_time_of_the_small_card(run: Path) -> None:
    default, right = charts(load(run))
    assert [line.name for line in default.series] == ["in use", "held by pool", "held by direct"]
    assert [line.name for line in right.series] == ["in use", "held by fixed_pool"]
    for chart in (default, right):
        assert [level.value for level in chart.levels] == [CARD]
        in_use = [y for _, y in chart.series[0].points if y is not None]
        assert max(in_use) == PEAK
        assert sum(y == PEAK for y in in_use) == 8, "eight peaks"
    held = {y for _, y in right.series[1].points}
    assert len(held) == 1, "what it takes at once stays"


@pytest.mark.parametrize("run", ["fragmentation"], indirect=True)
def test_memory_along_the_phases_is_drawn_of_the_studys_arm(run: Path) -> None:
    found = load(run)
    (chart,) = charts(found)
    # Half of a card of 140 GiB would be all that one sees.
    assert [line.name for line in chart.series] == ["in use", "held by pool", "held by direct"]
    assert all(not row.series for row in found.rows if row.arm == "warm")


def drawn_as_text(found: Report) -> tuple[str, str]:
    """On the terminal and as a page."""
    made = document(EXPERIMENTS[found.experiment], found)
    console = Console(file=io.StringIO(), width=100, highlight=False)
    print_document(console, made)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue(), page(made)


def test_the_plots_are_on_the_page_and_in_the_terminal(run: Path) -> None:
    terminal, html = drawn_as_text(load(run))
    for words in ("held by pool", "when it held most", "allocations and frees"):
        assert words in terminal and words in html
    assert 'class="linechart"' in html and 'class="chart memory"' in html


def test_a_result_from_before_there_were_series_is_read_and_drawn(
    run: Path, tmp_path: Path
) -> None:
    before = json.loads(run.read_bytes())
    for row in before["rows"]:
        del row["series"], row["drawings"]
    old = tmp_path / "old.json"
    old.write_text(json.dumps(before))
    found = load(old)
    assert charts(found) == maps(found) == []
    terminal, html = drawn_as_text(found)
    assert "pool" in terminal and 'class="barchart' in html
    assert 'class="linechart"' not in html


def test_rows_without_figures_have_no_plots() -> None:
    for name, (workload, arm) in CASES.items():
        lost = Row(workload, "pool", arm, outcome="out of memory", why="of a test")
        quantities = dict(EXPERIMENTS[name].quantities)
        found = report(experiment=name, quantities=quantities, rows=[lost])
        assert charts(found) == maps(found) == []
