"""The experiment: modes of sharing side by side, on simulated cards in exact virtual time."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from vramkit.lab.claims import claim_summary, claim_table
from vramkit.lab.experiment import Case, Finding, Lab, Setting, Settings
from vramkit.lab.result import Quantity, Report
from vramkit.lab.sharing import tables
from vramkit.lab.sharing.cases import MODES, SwitchCase, all_cases
from vramkit.lab.sharing.claims import advice, claims
from vramkit.lab.simulated import missing
from vramkit.report.blocks import Block

if TYPE_CHECKING:
    from vramkit.driver import Driver


class Sharing:
    name = "sharing"
    title = "Two programs on a card that holds one of them"
    question = (
        "A study found that two programs which share a card by managed memory get 3 % of its "
        "speed, since each turn begins with page faults, and proposed to prefetch in bulk. What "
        "does a switch cost by paging, prefetch and swap, and what share of the time is left for "
        "computing? Two programs of 12 GiB take turns on the study's card (16 GB/s, 15 us for a "
        "fault of 4 KiB) and on one with the figures of an H200, whatever profile was asked for. "
        "Times are virtual and repeat exactly: `--repetitions 1` says all."
    )
    quantities: ClassVar[dict[str, Quantity]] = {
        "switch": Quantity("a switch adds", "s"),
        "bytes_in": Quantity("to the card", "bytes"),
        "bytes_out": Quantity("to the host", "bytes"),
        "share": Quantity("of the time computing", "share", "higher"),
        "turn": Quantity("a turn lasts", "s", "neither"),
    }

    settings = (
        Setting(
            "extent",
            "short",
            "whole: all amounts, quanta and windows, on both machines",
            choices=("short", "whole"),
        ),
    )

    def simulator(self, settings: Settings) -> dict[str, object]:
        return {"profile": "memory-sharing", "data": "off", "checker": "off"}

    def subjects(self, driver: Driver) -> dict[str, str]:
        return dict.fromkeys(MODES, missing(driver))

    def cases(self, settings: Settings) -> list[Case]:
        return list(all_cases(settings["extent"] == "whole"))

    def measure(self, case: Case, subject: str, lab: Lab) -> dict[str, float]:
        from vramkit.lab.sharing.measure import switch, turns

        found = all_cases(whole=True)[case]
        if isinstance(found, SwitchCase):
            return switch(found, subject, lab)
        return turns(found, subject, lab)

    def findings(self, report: Report) -> list[Finding]:
        return [*advice(report), claim_summary(report, claims(report))]

    def blocks(self, report: Report) -> list[Block]:
        return [claim_table(report, claims(report)), *tables.blocks(report)]


SHARING = Sharing()
