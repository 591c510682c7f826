"""The rows of a report as they grow, whatever the order in which repetitions end."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from msgspec import structs

from vramkit.lab.experiment import Case
from vramkit.lab.result import Report, Row
from vramkit.lab.worker import Ended


class Rows:
    """A row for each subject and case, those that the report has already with what they have. One
    that failed in a repetition has no later one."""

    def __init__(self, report: Report, subjects: Mapping[str, str], cases: Sequence[Case]) -> None:
        """`subjects` has the reason for each that cannot take part."""
        self.cases = list(cases)
        self._rows: dict[tuple[str, Case], Row] = {}
        self._before: dict[tuple[str, Case], Row] = {}
        """As they were in the report."""
        self._ended: dict[tuple[str, Case], dict[int, Ended]] = {}
        self._left: dict[tuple[str, Case], int] = {}
        """Repetitions still to be measured."""
        self._took: dict[tuple[str, Case], float] = {}
        """Seconds of the last one."""
        self._repetitions = report.repetitions
        known = {(row.subject, Case(row.workload, row.arm)): row for row in report.rows}
        for subject, missing in subjects.items():
            for case in self.cases:
                key = subject, case
                if key not in known:
                    known[key] = Row(case.workload, subject, case.arm)
                    report.rows.append(known[key])
                row = self._rows[key] = known[key]
                if not row.repetitions:
                    row.outcome, row.why = ("not here", missing) if missing else ("not run", "")
                self._before[key] = structs.replace(row)
                self._ended[key] = {}
                self._left[key] = row.lacks(report.repetitions)
        self.total = sum(self._left.values())

    @property
    def done(self) -> int:
        return self.total - sum(self._left.values())

    def left(self, subject: str, repetition: int) -> list[Case]:
        """Cases of which a run that has come to this repetition still lacks it."""
        return [
            case
            for case in self.cases
            if self._left[subject, case] and self._rows[subject, case].repetitions <= repetition
        ]

    def take(
        self, subject: str, case: Case, repetition: int, ended: Ended, seconds: float | None
    ) -> None:
        """`seconds`: what it took, where it came to its end."""
        key = subject, case
        self._ended[key][repetition] = ended
        if seconds is not None:
            self._took[key] = seconds
        self._write(key)

    def _write(self, key: tuple[str, Case]) -> None:
        """The row, as if the repetitions had come in their order."""
        row, before, ended = self._rows[key], self._before[key], self._ended[key]
        row.values = {name: list(values) for name, values in before.values.items()}
        row.series, row.drawings = before.series, before.drawings
        row.repetitions = before.repetitions
        for repetition in sorted(ended):
            each = ended[repetition]
            row.outcome, row.why = each.outcome, each.why
            row.repetitions += 1
            for name, value in each.values.items():
                row.values.setdefault(name, []).append(value)
            if each.outcome != "measured":
                self._left[key] = 0
                return
            row.series = each.series or row.series
            row.drawings = each.drawings or row.drawings
        self._left[key] = row.lacks(self._repetitions)

    def seconds_left(self) -> float | None:
        """One that was not measured yet is taken to last as long as the others of its case."""
        if not self._took:
            return None
        everywhere = statistics.fmean(self._took.values())
        by_case: dict[Case, float] = {}
        for case in self.cases:
            known = [seconds for (_, its), seconds in self._took.items() if its == case]
            by_case[case] = statistics.fmean(known) if known else everywhere
        return sum(
            left * self._took.get(key, by_case[key[1]]) for key, left in self._left.items() if left
        )
