"""Two results of one experiment: what is better or worse beyond the spread.

The first is the old one. Only figures are judged: that a machine or a setting differs is said, and
the reader decides what a difference then means.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from vramkit.lab.result import Outcome, Quantity, Report, Row
from vramkit.lab.samples import Difference, Spread, compare
from vramkit.report.units import count_text

Judgement = Literal["worse", "better", "other", "no difference", "too few"]
"""other: of a quantity of which neither direction is better."""
BAD: tuple[Outcome, ...] = ("failed", "out of memory", "timed out")


class Change(msgspec.Struct, frozen=True):
    """One figure in both results."""

    workload: str
    arm: str
    subject: str
    quantity: str
    old: Spread
    new: Spread
    difference: Difference
    judgement: Judgement


class OneSided(msgspec.Struct, frozen=True):
    """A row that was measured in one result only, with how it ended in the other.

    One that failed in a later repetition has figures of the earlier ones.
    """

    workload: str
    arm: str
    subject: str
    side: Literal["old", "new"]
    """In which it was measured."""
    outcome: Outcome | Literal["not in it"]
    """In the other."""
    why: str

    @property
    def worse(self) -> bool:
        """It failed now, and did not before."""
        return self.side == "old" and self.outcome in BAD


class Comparison(msgspec.Struct, frozen=True):
    experiment: str
    simulated: bool
    differs: list[tuple[str, str, str]]
    """What else is not the same in both runs: a name, and its two values."""
    changes: list[Change]
    one_sided: list[OneSided]
    quantities: dict[str, Quantity]

    @property
    def worse(self) -> int:
        changes = sum(change.judgement == "worse" for change in self.changes)
        return changes + sum(row.worse for row in self.one_sided)


class NotComparable(ValueError):
    """Two results that say nothing about one another."""


def compare_reports(old: Report, new: Report) -> Comparison:
    """Raises NotComparable."""
    if old.experiment != new.experiment:
        raise NotComparable(
            f"results of two experiments, {old.experiment} and {new.experiment}; "
            "two results of one experiment can be compared"
        )
    if (old.simulated is None) != (new.simulated is None):
        first, second = ("a real", "a simulated") if new.simulated else ("a simulated", "a real")
        raise NotComparable(
            f"the first result is from {first} card, the second from {second} one; times of the "
            "two say nothing about one another"
        )
    quantities = {
        name: quantity
        for name, quantity in new.quantities.items()
        if old.quantities.get(name) == quantity
    }
    changes, one_sided = [], []
    side: Literal["old", "new"]
    for name, before, after in _pairs(old, new):
        if before and after and before.values and after.values:
            changes += list(_changes(before, after, quantities))
            if (before.outcome in BAD) != (after.outcome in BAD):
                fails_now = after.outcome in BAD
                side, other = ("old", after) if fails_now else ("new", before)
                one_sided.append(_one_sided(name, side, other))
        elif before and before.values:
            one_sided.append(_one_sided(name, "old", after))
        elif after and after.values:
            one_sided.append(_one_sided(name, "new", before))
    return Comparison(
        new.experiment,
        new.simulated is not None,
        list(differences(old, new)),
        changes,
        one_sided,
        quantities,
    )


RowName = tuple[str, str, str]


def _pairs(old: Report, new: Report) -> Iterator[tuple[RowName, Row | None, Row | None]]:
    """In the order of the new result; rows of the old one alone come last."""
    sides = [
        {(row.workload, row.arm, row.subject): row for row in each.rows} for each in (old, new)
    ]
    for name in sides[1] | sides[0]:
        yield name, sides[0].get(name), sides[1].get(name)


def _changes(old: Row, new: Row, quantities: dict[str, Quantity]) -> Iterator[Change]:
    for name, quantity in quantities.items():
        before, after = old.values.get(name), new.values.get(name)
        if not before or not after:
            continue
        difference = compare(after, before)
        yield Change(
            new.workload,
            new.arm,
            new.subject,
            name,
            Spread.of(before),
            Spread.of(after),
            difference,
            _judgement(difference, quantity),
        )


def _judgement(difference: Difference, quantity: Quantity) -> Judgement:
    if difference.verdict in ("no difference", "too few"):
        return difference.verdict
    if quantity.better == "neither":
        return "other"
    return "better" if difference.verdict == quantity.better else "worse"


def _one_sided(name: RowName, side: Literal["old", "new"], other: Row | None) -> OneSided:
    if other is None:
        return OneSided(*name, side, "not in it", "")
    return OneSided(*name, side, other.outcome, other.why)


def differences(old: Report, new: Report) -> Iterator[tuple[str, str, str]]:
    """What is not the same but the figures: a name, and its two values."""
    sides = [_facts(old), _facts(new)]
    for name in sides[0] | sides[1]:
        before, after = (side.get(name, "") for side in sides)
        if before != after:
            yield name, before, after


def _facts(report: Report) -> dict[str, str]:
    """What should be the same in both, by the names that readers know."""
    facts = {
        "card": report.card,
        "bytes of the card": str(report.card_bytes),
        "profile": report.simulated or "",
        **{name.replace("_", " "): str(value) for name, value in _machine(report)},
        "measured on": ", ".join(
            f"{site.node} ({count_text(len(site.repetitions), 'repetition')})"
            for site in report.sites
        ),
        "seed": str(report.seed),
        "stopped early": report.stopped,
        **{f"version of {name}": version for name, version in report.versions.items()},
        **{f"setting {name}": str(value) for name, value in report.settings.items()},
    }
    for name, quantity in report.quantities.items():
        facts[f"quantity {name}"] = f"{quantity.title}, {quantity.unit}, {quantity.better}"
    return facts


def _machine(report: Report) -> Iterator[tuple[str, str]]:
    for name, value in msgspec.structs.asdict(report.machine).items():
        # The card has a line of its own, and NVIDIA's driver plays no part beside a simulated one.
        if name != "gpu" and not (name == "nvidia_driver" and report.simulated is not None):
            yield name, str(value)
