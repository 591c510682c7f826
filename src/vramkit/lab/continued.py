"""A result that another run goes on with: whether both measure the same, and the rows of both."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from msgspec import structs

from vramkit.lab.compare import differences
from vramkit.lab.experiment import Case
from vramkit.lab.result import Report, Row
from vramkit.report.units import count_text


class NotTheSame(ValueError):
    """A run that does not measure what the result has."""


def continued(
    before: Report,
    now: Report,
    subjects: Mapping[str, str],
    cases: Sequence[Case],
    chosen: Sequence[tuple[str, Case]],
) -> Report:
    """The earlier report, with rows for what is chosen now, in the order of the experiment.

    `subjects` and `cases` are all that the experiment has. Raises NotTheSame.
    """
    _must_be_the_same(before, now)
    rows = {(row.subject, Case(row.workload, row.arm)): row for row in before.rows}
    known = [(subject, case) for subject in subjects for case in cases]
    if unknown := [key for key in rows if key not in set(known)]:
        subject, case = unknown[0]
        raise NotTheSame(
            f"it has {count_text(len(unknown), 'row')} that the experiment does not have here, "
            f"such as {case.name} of {subject}"
        )
    same = rows.keys() >= set(chosen) and before.repetitions == now.repetitions
    for subject, case in chosen:
        row = rows.setdefault((subject, case), Row(case.workload, subject, case.arm))
        if row.repetitions and row.lacks(now.repetitions) and (missing := subjects[subject]):
            raise NotTheSame(f"{subject} took part in it, and cannot here: {missing}")
    return structs.replace(
        before,
        repetitions=now.repetitions,
        command=before.command if same else now.command,
        rows=[rows[key] for key in known if key in rows],
    )


def _commands(before: Report, now: Report) -> Iterator[tuple[str, str, str]]:
    """What chooses the card and is in the command alone."""
    sides = [_card_words(report.command) for report in (before, now)]
    for name in ("VRAMKIT_SIM", "--device"):
        old, new = (side.get(name, "") for side in sides)
        if old != new:
            yield name, old, new


def _card_words(command: str) -> dict[str, str]:
    words = shlex.split(command)
    found = [(word, following) for word, following in pairwise(words) if word == "--device"]
    name, equals, value = words[0].partition("=") if words else ("", "", "")
    return dict([*found, (name, value)] if equals else found)


def _must_be_the_same(before: Report, now: Report) -> None:
    if before.sites:
        raise NotTheSame("it was measured on the cards of a cluster, repetition by repetition")
    if any(row.values and not row.repetitions for row in before.rows):
        raise NotTheSame("it does not say how many repetitions its rows have")
    differing = [*differences(structs.replace(before, stopped=""), now), *_commands(before, now)]
    if differing:
        words = "; ".join(
            f"{name} was {old or 'none'} and is {new or 'none'}" for name, old, new in differing
        )
        raise NotTheSame(
            "a run goes on only with the settings, the seed, the card, the machine and the "
            f"versions that it began with; {words}"
        )
    if now.repetitions < before.repetitions:
        raise NotTheSame(
            f"it has {before.repetitions} repetitions, and {now.repetitions} are wanted; it may be "
            f"{before.repetitions} or more"
        )
