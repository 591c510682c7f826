"""The experiment: policies of weight streaming beside each other, and a decoder on a real card."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from vramkit.lab.claims import claim_summary, claim_table
from vramkit.lab.experiment import (
    Case,
    Finding,
    Lab,
    Measured,
    Setting,
    Settings,
    Unmeasured,
)
from vramkit.lab.result import Quantity, Report
from vramkit.lab.weights import decoder, tables
from vramkit.lab.weights.cases import DRAWN, DecoderCase, NeighbourCase, all_cases
from vramkit.lab.weights.claims import advice, claims
from vramkit.lab.weights.study import FEWEST_LAYERS, LAYERS, PROFILE, SUBJECTS, cell_of
from vramkit.report.blocks import Block

if TYPE_CHECKING:
    from vramkit.driver import Driver

LAYERS_ON_A_CARD = 20


class Weights:
    name = "weights"
    title = "Weights streamed to the card: policies beside each other"
    question = (
        "A study asked why an asynchronous weight manager (`history`) was slower than a "
        "synchronous one (`history1`), and proposed `stage1` and `stage2`. Each policy streams its "
        "80 layers (80 ms of attention, 120 ms of ffn, 100 and 150 MB) over several links, with a "
        "host that runs ahead of the card or in step with it; `auto` is what vramkit uses. On the "
        "simulated GPU times are virtual and repeat exactly: `--repetitions 1` says all. On a card "
        "kernels that spin take the place of the layers, their times scaled so that copies take "
        "the same part of a layer as in the study, and a decoder of PyTorch is streamed beside "
        "accelerate and diffusers, where they are installed."
    )
    quantities: ClassVar[dict[str, Quantity]] = {
        "steady": Quantity("a steady pass", "ms"),
        "over_bound": Quantity("over the bound", "ratio"),
        "cold": Quantity("the first pass", "ms"),
        "bound": Quantity("the bound", "ms", "neither"),
        "layer": Quantity("a layer", "ms"),
        "blocked": Quantity("CPU blocked a layer", "ms"),
        "idle": Quantity("GPU idle a layer", "ms"),
        "ring": Quantity("ring", "bytes"),
        "misses": Quantity("copies on demand", "count"),
        "attn_bytes": Quantity("copied beside attention, a layer", "bytes", "neither"),
        "ffn_bytes": Quantity("copied beside ffn, a layer", "bytes", "neither"),
        "first_attn_bytes": Quantity("... in the first layer", "bytes", "neither"),
        "first_ffn_bytes": Quantity("... in the first layer", "bytes", "neither"),
        "slowest": Quantity("the slowest pass", "ms"),
        "quickest": Quantity("the quickest pass", "ms", "neither"),
        "late": Quantity("of ten sequences, those with a late pass", "count"),
        **decoder.QUANTITIES,
    }
    settings = (
        Setting(
            "extent",
            "short",
            "whole: two compute streams, and four links beside another program, too",
            choices=("short", "whole"),
        ),
        Setting(
            "layers",
            0,
            f"of the study's model; 0: its {LAYERS}, and {LAYERS_ON_A_CARD} on a card",
            most=1000,
        ),
        *decoder.SETTINGS,
    )

    def simulator(self, settings: Settings) -> dict[str, object]:
        return {"profile": PROFILE, "data": "off", "checker": "off"}

    def subjects(self, driver: Driver) -> dict[str, str]:
        return dict.fromkeys(SUBJECTS, "") | decoder.missing(driver)

    def cases(self, settings: Settings) -> list[Case]:
        layers = int(str(settings["layers"]))
        if 0 < layers < FEWEST_LAYERS:
            raise ValueError(
                f"layers is {layers}; with less than {FEWEST_LAYERS} the model fits the ring "
                "of some policies, and 0 takes the default"
            )
        return list(all_cases(settings["extent"] == "whole"))

    def measure(self, case: Case, subject: str, lab: Lab) -> dict[str, float] | Measured:
        from vramkit.lab.weights import neighbour, passes

        found = all_cases(whole=True)[case]
        if isinstance(found, DecoderCase):
            return decoder.measure(found, subject, lab)
        if subject not in SUBJECTS:
            raise Unmeasured("streams a model of PyTorch, not groups of bytes")
        layers = int(str(lab.settings["layers"]))
        if isinstance(found, NeighbourCase):
            if lab.driver.sim is None:
                raise Unmeasured("the other program's copies are simulated ones")
            cell = cell_of(subject, found.link, found.host, 1, layers or LAYERS)
            return neighbour.measure(cell, lab)
        default = LAYERS if lab.driver.simulated else LAYERS_ON_A_CARD
        cell = cell_of(subject, found.link, found.host, found.streams, layers or default)
        if found == DRAWN and lab.driver.sim is not None:
            title = f"{subject}: three layers, {case.workload}, {case.arm}"
            return passes.measure_drawn(cell, lab, title)
        return passes.measure(cell, lab)

    def findings(self, report: Report) -> list[Finding]:
        return [*advice(report), claim_summary(report, claims(report))]

    def blocks(self, report: Report) -> list[Block]:
        return [claim_table(report, claims(report)), *tables.blocks(report)]


WEIGHTS = Weights()
