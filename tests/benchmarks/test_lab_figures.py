"""What the lab's pages show is what its results say: a card's, where there is one."""

from __future__ import annotations

import shutil
from pathlib import Path

import lab_figures
import lab_reasons
import lab_replay
import lab_tables
import machine
import programs
import pytest
import readme_figures
import sharing_report
from msgspec import structs

from vramkit.lab.allocators.claims import CLAIMS as ALLOCATOR_CLAIMS
from vramkit.lab.allocators.goals import places as allocator_places
from vramkit.lab.catalog import EXPERIMENTS
from vramkit.lab.fragmentation.goals import places as fragmentation_places
from vramkit.lab.goals import Place
from vramkit.lab.result import Report, load, save
from vramkit.lab.subjects import SUBJECTS

SIMULATED = ("lab_allocators_sim", "lab_fragmentation_sim")
CARD = "NVIDIA H200"
MACHINE = machine.Machine(
    "a processor", 2, "Linux", CARD, "", "3.11", compiler="", date="2027-01-01T00:00:00Z"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in SIMULATED:
        shutil.copy(programs.RESULTS / f"{name}.json", tmp_path)
    return tmp_path


def as_of_a_card(name: str, **fields: object) -> Report:
    """A simulated result that says it is none."""
    report = load(programs.RESULTS / f"{name}.json")
    changed = {"simulated": None, "card": CARD, "date": "2027-01-01T00:00:00Z"} | fields
    return structs.replace(report, **changed)


@pytest.mark.parametrize("name", sorted(lab_figures.pages(programs.RESULTS)))
def test_a_page_is_what_the_results_say(name: str) -> None:
    written = lab_figures.pages(programs.RESULTS)[name]
    page = (lab_figures.DOCS / name).read_text("utf-8")
    assert page == written, "run python benchmarks/lab_figures.py"


@pytest.mark.parametrize("name", SIMULATED)
def test_a_simulated_result_is_whole_and_of_the_experiment_as_it_is(
    name: str, tmp_path: Path
) -> None:
    path = programs.RESULTS / f"{name}.json"
    report = load(path)
    experiment = EXPERIMENTS[report.experiment]
    assert report.simulated and not report.stopped and report.repetitions == 5
    assert report.quantities == dict(experiment.quantities)
    ours = [row for row in report.rows if row.outcome != "not here"]
    assert {row.subject for row in ours} == {"pool", "direct", "async", "fixed_pool", "arena"}
    assert not any(row.lacks(report.repetitions) for row in report.rows)
    save(report, tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()


def test_a_card_takes_the_place_of_the_simulated_figures(folder: Path) -> None:
    before = lab_figures.sections(folder)
    assert "**Simulated**" in before["lab-allocators.md", "figures"]
    runs = ["2027-01-02T00:00:00Z"]
    save(as_of_a_card(SIMULATED[0], continued=runs), folder / "lab_allocators_native_h200.json")
    save(as_of_a_card(SIMULATED[1]), folder / "lab_fragmentation_h200.json")
    million = as_of_a_card(SIMULATED[1])
    million.rows = [row for row in million.rows if row.workload == "small_blocks"]
    for row in million.rows:
        row.values["blocks"] = [1e6] * 5
    late = next(row for row in million.rows if row.subject == "direct")
    late.values, late.outcome = {}, "timed out"
    save(million, folder / "lab_fragmentation_million_h200.json")

    after = lab_figures.sections(folder)
    figures = after["lab-allocators.md", "figures"]
    assert figures.startswith(f"**{CARD}** (2027-01-01, 5 repetitions in 2 runs, vramkit ")
    figures += after["lab-allocators.md", "goals"] + after["lab-fragmentation.md", "figures"]
    assert "imulated" not in figures
    claims = after["lab-allocators.md", "claims"]
    assert claims.startswith(f"Of {len(ALLOCATOR_CLAIMS)} claims: ")
    assert "| claim | verdict | figures | of | rule |" in claims
    goals = after["lab-allocators.md", "goals"]
    assert "Time, of 18 rows: " in goals and "; held memory, of 18 rows: " in goals
    pieces = after["lab-fragmentation.md", "figures"]
    assert "| `small_blocks`, 10,000 | late |" in pieces
    assert "| `small_blocks`, 1,000,000 | late |" in pieces and "| timed out |" in pieces
    assert "an NVIDIA H200 |" in after["claims.md", "overview"]
    assert "wait for a card" not in after["claims.md", "allocators"]
    assert "No card has been measured yet" in after["replay.md", "real runs"]


def test_each_engine_of_a_card_has_its_table_and_the_nearest_to_the_study_judges(
    folder: Path,
) -> None:
    for engine in ("native", "cupy"):
        report = as_of_a_card(SIMULATED[0])
        for row in report.rows:
            row.arm = row.arm.replace("native", engine)
            if engine == "cupy":
                row.values = {name: [2 * each for each in row.values[name]] for name in row.values}
        save(report, folder / f"lab_allocators_{engine}_h200.json")
    found = lab_figures.sections(folder)
    figures = found["lab-allocators.md", "figures"]
    assert figures.index("case, `cupy`") < figures.index("case, `native`")
    assert "fixed_pool 35.6 ms" in found["lab-allocators.md", "claims"]


def test_a_claim_is_judged_by_the_nearest_engine_that_has_its_figures(folder: Path) -> None:
    """With CuPy nothing is known of single calls and of the small card, and on no card of calls of
    the driver: those are counted on the simulated GPU."""
    lacking = {"cupy": {"pair", "memory_calls"}, "native": {"memory_calls"}}
    for engine, left_out in lacking.items():
        report = as_of_a_card(SIMULATED[0])
        for row in report.rows:
            row.arm = row.arm.replace("native", engine)
            for name in left_out:
                row.values.pop(name, None)
        if engine == "cupy":
            report.rows = [row for row in report.rows if row.workload != "memory_limited"]
        save(report, folder / f"lab_allocators_{engine}_h200.json")
    reports = [*lab_figures.allocators(folder), lab_figures.simulated(folder, "lab_allocators")]
    lines = lab_figures.claim_lines(reports, ALLOCATOR_CLAIMS)
    of = {text: source for text, _, _, source, _ in lines}
    assert of["allocation is 2 % of the time"] == of["fused kernels gain 23 %"] == "`cupy`"
    assert of["a pool's allocation takes microseconds"] == "`native`"
    assert of["on that card async holds the 1 GB that is in use on average"] == "`native`"
    assert of["the pool makes no GPU memory call in the steady state"] == "simulated"
    assert "not measured" not in {figures for _, _, figures, _, _ in lines}
    verdicts = lab_figures.sections(folder)["claims.md", "allocators"]
    assert "`cupy`: **NVIDIA H200**" in verdicts and "`native`: **NVIDIA H200**" in verdicts
    assert "| confirmed | calls for memory in the steady rounds of 7 workloads" in verdicts


def test_a_claim_that_the_nearest_engine_leaves_open_is_not_left_to_another(folder: Path) -> None:
    for engine, times in {"cupy": [1.0, 9.0, 1.0, 9.0, 5.0], "native": [1.0] * 5}.items():
        report = as_of_a_card(SIMULATED[0])
        for row in report.rows:
            row.arm = row.arm.replace("native", engine)
            if "time" in row.values:
                row.values["time"] = times
        save(report, folder / f"lab_allocators_{engine}_h200.json")
    lines = lab_figures.claim_lines(lab_figures.allocators(folder), ALLOCATOR_CLAIMS)
    (line,) = (line for line in lines if line[0] == "the three are level with 32 streams")
    assert line[1] == "cannot be said here" and line[3] == "`cupy`"


def test_a_figure_stands_with_its_spread_or_says_how_it_ended() -> None:
    report = as_of_a_card(SIMULATED[0])
    time = report.row("simple", "pool", "native")
    failed = report.row("churn", "async", "native")
    mutex = report.row("simple", "direct", "native mutex")
    assert time is not None and failed is not None and mutex is not None
    time.values["time"] = [90.0, 95.0, 100.0, 105.0, 110.0]
    failed.values, failed.outcome = {}, "out of memory"
    mutex.values["over_in_use"] = [2.5] * 5
    table = lab_tables.allocator_table(report).splitlines()
    (line,) = (line for line in table if line.startswith("| `simple` | time"))
    assert line.startswith("| `simple` | time | 100 ms ± 8.0 % | ")
    time_of, held_of = (line for line in table if line.startswith("| `churn`"))
    assert "out of memory" in time_of and "out of memory" not in held_of
    assert any(line.startswith("| `simple`, mutex |") and " 2.50" in line for line in table)
    heads = {line.split(" |")[0] for line in table}
    assert {"| `fused`", "| `unfused`", "| `wait_events`", "| size: right"} <= heads


def missed(report: Report) -> set[lab_reasons.Row]:
    places = {"allocators": allocator_places, "fragmentation": fragmentation_places}
    return {
        (report.experiment, each.workload, each.arm, each.quantity)
        for each in places[report.experiment](report)
        if each.mark == "missed"
    }


def test_reasons_are_given_of_missed_rows_alone() -> None:
    simulated = [load(programs.RESULTS / f"{name}.json") for name in SIMULATED]
    assert lab_reasons.SIMULATED.keys() <= set().union(*map(missed, simulated))
    assert all(each.strip() and "|" not in each for each in lab_reasons.SIMULATED.values())
    names = (*lab_figures.ALLOCATORS, lab_figures.FRAGMENTATION)
    of_card = [lab_figures.on_card(programs.RESULTS, name) for name in names]
    rows = [missed(report) for report in of_card if report is not None]
    assert lab_reasons.ON_CARD.keys() <= set().union(*rows)


def test_a_missed_row_has_its_reason_or_is_called_unknown() -> None:
    report = load(programs.RESULTS / f"{SIMULATED[0]}.json")
    places = [Place(*row[1:], "missed", "why") for row in lab_reasons.SIMULATED]
    places.append(Place("churn", "native", "over_in_use", "missed", "why"))
    *known, unknown = lab_tables.goal_table(report, places).splitlines()[-len(places) :]
    for line, text in zip(known, lab_reasons.SIMULATED.values(), strict=True):
        assert line.endswith(f"| **missed** | why | {text} |")
    assert unknown.endswith("| not known yet |")
    on_card = lab_tables.goal_table(as_of_a_card(SIMULATED[0]), places)
    assert on_card.count("not known yet") == len(places)  # another card, another reason


@pytest.mark.parametrize(
    "fields", [{"stopped": "interrupted"}, {"simulated": "h200"}], ids=["stopped", "simulated"]
)
def test_what_is_not_whole_or_of_no_card_is_not_published(
    folder: Path, fields: dict[str, object]
) -> None:
    save(as_of_a_card(SIMULATED[1], **fields), folder / "lab_fragmentation_h200.json")
    with pytest.raises(SystemExit, match="is not what pages show"):
        lab_figures.sections(folder)


def test_real_runs_are_published(folder: Path) -> None:
    held = [lab_replay.Held("native", "torch", 10**9, 104 * 10**7)]
    result = lab_replay.Result(MACHINE, False, held)
    programs.write(result, folder / "lab_replay_h200.json")
    text = lab_figures.sections(folder)["replay.md", "real runs"]
    assert text.startswith("NVIDIA H200, 2027-01-01; a processor.")
    assert "| `torch` | 1.00 | 1.04 | +4.0% |" in text


def test_a_figure_that_was_changed_by_hand_is_written_over() -> None:
    page = f"a\n{lab_figures.begin('x')}\n1\n{lab_figures.END}\nb"
    assert lab_figures.written(page, "x", "2") == page.replace("\n1\n", "\n\n2\n\n")
    with pytest.raises(SystemExit, match="has no lines"):
        lab_figures.written(page, "y", "2")


def test_the_readme_takes_the_card_s_figures_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(programs.RESULTS / "sharing_modes_sim.json", folder)
    monkeypatch.setattr(programs, "RESULTS", folder)
    (simulated,) = readme_figures.share()
    assert simulated[3].startswith("simulated H200") and readme_figures.lab() == []

    row = sharing_report.Row("switch_full", 0.321, True)
    card = sharing_report.Report("sharing", False, "full", "PyTorch", CARD, MACHINE, {}, 5, [row])
    programs.write(card, folder / "sharing_h200.json")
    assert readme_figures.share() == [
        (simulated[0], "0.32 s", f"{simulated[2]} (simulated)", "H200, 2027-01-01")
    ]
    programs.write(structs.replace(card, rows=[]), folder / "sharing_h200.json")
    assert readme_figures.share() == [simulated]

    report = as_of_a_card(SIMULATED[0])
    for each in report.rows:
        if each.subject == "async":
            each.subject = "rmm_async"
        elif each.subject == "pool" and "allocation" in each.values:
            each.values["allocation"] = [time / 20 for time in each.values["time"]]
    report.rows = [each for each in report.rows if each.values]
    save(report, folder / "lab_allocators_native_h200.json")
    ((_, ours, theirs, where),) = readme_figures.lab()
    assert (ours, where) == ("5.0 %", "H200, 2027-01-01")
    assert theirs == f"{SUBJECTS['rmm_async'].title}: 32.0 %"
