"""Chapter: what four earlier studies say, beside the same figures measured now."""

from __future__ import annotations

import subprocess
import sys

import msgspec

from vramkit.demo.chapter import Chapter, ChapterResult, Context
from vramkit.lab.allocators.claims import CLAIMS as of_allocators
from vramkit.lab.claims import NOT_MEASURED, Claim, Judged
from vramkit.lab.figures import figure
from vramkit.lab.fragmentation.claims import CLAIMS as of_fragmentation
from vramkit.lab.result import Report
from vramkit.lab.samples import NOISE
from vramkit.lab.sharing import claims as of_sharing
from vramkit.lab.sharing.cases import MODES, STUDY, SwitchCase
from vramkit.lab.weights import claims as of_weights
from vramkit.lab.weights.claims import STUDY_MS
from vramkit.report.blocks import BarChart, Block, Code, Table, Text, ValueBar
from vramkit.report.units import percent_text

SECONDS = 120.0
EACH_SECONDS = 60
"""Of each experiment: what is measured until then is shown."""
ALLOCATORS = "pool,direct,async,fixed_pool,arena"
SIMULATED_CASES = "extreme_sizes,small_frequent"
CASES_OF_ALLOCATORS = f"simple,complex,concurrent,churn,interleaved,{SIMULATED_CASES}"
CASE_OF_THE_SMALL_CARD = "memory_limited"
"""Always on the simulated GPU: a real card is made small by taking its memory, of which another
program on it might run out."""
CASES_OF_FRAGMENTATION = "alone/cold"
OF_THE_SMALL_CARD = "on a card of 4 GB with a peak of 3.5 GB a pool must hold the peak"
OF_ALLOCATORS = (
    "allocation is 2 % of the time",
    "async is 2.1 % faster than the pool with extreme sizes",
    "arena is 37 % faster in small frequent allocations",
    "any pool is 14 times as fast as plain cudaMalloc",
    OF_THE_SMALL_CARD,
    "the pool gets faster by 14.2 %",
    "all changes are below 5 %",
)
"""Of their claims those that are copied most."""
COLUMNS = ["what the studies say", "verdict", "measured here"]
POLICIES = ("auto", *STUDY_MS)
CASES = "5 GB/s/*,1.76 GB/s/in step with the layer"
SHOWN = """\
$ vramkit lab allocators            # on your card, beside other libraries
$ vramkit lab sharing --driver sim  # what this chapter ran
$ vramkit record -o trace.csv.gz -- python train.py
$ vramkit replay trace.csv.gz       # what each allocator would have held
$ vramkit advise trace.csv.gz       # what would help, and how to check it
"""


def run(context: Context) -> ChapterResult:
    measured = {**_allocators_measured(context), **_others_measured()}
    sharing, weights = measured["sharing"], measured["weights"]
    allocators = _of_allocators(measured)
    judged = [
        *((claim, weights) for claim in of_weights.claims(weights)),
        *((claim, sharing) for claim in of_sharing.claims(sharing)),
    ]
    found = [(claim, claim.judged(report)) for claim, report in judged]
    rows = [[claim.text, each.verdict, each.figures] for claim, each in found]
    switches = {mode: figure(sharing, SwitchCase(STUDY).case, mode, "switch") for mode in MODES}
    on_card = "" if context.profile else ", although a real card is here"
    blocks: list[Block] = [
        Text(
            "Four studies that vramkit began with, measured again. Two ask which allocator is "
            "fastest under table operations, and whether fragmentation slows allocation down; "
            + (
                "these ran on this card; the claim about a card of 4 GB is judged on the simulated "
                "GPU, as the lab would have to take the rest of this card's memory for it."
                if context.profile is None
                else "a simulated card has no times of an allocator's own work, so only their "
                "claims about memory are judged here, and the others wait for a real one."
            )
        ),
        Table(COLUMNS, [[claim.text, each.verdict, each.figures] for claim, each in allocators]),
        Text(
            "The other two ask why asynchronous weight streaming was slower than synchronous, and "
            "why two programs that share a card by page faults get 3 % of it. Both describe cards "
            f"of their own, so this runs on the simulated GPU{on_card}; its times are exact and "
            "the same on every machine."
        ),
        Table(COLUMNS, rows),
        chart(switches),
        Text("The lab asks more than that, on your own card and of your own programs:"),
        Code("Next", SHOWN, language="text"),
    ]
    facts: dict[str, object] = {
        "claims": {claim.text: each.verdict for claim, each in [*allocators, *found]},
        "switch_seconds": switches,
        "rows_measured": {name: _rows_measured(report) for name, report in measured.items()},
    }
    return ChapterResult(blocks, facts)


