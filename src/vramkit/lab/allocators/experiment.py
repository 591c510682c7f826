"""The experiment: its cases, and how one is measured."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from vramkit.lab.allocators.memory_limited import NAME as MEMORY_LIMITED
from vramkit.lab.allocators.memory_limited import SIZINGS
from vramkit.lab.allocators.workloads import MUTEX, WORKLOADS, Workload
from vramkit.lab.experiment import Case, Finding, Lab, Measured
from vramkit.lab.result import Quantity, Report
from vramkit.lab.settings import Setting, Settings
from vramkit.report.blocks import Block

if TYPE_CHECKING:
    from vramkit.driver import Driver

ENGINES = ("native", "python", "cupy", "cudf")
PEERS = ("rmm", "cupy")
"""Whose allocators are called from Python."""
QUESTION = (
    "Which allocator is fastest for a program that works on tables, and does it matter? Tables are "
    "filtered, added, sorted, grouped and joined, on one stream and on many, with sizes that stay "
    "and sizes that change. The time of each workload is split into what allocation takes, what "
    "the host waits for, and what the kernels take; beside it stands the memory that is held. Some "
    "rows change something else than the allocator: fewer kernels, fewer waits. Time and memory "
    "are measured in separate runs, each on a new allocator."
)
QUANTITIES = {
    "time": Quantity("time", "ms"),
    "allocation": Quantity("allocation", "ms"),
    "kernels": Quantity("kernels", "ms", "neither"),
    "wait": Quantity("waits", "ms"),
    "launch": Quantity("launches", "ms"),
    "split_time": Quantity("time of the round that is split", "ms", "neither"),
    "first": Quantity("first round", "ms"),
    "pair": Quantity("a pair", "ns"),
    "peak_in_use": Quantity("peak in use", "bytes", "neither"),
    "peak_held": Quantity("peak held", "bytes"),
    "average_held": Quantity("mean held", "bytes"),
    "over_in_use": Quantity("held / in use", "ratio"),
    "memory_calls": Quantity("calls for memory", "count"),
    "checksum": Quantity("sum of all results", "count", "neither"),
}
SETTINGS = (
    Setting("scale", 1.0, "rows of all columns, as a part of those of the study", 0.001, 100.0),
    Setting("engine", "installed", "what works on the tables: native is a model without a "
            "framework in C++, python the same from Python, cupy and cudf need a card",
            choices=("installed", *ENGINES)),
    Setting("bandwidth", 0.0, "bytes a second that modelled kernels reach; 0: 70 % of what the "
            "card says of its memory", 0, 1e15),
)  # fmt: skip


def arm_of(workload_arm: str, engine: str) -> str:
    return f"{engine} {workload_arm}".strip()


class Allocators:
    name = "allocators"
    title = "Allocators under table operations"
    question = QUESTION
    quantities = QUANTITIES
    settings = SETTINGS

    def simulator(self, settings: Settings) -> dict[str, object]:
        return {"clock": "virtual", "checker": "off", "data": "off"}

    def subjects(self, driver: Driver) -> dict[str, str]:
        from vramkit.lab.subjects import missing

        return missing(driver)

    def cases(self, settings: Settings) -> list[Case]:
        engines = engines_of(str(settings["engine"]))
        cases = [
            Case(workload.name, arm_of(arm, engine))
            for workload in WORKLOADS.values()
            for engine in engines
            if serves(engine, workload)
            for arm in workload.arms
        ]
        if "native" in engines:
            cases += [Case(MEMORY_LIMITED, sizing.arm) for sizing in SIZINGS]
        return cases

    def measure(self, case: Case, subject: str, lab: Lab) -> dict[str, float] | Measured:
        from vramkit.lab.allocators.frameworks import measure_framework
        from vramkit.lab.allocators.native import measure_memory_limited, measure_native
        from vramkit.lab.subjects import SUBJECTS

        scale = float(str(lab.settings["scale"]))
        chosen = SUBJECTS[subject]
        if case.workload == MEMORY_LIMITED:
            return measure_memory_limited(case.arm, chosen, lab)
        engine, _, arm = case.arm.partition(" ")
        mutex = arm == MUTEX
        if engine in ("native", "python"):
            return measure_native(engine, case.workload, mutex, chosen, lab, scale)
        return measure_framework(engine, case.workload, mutex, chosen, lab, scale)

    def findings(self, report: Report) -> list[Finding]:
        from vramkit.lab.allocators.findings import findings

        return findings(report)

    def blocks(self, report: Report) -> list[Block]:
        from vramkit.lab.allocators.blocks import blocks

        return blocks(report)


def engines_of(setting: str) -> list[str]:
    if setting != "installed":
        return [setting]
    needed = {"native": (), "python": PEERS, "cupy": ("cupy",), "cudf": ("cudf",)}
    return [
        engine
        for engine in ENGINES
        if not needed[engine] or any(find_spec(module) is not None for module in needed[engine])
    ]


def serves(engine: str, workload: Workload) -> bool:
    """cuDF has one stream, and operations that cannot be fused."""
    return engine != "cudf" or workload.on_one_stream


ALLOCATORS = Allocators()
