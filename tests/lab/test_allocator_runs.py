"""Both experiments through the loop of runs and its processes, on the simulated GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import pytest

from tests.lab.runs import report
from tests.lab.support import Plain
from vramkit import Pool
from vramkit.driver import Device, Driver
from vramkit.lab.allocators.native import measure_native
from vramkit.lab.allocators.workloads import WORKLOADS
from vramkit.lab.catalog import EXPERIMENTS
from vramkit.lab.document import document
from vramkit.lab.experiment import Lab, Unmeasured, chosen_cases
from vramkit.lab.result import Report
from vramkit.lab.run import Run
from vramkit.lab.settings import resolve
from vramkit.lab.subjects import SUBJECTS, Allocator, Room, Subject

pytestmark = pytest.mark.sim_only


def measured(name: str, subjects: list[str], cases: list[str], given: list[str]) -> Report:
    """Two repetitions."""
    experiment = EXPERIMENTS[name]
    settings = resolve(experiment.settings, given)
    empty = report(
        experiment=name, quantities=experiment.quantities, settings=settings, repetitions=2
    )
    return Run(
        experiment,
        name,
        empty,
        "sim",
        0,
        dict.fromkeys(subjects, ""),
        chosen_cases(cases, experiment.cases(settings)),
    ).run()


def test_allocators_end_to_end() -> None:
    cases = ["simple", "fused", "memory_limited"]
    given = ["engine=native", "scale=0.01"]
    found = measured("allocators", ["direct", "fixed_pool"], cases, given)
    assert not found.stopped

    simple = found.row("simple", "direct", "native")
    assert simple is not None and simple.outcome == "measured"
    assert all(len(values) == 2 for values in simple.values.values())
    assert all(len(set(values)) == 1 for values in simple.values.values()), "virtual times repeat"
    middle = {name: values[0] for name, values in simple.values.items()}
    parts = middle["allocation"] + middle["launch"] + middle["wait"]
    assert 0 < parts <= middle["time"] * 1.001
    assert middle["over_in_use"] == 1
    # Of an item two sums and what is kept, and for that a mask, counts and offsets. The first
    # round, and the columns that stay, are not among them.
    workload = WORKLOADS["simple"]
    assert middle["memory_calls"] == 2 * workload.workers * workload.items * 6
    pooled = found.row("simple", "fixed_pool", "native")
    assert pooled is not None and pooled.values["memory_calls"] == [0, 0]
    mutex = found.row("simple", "direct", "native mutex")
    assert mutex is not None and mutex.values["wait"][0] > middle["wait"]

    outcomes = {
        row.arm: row.outcome
        for row in found.rows
        if (row.workload, row.subject) == ("memory_limited", "fixed_pool")
    }
    assert outcomes["too small"] == outcomes["too large"] == "out of memory"
    unsized = found.row("memory_limited", "direct", "right")
    assert unsized is not None and unsized.outcome == "not here"

    drawn = document(EXPERIMENTS["allocators"], found)
    assert "Times are simulated" in repr(drawn)


def test_fragmentation_end_to_end() -> None:
    cases = ["alone/cold", "alone/warm", "touch/warm", "size_range", "small_blocks", "nearly_full"]
    given = ["scale=0.1", "blocks=500", "rounds=10"]
    found = measured("fragmentation", ["direct", "async"], cases, given)
    assert {row.outcome for row in found.rows} == {"measured"}

    cold, warm = (found.row("alone", "async", arm) for arm in ("cold", "warm"))
    assert cold is not None and warm is not None
    assert cold.values["phase_1"][0] > 2 * cold.values["phase_3"][0], "the driver's pool grows"
    assert warm.values["phase_1"] == warm.values["phase_3"]
    touched = found.row("touch", "async", "warm")
    assert touched is not None and touched.values["phase_1"][0] > warm.values["phase_1"][0]
    small = found.row("small_blocks", "direct")
    assert small is not None and small.values["blocks"] == [500, 500]

    said = "\n".join(each.text for each in EXPERIMENTS["fragmentation"].findings(found))
    assert "`async`, an allocation against phase 1: cold, phase 3: -" in said
    document(EXPERIMENTS["fragmentation"], found)


@pytest.mark.sim(data=False, checker=False)
def test_from_python_a_program_makes_the_same_calls_of_the_allocator(driver: Driver) -> None:
    lab = Lab(driver, driver.device(0), 0, 0, {"bandwidth": 0.0})
    found = {
        engine: measure_native(engine, "churn", False, SUBJECTS["direct"], lab, 0.01)
        for engine in ("native", "python")
    }
    for name in ("allocation", "pair", "peak_in_use", "peak_held"):
        assert found["native"][name] == found["python"][name] > 0
    # its own calls of the driver differ: a check of the context more or less
    assert found["native"]["time"] == pytest.approx(found["python"]["time"], rel=0.01)


@pytest.mark.sim(data=False, checker=False)
def test_a_given_bandwidth_takes_the_place_of_the_cards(driver: Driver) -> None:
    kernels = []
    for bandwidth in (1e12, 2e12):
        lab = Lab(driver, driver.device(0), 0, 0, {"bandwidth": bandwidth})
        values = measure_native("native", "fused", False, SUBJECTS["pool"], lab, 1.0)
        kernels.append(values["kernels"])
    assert kernels[0] == pytest.approx(2 * kernels[1], rel=0.1)  # but for the shortest


@pytest.mark.sim(data=False, checker=False)
def test_an_allocator_without_c_plus_plus_has_rows_from_python_only(driver: Driver) -> None:
    class Foreign:
        needs_size = False

        @contextmanager
        def open(self, device: Device, room: Room) -> Iterator[Allocator]:
            with Pool(device=device, background=False) as pool:
                yield Plain(pool, native=False)

    lab = Lab(driver, driver.device(0), 0, 0, {"bandwidth": 0.0})
    foreign = cast(Subject, Foreign())
    with pytest.raises(Unmeasured, match="engine python"):
        measure_native("native", "interleaved", False, foreign, lab, 0.01)
    assert measure_native("python", "interleaved", False, foreign, lab, 0.01)["time"] > 0


def test_engines_that_need_a_card_are_not_measured_on_a_simulated_one() -> None:
    found = measured("allocators", ["direct"], ["churn"], ["engine=cupy"])
    assert [(row.arm, row.outcome) for row in found.rows] == [("cupy", "not here")]
    assert "NVIDIA's driver only" in found.rows[0].why


@pytest.mark.parametrize("name", ["allocators", "fragmentation"])
def test_each_case_is_there_once_and_has_no_comma(name: str) -> None:
    experiment = EXPERIMENTS[name]
    cases = experiment.cases(resolve(experiment.settings, []))
    assert len({case.name for case in cases}) == len(cases)
    assert not any("," in case.name for case in cases)


def test_a_setting_out_of_range_is_refused_with_what_is_allowed() -> None:
    with pytest.raises(ValueError, match=r"scale is '0'; it may be a number from 0.001 to 100"):
        resolve(EXPERIMENTS["allocators"].settings, ["scale=0"])
    with pytest.raises(ValueError, match="installed, native, python, cupy, cudf"):
        resolve(EXPERIMENTS["allocators"].settings, ["engine=torch"])
