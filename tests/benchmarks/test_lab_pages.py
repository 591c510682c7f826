"""What the pages on weights and sharing show is what the published results of the lab say."""

from __future__ import annotations

from pathlib import Path

import lab_pages
import pytest

from vramkit.lab.catalog import EXPERIMENTS
from vramkit.lab.result import Report, load, save
from vramkit.lab.weights.cases import StudyCase
from vramkit.lab.weights.claims import STUDY_MS
from vramkit.lab.weights.study import HOSTS, PROFILE_RATE, SUBJECTS
from vramkit.weights import POLICIES

FILES = (lab_pages.WEIGHTS, lab_pages.SWEEP, lab_pages.SHARING)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_result_is_whole_simulated_and_of_the_experiment_as_it_is(path: Path) -> None:
    report = load(path)
    experiment = EXPERIMENTS[report.experiment]
    assert report.simulated and not report.stopped and report.repetitions == 1
    assert report.quantities == dict(experiment.quantities)
    cases = experiment.cases(report.settings)
    assert {(row.workload, row.arm) for row in report.rows} == {
        (case.workload, case.arm) for case in cases
    }
    assert {row.outcome for row in report.rows} <= {"measured", "not here"}
    assert {
        row.workload for row in report.rows if row.outcome == "not here" and row.subject in SUBJECTS
    } <= {"decoder"}


@pytest.mark.parametrize("name", lab_pages.pages())
def test_a_page_shows_the_tables_of_the_results(name: str) -> None:
    page = (lab_pages.DOCS / name).read_text("utf-8")
    tables = lab_pages.pages()[name]
    missing = [table.partition("\n")[0] for table in tables if table not in page]
    assert missing == [], f"python benchmarks/lab_pages.py prints those of docs/{name}"


def test_a_second_compute_stream_changes_no_total() -> None:
    report = load(lab_pages.WEIGHTS)
    for policy in POLICIES:
        for host in HOSTS:
            one, two = (_steady(report, policy, StudyCase(PROFILE_RATE, host, n)) for n in (1, 2))
            assert two == pytest.approx(one, abs=1)
    assert set(STUDY_MS) <= set(POLICIES)


def _steady(report: Report, policy: str, case: StudyCase) -> float:
    row = report.row(case.case.workload, policy, case.case.arm)
    assert row is not None
    return row.values["steady"][0]


@pytest.mark.sim_only
@pytest.mark.usefixtures("driver")
def test_the_page_on_weights_shows_the_timelines_as_they_are_drawn() -> None:
    page = (lab_pages.DOCS / "weights.md").read_text("utf-8")
    drawn = list(lab_pages.timelines())
    assert len(drawn) == 3
    assert [text.partition("\n")[0] for text in drawn if text not in page] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_result_is_kept_as_the_lab_writes_it(path: Path, tmp_path: Path) -> None:
    save(load(path), tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()
