"""What is said of tasks that were run again, at the end: nothing of it is in the results."""

from __future__ import annotations

from dataclasses import dataclass, field

from vramkit.report.units import count_text
from vramkit.sweep.tasks import Task


@dataclass
class Again:
    """Called for each task that is run again, with the reason."""

    numbers: set[int] = field(default_factory=set)
    reasons: list[str] = field(default_factory=list)
    """Each once, in the order in which they came."""

    def __call__(self, task: Task, why: str) -> None:
        self.numbers.add(task.number)
        if why not in self.reasons:
            self.reasons.append(why)

    def words(self, noun: str, verb: str) -> str:
        """ "2 plans were made again: ..."; empty: none was."""
        if not self.numbers:
            return ""
        were = "was" if len(self.numbers) == 1 else "were"
        others = len(self.reasons) - 1
        more = f"; and {count_text(others, 'other reason')}" if others else ""
        counted = count_text(len(self.numbers), noun)
        return f"{counted} {were} {verb} again: {self.reasons[0]}{more}"
