"""The study of fragmentation, judged by the four phases of the native benchmark."""

from __future__ import annotations

import fragmentation_claims
import pytest
from allocator_table import Report
from lab_pages import ALLOCATORS
from rows import Row

STUDY = {
    "pool": (278.9, 256.6, 239.4),
    "async": (234.1, 241.0, 241.6),
    "arena": (234.2, 227.4, 241.5),
}


def made(phases: dict[str, tuple[float, float, float]]) -> Report:
    """Phases 1, 3 and 4 of RMM's allocators, the same alone and with a kernel; a hundred times as
    long with one."""
    report = fragmentation_claims.load_allocators(ALLOCATORS.read_bytes())
    report.rows = []
    for name, (first, third, last) in phases.items():
        for how, longer in (("alone", 1.0), ("touch", 100.0)):
            figures = {"/1": first, "/3": third, "/4": last}
            values = {key: [value * longer] * 5 for key, value in figures.items()}
            values[""] = [last / first] * 5
            for phase, each in values.items():
                row = Row(f"phases/{how}{phase}", f"rmm_{name}", "ns")
                row.take(each)
                report.rows.append(row)
    return report


def verdicts(report: Report) -> dict[str, str]:
    return {row[0]: row[1] for row in fragmentation_claims.table(report).rows}


def test_the_studys_own_changes_are_confirmed_and_contradict_its_conclusion() -> None:
    found = verdicts(made(STUDY))
    changes = [text for text in found if " gets " in text]
    assert len(changes) == 6
    assert {found[text] for text in changes} == {"confirmed"}
    assert found["all changes are under 5 %"] == "not confirmed"
    assert found["allocation that is 10 % slower costs less than 1 %"] == "confirmed"


@pytest.mark.parametrize("last", [239.4, 120.0, 300.0])
def test_a_change_of_another_size_or_direction_is_not_confirmed(last: float) -> None:
    found = verdicts(made(STUDY | {"pool": (278.9, 256.6, last)}))
    wanted = "confirmed" if last == 239.4 else "not confirmed"
    assert found["pool gets 14.2 % faster in the long run"] == wanted


def test_a_change_within_the_spread_is_not_confirmed() -> None:
    report = made(STUDY)
    for row in report.rows:
        if row.workload == "phases/alone/3" and row.allocator == "rmm_pool":
            row.take([300.0, 256.6, 256.6, 256.6, 200.0])
    assert verdicts(report)["pool gets 8.0 % faster after 50 rounds"] == "in part"
