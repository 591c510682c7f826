"""Repetitions on cards elsewhere: one is measured with all its turns on one card, so that subjects
are compared on the same one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from msgspec import structs

from vramkit import driver as drivers
from vramkit.lab.catalog import find
from vramkit.lab.collect import site_of
from vramkit.lab.experiment import Case
from vramkit.lab.result import Outcome, Site
from vramkit.lab.settings import Value
from vramkit.lab.turn import Setup, Turn
from vramkit.lab.worker import Ended, simulate
from vramkit.sweep import Batch, Done, Place, PlaceError, Task, batches
from vramkit.sweep.run import run

if TYPE_CHECKING:
    from vramkit.driver import Driver

WORK = "vramkit.lab.remote"


class Chosen(msgspec.Struct, frozen=True):
    """The driver, where the command names one: then the command's VRAMKIT_SIM counts, not that of
    the node. Without one the node has a card, and decides."""

    driver: str | None
    simulator: str = ""

    def apply(self) -> str:
        """In a worker; the driver as vramkit.driver.open() takes it."""
        if self.driver is None:
            return os.environ.get("VRAMKIT_DRIVER") or "cuda"
        os.environ["VRAMKIT_SIM"] = self.simulator
        return self.driver


class Question(msgspec.Struct, frozen=True):
    experiment: str
    settings: dict[str, Value]
    chosen: Chosen


class Described(msgspec.Struct, frozen=True):
    """A card, and who can take part there: with the reason for each that cannot."""

    site: Site
    driver: str
    subjects: dict[str, str]


class Common(msgspec.Struct, frozen=True):
    setup: Setup
    cases: list[Case]
    chosen: Chosen


class Given(msgspec.Struct, frozen=True):
    repetition: int
    order: list[str]


class Measurement(msgspec.Struct, frozen=True):
    subject: str
    case: Case
    ended: Ended
    seconds: float | None


class Measured(msgspec.Struct, frozen=True):
    site: Site
    measurements: list[Measurement]


# In a worker


def describing(common: bytes) -> Callable[[bytes], bytes]:
    question = msgspec.json.decode(common, type=Question)

    def one(given: bytes) -> bytes:
        spec = question.chosen.apply()
        driver = _opened(question.experiment, spec, question.settings)
        subjects = find(question.experiment).subjects(driver)
        return msgspec.json.encode(Described(site_of(driver, 0), spec, subjects))

    return one


def measuring(common: bytes) -> Callable[[bytes], bytes]:
    decoded = msgspec.json.decode(common, type=Common)

    def one(given: bytes) -> bytes:
        return msgspec.json.encode(_measured(decoded, msgspec.json.decode(given, type=Given)))

    return one


def _measured(common: Common, given: Given) -> Measured:
    setup = structs.replace(common.setup, driver=common.chosen.apply())
    driver = _opened(setup.experiment, setup.driver, setup.settings)
    missing = find(setup.experiment).subjects(driver)
    found: list[Measurement] = []
    for subject in given.order:
        if why := missing[subject]:
            found += _without(subject, common.cases, "not here", why)
        else:
            found += _turn(setup, subject, given.repetition, common.cases)
    return Measured(site_of(driver, setup.device), found)


def _turn(setup: Setup, subject: str, repetition: int, cases: list[Case]) -> list[Measurement]:
    found: list[Measurement] = []

    def take(case: Case, ended: Ended, seconds: float | None) -> None:
        found.append(Measurement(subject, case, ended, seconds))

    Turn(setup, subject, repetition, take).measure(cases)
    return found


def _opened(experiment: str, spec: str, settings: Mapping[str, Value]) -> Driver:
    driver = drivers.open(spec)
    simulate(find(experiment), settings, spec, driver)
    return driver


# Where the run is


@dataclass(frozen=True)
class Elsewhere:
    """`simulated` is what the card is that was asked first: all others are to be the same."""

    place: Place
    chosen: Chosen
    simulated: str | None


def describe(
    experiment: str,
    settings: dict[str, Value],
    chosen: Chosen,
    place: Place,
    check: Callable[[], None] = lambda: None,
) -> Described:
    """Of any card of the place, which is closed then; `check` is called while it waits for one.

    Raises PlaceError.
    """
    question = msgspec.Raw(msgspec.json.encode(Question(experiment, settings, chosen)))
    batch = Batch(f"{WORK}:describing", question, [Task(0, msgspec.Raw(b"null"))])
    for ended in run([batch], place, check=check):
        if isinstance(ended, Done):
            return msgspec.json.decode(ended.value, type=Described)
        raise PlaceError(f"no card could be examined: {ended.why}")
    raise AssertionError("a task has an end")


def repetitions(
    setup: Setup,
    cases: list[Case],
    turns: list[list[str]],
    elsewhere: Elsewhere,
    check: Callable[[], None],
    hurry: Callable[[], bool],
    again: Callable[[Task, str], None],
) -> Iterator[tuple[int, Measured | str]]:
    """Each repetition as it ends, or why nobody could measure it. Raises PlaceError.

    `turns` has the order of the subjects in each."""
    common = msgspec.Raw(msgspec.json.encode(Common(setup, cases, elsewhere.chosen)))
    tasks = [
        Task(number, msgspec.Raw(msgspec.json.encode(Given(number, order))))
        for number, order in enumerate(turns)
    ]
    work = batches(f"{WORK}:measuring", common, tasks, 1)
    for ended in run(work, elsewhere.place, check=check, again=again, hurry=hurry):
        if not isinstance(ended, Done):
            yield ended.number, ended.why
            continue
        measured = msgspec.json.decode(ended.value, type=Measured)
        if measured.site.simulated != elsewhere.simulated:
            kinds = [
                "a real card" if each is None else f"a simulated one of profile {each}"
                for each in (measured.site.simulated, elsewhere.simulated)
            ]
            yield (
                ended.number,
                f"{measured.site.node} has {kinds[0]}, and the run began on {kinds[1]}",
            )
            continue
        yield ended.number, measured


def unmeasured(why: str, cases: list[Case], order: list[str]) -> list[Measurement]:
    """What a repetition is that nobody could measure."""
    return [each for subject in order for each in _without(subject, cases, "failed", why)]


def _without(subject: str, cases: list[Case], outcome: Outcome, why: str) -> list[Measurement]:
    return [
        Measurement(subject, case, Ended(number, outcome, why=why), None)
        for number, case in enumerate(cases)
    ]


def note_site(sites: list[Site], site: Site, repetition: int) -> None:
    """In the order of their names, whoever was the first."""
    for known in sites:
        if (known.node, known.uuid) == (site.node, site.uuid):
            known.repetitions = sorted([*known.repetitions, repetition])
            return
    sites.append(structs.replace(site, repetitions=[repetition]))
    sites.sort(key=lambda each: (each.node, each.uuid))
