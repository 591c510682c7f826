"""Chapter: what two earlier studies say, beside the same figures measured now."""

from __future__ import annotations

import subprocess
import sys

import msgspec

from vramkit.demo.chapter import Chapter, ChapterResult, Context
from vramkit.lab.figures import figure
from vramkit.lab.result import Report
from vramkit.lab.sharing import claims as of_sharing
from vramkit.lab.sharing.cases import MODES, STUDY, SwitchCase
from vramkit.lab.weights import claims as of_weights
from vramkit.lab.weights.claims import STUDY_MS
from vramkit.report.blocks import BarChart, Block, Code, Table, Text, Tone, ValueBar

SECONDS = 120.0
POLICIES = ("auto", *STUDY_MS)
CASES = "5 GB/s/*,1.76 GB/s/in step with the layer"
TONES: dict[str, Tone] = {"swap": "good"}
SHOWN = """\
$ vramkit lab allocators                 # on your card, beside RMM, CuPy and PyTorch
$ vramkit lab sharing --driver sim       # what this chapter ran
$ vramkit record -o trace.csv.gz -- python train.py
$ vramkit replay trace.csv.gz            # what each allocator would have held
$ vramkit advise trace.csv.gz            # what would help, and how to check it
"""


def run(context: Context) -> ChapterResult:
    sharing = _measured("sharing")
    weights = _measured("weights", "--cases", CASES, "--subjects", ",".join(POLICIES))
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
            "Two studies that vramkit began with, measured again: why asynchronous weight "
            "streaming was slower than synchronous, and why two programs that share a card by "
            "page faults get 3 % of it. Both describe cards of their own, so this runs on the "
            f"simulated GPU{on_card}; its times are exact and the same on every machine."
        ),
        Table(["what the studies say", "", "measured here"], rows),
        _chart(switches),
        Text("The lab asks more than that, on your own card and of your own programs:"),
        Code("Next", SHOWN, language="text"),
    ]
    facts: dict[str, object] = {
        "claims": {claim.text: each.verdict for claim, each in found},
        "switch_seconds": switches,
    }
    return ChapterResult(blocks, facts)


def _chart(switches: dict[str, float | None]) -> Block:
    bars = [
        ValueBar(mode, seconds, tone=TONES.get(mode, "plain"))
        for mode, seconds in switches.items()
        if seconds is not None
    ]
    return BarChart(
        "Two programs of 12 GiB change places on a card that holds one of them",
        bars,
        "s",
        first="mode",
        better="lower",
        scale="log",
        caption="Link of 16 GB/s, 15 us for a fault of 4 KiB, as the study has it (simulated).",
    )


def _measured(experiment: str, *options: str) -> Report:
    """In processes of its own: the simulated GPU must not be loaded where a real one may be."""
    command = [sys.executable, "-m", "vramkit.cli", "lab", experiment, "--driver", "sim"]
    command += ["--repetitions", "1", "--json", *options]
    done = subprocess.run(command, capture_output=True, timeout=SECONDS, check=False)
    if done.returncode != 0:
        words = done.stderr.decode(errors="replace").strip()
        raise RuntimeError(f"vramkit lab {experiment} failed: {words[-500:]}")
    return msgspec.json.decode(done.stdout, type=Report)


CHAPTER = Chapter("Old figures, measured again", run)
