"""The sweep: every wait, depth, issue time and own-ffn-first, and what each is worth by itself."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from vramkit.lab.claims import Claim, claim_summary, claim_table, settled
from vramkit.lab.experiment import Case, Finding, Lab, Setting, Settings
from vramkit.lab.figures import figure, plainly
from vramkit.lab.result import Quantity, Report
from vramkit.lab.simulated import missing
from vramkit.lab.weights.study import (
    AS_COMPUTE,
    FEWEST_LAYERS,
    HOSTS,
    LAYERS,
    LINK_BOUND,
    PROFILE,
    PROFILE_RATE,
    STEPS,
    WAITS_5_MS,
    Cell,
    link_text,
)
from vramkit.report.blocks import BarChart, Block, Table, ValueBar
from vramkit.weights import Policy
from vramkit.weights.passes import Host

if TYPE_CHECKING:
    from vramkit.driver import Driver

Wait = Literal["event", "block"]
WAITS: tuple[Wait, ...] = ("event", "block")
DEPTHS = (1, 2, 4)
POINTS = ("attn", "ffn", "end")
LINKS = (PROFILE_RATE, WAITS_5_MS, AS_COMPUTE, LINK_BOUND)
DRAWN_HOST: Host = "group"
"""Where depth and timing count most: a host that is ahead hides them."""
ON_DEMAND = ""
"""In the place of a point: the group is copied on demand, or first thing in its layer."""

Gains = dict[Host, list[float]]


@dataclass(frozen=True)
class Swept:
    """A policy but for its wait, on a link."""

    link: float
    depth: int
    attn: str
    ffn: str
    own_ffn_first: bool

    def policy(self, wait: Wait) -> Policy:
        at = {"attn": self.attn} if self.ffn == ON_DEMAND else {"attn": self.attn, "ffn": self.ffn}
        return Policy(wait, self.depth, at, self.own_ffn_first)

    @property
    def case(self) -> Case:
        own = " and own ffn first" if self.own_ffn_first else ""
        ffn = f"ffn at {self.ffn}" if self.ffn != ON_DEMAND else "ffn on demand"
        return Case(link_text(self.link), f"depth {self.depth} attn at {self.attn} {ffn}{own}")


def all_swept() -> list[Swept]:
    return [
        Swept(link, depth, attn, ffn, own)
        for link in LINKS
        for depth in DEPTHS
        for attn in POINTS
        for ffn in (*POINTS, ON_DEMAND)
        for own in (False, True)
    ]


class Sweep:
    name = "weights-sweep"
    title = "What depth, timing and waiting are worth in weight streaming"
    question = (
        "A study of weight streaming says: depth of prefetch is worth 10 to 20 %, its timing 5 to "
        "10 %, and not to block 0.99 %. Here all 144 policies of wait, depth (1, 2, 4), issue time "
        "of either group, and own ffn first or not stream the study's 80 layers over four links: "
        "5 GB/s as the study has it, 1.76 GB/s at which its 5 ms of waiting come out, 1.25 GB/s at "
        "which copies take as long as compute, and 1 GB/s. What is compared differs in one thing "
        "alone. Simulated, in virtual time that repeats exactly: `--repetitions 1` says all."
    )
    quantities: ClassVar[dict[str, Quantity]] = {
        f"{name}_{host}": Quantity(f"{title}, {STEPS[host]}", "ms")
        for name, title in (("steady", "a steady pass"), ("cold", "the first pass"))
        for host in HOSTS
    }
    settings = (Setting("layers", LAYERS, "of the study's model", least=FEWEST_LAYERS, most=1000),)

    def simulator(self, settings: Settings) -> dict[str, object]:
        return {"profile": PROFILE, "data": "off", "checker": "off"}

    def subjects(self, driver: Driver) -> dict[str, str]:
        return dict.fromkeys(WAITS, missing(driver))

    def cases(self, settings: Settings) -> list[Case]:
        return [each.case for each in all_swept()]

    def measure(self, case: Case, subject: str, lab: Lab) -> dict[str, float]:
        from vramkit.lab.weights.passes import times

        swept = next(each for each in all_swept() if each.case == case)
        wait: Wait = "block" if subject == "block" else "event"
        values = {}
        for host in HOSTS:
            layers = int(str(lab.settings["layers"]))
            cell = Cell(swept.policy(wait), swept.link, host, layers=layers)
            values[f"cold_{host}"], values[f"steady_{host}"] = times(cell, lab)
        return values

    def findings(self, report: Report) -> list[Finding]:
        return [claim_summary(report, claims(report)), *_on_demand(report)]

    def blocks(self, report: Report) -> list[Block]:
        tables = [contrasts(report), by_issue(report), by_depth(report)]
        drawn = chart(report)
        return [claim_table(report, claims(report)), *([drawn] if drawn.bars else []), *tables]


def steady(report: Report, swept: Swept, wait: Wait, host: Host) -> float | None:
    return figure(report, swept.case, wait, f"steady_{host}")


# What one thing is worth


def depth_gains(report: Report) -> Gains:
    """Of a depth of 4 over one of 1."""
    pairs = [(replace(each, depth=1), each) for each in all_swept() if each.depth == 4]
    return _gains(report, pairs)


def timing_gains(report: Report) -> Gains:
    """Of issuing one group at attn over issuing it at the end of the layer."""
    pairs = [(replace(each, attn="end"), each) for each in all_swept() if each.attn == "attn"]
    pairs += [(replace(each, ffn="end"), each) for each in all_swept() if each.ffn == "attn"]
    return _gains(report, pairs)


def ahead_gains(report: Report) -> Gains:
    """Of issuing ffn ahead, at ffn, over copying it on demand."""
    return _gains(
        report,
        [
            (replace(each, ffn=ON_DEMAND), each)
            for each in all_swept()
            if each.ffn == "ffn" and not each.own_ffn_first
        ],
    )


def waiting_gains(report: Report) -> Gains:
    """Of events over blocking."""
    gains: Gains = {}
    for host in HOSTS:
        walls = [
            (steady(report, each, "block", host), steady(report, each, "event", host))
            for each in all_swept()
        ]
        gains[host] = [block / event - 1 for block, event in walls if block and event]
    return gains


def _gains(report: Report, pairs: Iterable[tuple[Swept, Swept]]) -> Gains:
    """With event waits: the first one's time over the second one's, less 1."""
    gains: Gains = {host: [] for host in HOSTS}
    for slow, quick in pairs:
        for host in HOSTS:
            before, after = (steady(report, each, "event", host) for each in (slow, quick))
            if before and after:
                gains[host].append(before / after - 1)
    return gains


def claims(report: Report) -> list[Claim]:
    return [*_claims(report)]


def _claims(report: Report) -> Iterator[Claim]:
    rule = "in at least half of the pairs that differ in nothing else, over all links and hosts"
    for said, gains, least in (
        ("depth is worth 10 to 20 %", depth_gains(report), 0.10),
        ("timing is worth 5 to 10 %", timing_gains(report), 0.05),
    ):
        every = [gain for each in gains.values() for gain in each]
        if not every:
            continue
        there = sum(gain >= least for gain in every)
        yield settled(
            said,
            f"{_percent(statistics.median(every))} % in the median; at least {100 * least:.0f} % "
            f"in {there} of {len(every)} pairs, at most {_percent(max(every), 0)} %.",
            plainly(2 * there >= len(every)),
            f"at least {100 * least:.0f} % {rule}",
        )
    waiting = waiting_gains(report)
    if all(waiting.values()):
        middle = {host: statistics.median(gains) for host, gains in waiting.items()}
        yield settled(
            "not to block is worth 0.99 %",
            "; ".join(f"{STEPS[host]}: {100 * gain:.2f} %" for host, gain in middle.items())
            + f"; at most {100 * max(max(gains) for gains in waiting.values()):.2f} %.",
            plainly(abs(middle["layer"] - 160 / 16160) <= 0.001),
            "the median in step with the layer; within 0.1 points",
        )
        depth = depth_gains(report)
        if all(depth.values()):
            deep = {host: statistics.median(gains) for host, gains in depth.items()}
            yield settled(
                "depth matters 10 to 20 times as much as blocking",
                "; ".join(
                    f"{STEPS[host]}: depth {_percent(deep[host])} %, blocking "
                    f"{100 * middle[host]:.2f} %"
                    for host in HOSTS
                )
                + ".",
                plainly(middle["layer"] > 0 and deep["layer"] >= 10 * middle["layer"]),
                "medians; at least 10 times, in step with the layer",
            )


def _on_demand(report: Report) -> Iterator[Finding]:
    gains = ahead_gains(report)
    if all(gains.values()):
        yield Finding(
            "note",
            "What counts is that each group is asked for ahead: ffn on demand costs "
            + "; ".join(f"{STEPS[host]} up to {100 * max(gains[host]):.1f} %" for host in HOSTS)
            + ". What the study calls depth is mostly that `history` never asks for ffn ahead.",
            "ffn on demand against ffn issued at ffn, all else equal, event waits",
        )


def _percent(share: float, digits: int = 1) -> str:
    return f"{round(100 * share, digits) + 0.0:.{digits}f}"  # no -0.0


# Tables and a plot


def chart(report: Report) -> BarChart:
    """Steady passes by depth and by when ffn is issued, on each link."""
    bars = []
    for link in LINKS:
        for depth in DEPTHS:
            for point in (*POINTS, ON_DEMAND):
                found = [
                    steady(report, each, "event", DRAWN_HOST)
                    for each in all_swept()
                    if (each.link, each.depth, each.ffn) == (link, depth, point)
                ]
                if walls := [wall for wall in found if wall is not None]:
                    bars.append(
                        ValueBar(
                            f"depth {depth}",
                            statistics.median(walls),
                            min(walls),
                            max(walls),
                            series=f"ffn at {point}" if point != ON_DEMAND else "ffn on demand",
                            group=link_text(link),
                        )
                    )
    return BarChart(
        f"A steady pass by depth and timing, {STEPS[DRAWN_HOST]}",
        bars,
        "ms",
        "depth",
        "lower",
        caption="With event waits. The median of the policies that differ in the rest alone, when "
        "attn is issued and own ffn first or not, and from the least to the most of them.",
    )


def contrasts(report: Report) -> Table:
    """The gains by host: the median and the most."""
    rows = []
    for words, gains in (
        ("a depth of 4, not 1", depth_gains(report)),
        ("a group issued at attn, not at the end", timing_gains(report)),
        ("ffn issued ahead, not on demand", ahead_gains(report)),
        ("events, no blocking", waiting_gains(report)),
    ):
        cells = [
            f"{_percent(statistics.median(gains[host]), 2)}, {_percent(max(gains[host]), 2)}"
            if gains[host]
            else ""
            for host in HOSTS
        ]
        if any(cells):
            rows.append([words, *cells])
    title = "Percent of a steady pass that one thing saves: the median of all pairs, and the most"
    return Table(["all else equal", *STEPS.values()], rows, title, [1, 2, 3])


def by_issue(report: Report) -> Table:
    """Steady passes by how the ffn group is issued; from the least to the most over the rest."""
    ways = {
        "issued a layer or more ahead": [each for each in all_swept() if each.ffn != ON_DEMAND],
        "first thing in its own layer": _not_ahead(own=True),
        "on demand": _not_ahead(own=False),
    }
    rows = []
    for link in LINKS:
        for words, found in ways.items():
            ranges = _ranges(report, [each for each in found if each.link == link])
            if any(ranges):
                rows.append([link_text(link), words, *ranges])
    title = "Steady passes with event waits, ms, by how ffn is copied"
    return Table(["link", "ffn is copied", *STEPS.values()], rows, title, [2, 3, 4])


def _not_ahead(*, own: bool) -> list[Swept]:
    return [each for each in all_swept() if each.ffn == ON_DEMAND and each.own_ffn_first == own]


def by_depth(report: Report) -> Table:
    """Of the policies that issue both groups ahead."""
    rows = []
    for link in LINKS:
        for depth in DEPTHS:
            found = [
                each
                for each in all_swept()
                if (each.link, each.depth) == (link, depth) and each.ffn != ON_DEMAND
            ]
            ranges = _ranges(report, found)
            if any(ranges):
                rows.append([link_text(link), str(depth), *ranges])
    title = "Steady passes of policies that issue both groups ahead, ms, by depth"
    return Table(["link", "depth", *STEPS.values()], rows, title, [1, 2, 3, 4])


def _ranges(report: Report, found: Iterable[Swept]) -> list[str]:
    walls: Mapping[Host, list[float]] = {host: [] for host in HOSTS}
    for each in found:
        for host in HOSTS:
            wall = steady(report, each, "event", host)
            if wall is not None:
                walls[host].append(wall)
    return [_range(walls[host]) if walls[host] else "" for host in HOSTS]


def _range(walls: list[float]) -> str:
    least, most = f"{min(walls):,.0f}", f"{max(walls):,.0f}"
    return least if least == most else f"{least} to {most}"


SWEEP = Sweep()