def chart(switches: dict[str, float | None]) -> Block:
    """Marks the shortest switch, and those that the lab would not tell from it."""
    measured = {mode: seconds for mode, seconds in switches.items() if seconds is not None}
    level = min(measured.values(), default=0.0) * (1 + NOISE)
    bars = [
        ValueBar(mode, seconds, tone="good" if seconds <= level else "plain")
        for mode, seconds in measured.items()
    ]
    return BarChart(
        "Two programs of 12 GiB change places on a card that holds one of them",
        bars,
        "s",
        first="mode",
        better="lower",
        scale="log",
        caption="Link of 16 GB/s, 15 us for a fault of 4 KiB, as the study has it (simulated). "
        f"Marked: the shortest, and what is at most {percent_text(NOISE)} longer.",
    )


def _allocators_measured(context: Context) -> dict[str, Report]:
    """On the card that is there, but for the case that would take its memory from others."""
    simulated = context.profile is not None
    driver, repetitions = ("sim", "1") if simulated else ("cuda", "5")
    cases = SIMULATED_CASES if simulated else CASES_OF_ALLOCATORS
    subjects = ("--subjects", ALLOCATORS)
    native = ("--set", "engine=native")
    return {
        "allocators": _measured(
            "allocators", "--cases", cases, *native, *subjects, driver=driver, times=repetitions
        ),
        "small card": _measured(
            "allocators", "--cases", CASE_OF_THE_SMALL_CARD, *native, *subjects
        ),
        "fragmentation": _measured(
            *("fragmentation", "--cases", CASES_OF_FRAGMENTATION, *subjects),
            driver=driver,
            times=repetitions,
        ),
    }


def _others_measured() -> dict[str, Report]:
    return {
        "sharing": _measured("sharing"),
        "weights": _measured("weights", "--cases", CASES, "--subjects", ",".join(POLICIES)),
    }


def _of_allocators(measured: dict[str, Report]) -> list[tuple[Claim, Judged]]:
    """Claims of the two studies of allocators; those that were not measured say so."""
    found = []
    for name, claims in (("allocators", of_allocators), ("fragmentation", of_fragmentation)):
        for claim in claims:
            if claim.text in OF_ALLOCATORS:
                of = "small card" if claim.text == OF_THE_SMALL_CARD else name
                found.append((claim, _marked(claim, measured[of])))
    return found


def _marked(claim: Claim, report: Report) -> Judged:
    """Claims of times say by themselves that they are simulated; in a table of a card's figures one
    of bytes should, too."""
    found = claim.judged(report)
    if report.simulated is None or claim.of_times or found == NOT_MEASURED:
        return found
    return Judged(found.verdict, f"simulated: {found.figures}", found.rule)


def _rows_measured(report: Report) -> int:
    return sum(row.outcome in ("measured", "out of memory") for row in report.rows)


def _measured(experiment: str, *options: str, driver: str = "sim", times: str = "1") -> Report:
    """In processes of its own: the simulated GPU must not be loaded where a real one may be."""
    command = [sys.executable, "-m", "vramkit.cli", "lab", experiment, "--driver", driver]
    command += ["--repetitions", times, "--time-limit", str(EACH_SECONDS), "--json", *options]
    try:
        done = subprocess.run(command, capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"vramkit lab {experiment} did not end in {SECONDS:g} s") from error
    try:
        # Also where nothing could be measured, as on a card that is too small or in use: its rows
        # say why.
        return msgspec.json.decode(done.stdout, type=Report)
    except msgspec.DecodeError as error:
        words = done.stderr.decode(errors="replace").strip()
        raise RuntimeError(f"vramkit lab {experiment} failed: {words[-500:]}") from error


CHAPTER = Chapter("Old figures, measured again", run)
