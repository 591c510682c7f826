"""What the study says of its policies, judged by the figures of a report."""

from __future__ import annotations

from collections.abc import Iterator

from vramkit.lab.claims import Claim, settled
from vramkit.lab.experiment import Finding
from vramkit.lab.figures import figure, plainly, within
from vramkit.lab.result import Report
from vramkit.lab.samples import compare
from vramkit.lab.weights.cases import BUDGETS, DecoderCase, NeighbourCase, StudyCase
from vramkit.lab.weights.study import (
    COMPUTE_MS,
    HOSTS,
    LAYERS,
    LINKS,
    MB,
    PROFILE_RATE,
    SUBJECTS,
    WAITS_5_MS,
    WAITS_20_MS,
)
from vramkit.lab.words import spread_text
from vramkit.weights import POLICIES
from vramkit.weights.passes import Host

NEAR = 0.0025
"""Of a total: a quarter of what blocking is said to cost."""
AT_THE_BOUND = 0.001
STUDY_POLICIES = POLICIES.keys() - {"auto"}
STUDY_MS = {"history1": 16_160, "history": 16_400, "stage1": 16_000, "stage2": 15_600}


def claims(report: Report) -> list[Claim]:
    """Those for which the report has figures."""
    return [
        *_totals(report),
        *_layers(report),
        *_overheads(report),
        *_blocking(report),
        *_beside_attention(report),
        *_transfer(report),
        *_stability(report),
    ]


def total(report: Report, policy: str, link: float, host: Host) -> float | None:
    """Milliseconds of a steady pass of the study's 80 layers, where compute is the bound."""
    over = figure(report, StudyCase(link, host).case, policy, "over_bound")
    return over * COMPUTE_MS if over else None


def _totals(report: Report) -> Iterator[Claim]:
    sums = {
        "history1": f"{LAYERS} x (2 + 80 + 120) ms",
        "history": f"{LAYERS} x (80 + 5 + 120) ms",
        "stage1": f"{LAYERS} x (80 + 120) ms",
        "stage2": f"{LAYERS} x 195 ms, below the {COMPUTE_MS:,.0f} ms that computing takes",
    }
    for policy, said in STUDY_MS.items():
        layer = total(report, policy, PROFILE_RATE, "layer")
        ahead = total(report, policy, PROFILE_RATE, "ahead")
        slow = total(report, policy, WAITS_5_MS, "layer")
        if layer is None or ahead is None or slow is None:
            continue
        found = f"{layer:,.0f} ms with the host in step with the layer, {ahead:,.0f} ms ahead"
        if policy == "history":
            found += f"; {slow:,.0f} ms at 1.76 GB/s, a rate worked out from its wait of 5 ms"
        yield settled(
            f"`{policy}` takes {said:,} ms",
            f"{found}.",
            plainly(within(layer, said, NEAR)),
            f"{sums[policy]}; in step with the layer at 5 GB/s, within {100 * NEAR:g} %",
        )
    history, history1 = (
        total(report, policy, PROFILE_RATE, "layer") for policy in ("history", "history1")
    )
    if history is not None and history1 is not None:
        yield settled(
            "`history1` is 240 ms (1.5 %) quicker than `history`",
            f"It is {abs(history1 - history):,.0f} ms ({100 * abs(history1 / history - 1):.1f} %) "
            f"{'slower' if history1 > history else 'quicker'}.",
            plainly(within(history - history1, 240, 0.25)),
            "in step with the layer at 5 GB/s; within a quarter of 240 ms",
        )


def _layers(report: Report) -> Iterator[Claim]:
    """Its timelines have other waits than its totals: 20 ms a layer, not 5."""
    for policy, said, why in (
        ("history1", 202, "2 + 80 + 120 ms"),
        ("history", 220, "80 + 120 ms, and 20 ms in which the card waits for weights"),
    ):
        layer = total(report, policy, PROFILE_RATE, "layer")
        slow = total(report, policy, WAITS_20_MS, "layer")
        if layer is None or slow is None:
            continue
        yield settled(
            f"`{policy}` takes {said} ms a layer",
            f"{layer / LAYERS:,.1f} ms at 5 GB/s; {slow / LAYERS:,.1f} ms at 1.5 GB/s, a rate "
            "worked out from a wait of 20 ms.",
            plainly(within(layer / LAYERS, said, NEAR)),
            f"{why}; in step with the layer at 5 GB/s, within {100 * NEAR:g} %",
        )


def _overheads(report: Report) -> Iterator[Claim]:
    """What is not computing, and what it expects its two stages to gain."""
    walls = {policy: total(report, policy, PROFILE_RATE, "layer") for policy in STUDY_MS}
    known = {policy: wall for policy, wall in walls.items() if wall is not None}
    if len(known) < len(walls):
        return
    for policy, said in (("history1", 0.0099), ("history", 0.0244)):
        lost = 1 - COMPUTE_MS / known[policy]
        yield settled(
            f"`{policy}` loses {100 * said:.2f} % of a pass",
            f"{100 * lost:.2f} %.",
            plainly(within(lost, said, 0.1)),
            "what is not computing, in step with the layer at 5 GB/s; within a tenth",
        )
    for before, after, said in (
        ("history1", "stage1", 0.010),
        ("stage1", "stage2", 0.025),
        ("history1", "stage2", 0.035),
    ):
        gain = 1 - known[after] / known[before]
        yield settled(
            f"`{after}` gains {100 * said:.1f} % over `{before}`",
            f"{100 * gain:.2f} %.",
            plainly(within(gain, said, 0.1)),
            "in step with the layer at 5 GB/s; within a tenth",
        )


def _blocking(report: Report) -> Iterator[Claim]:
    cost: dict[Host, float] = {}
    for host in HOSTS:
        block, event = (
            total(report, policy, PROFILE_RATE, host) for policy in ("history1", "stage1")
        )
        if block is not None and event is not None:
            cost[host] = block / event - 1
    if len(cost) == len(HOSTS):
        in_step = cost["layer"]
        yield settled(
            "blocking costs 0.99 %",
            f"{100 * in_step:.2f} % with the host in step with the layer, "
            f"{100 * cost['ahead']:.2f} % if it runs ahead.",
            plainly(within(in_step, 160 / 16160, 0.1)),
            "`history1` against `stage1` at 5 GB/s, in step with the layer; within a tenth",
        )
    shallow = {
        policy: total(report, policy, WAITS_5_MS, "layer")
        for policy in ("block_shallow", *STUDY_MS)
    }
    known = {policy: wall for policy, wall in shallow.items() if wall is not None}
    if len(known) == len(shallow):
        slowest = max(known, key=lambda policy: known[policy])
        yield settled(
            "blocking with shallow prefetch is the slowest",
            f"`block_shallow` takes {known['block_shallow']:,.0f} ms at 1.76 GB/s, `{slowest}` is "
            "the slowest.",
            plainly(slowest == "block_shallow"),
            "the longest pass of the study's policies, in step with the layer at 1.76 GB/s",
        )


def _transfer(report: Report) -> Iterator[Claim]:
    case = StudyCase(PROFILE_RATE, "group").case
    first, steady = (
        [figure(report, case, policy, quantity) for policy in ("history1", "history")]
        for quantity in ("first_ffn_bytes", "ffn_bytes")
    )
    if None in (*first, *steady):  # a card does not see the copies
        return
    (deep, shallow), (deep_steady, shallow_steady) = (
        [each or 0.0 for each in pair] for pair in (first, steady)
    )
    if not shallow or not shallow_steady:
        return
    in_first, in_steady = deep / shallow, deep_steady / shallow_steady
    yield settled(
        "`history1` transfers six times as much",
        f"{in_first:.1f} times in the first layer of a cold pass ({deep / MB:.0f} and "
        f"{shallow / MB:.0f} MB beside ffn), {in_steady:.1f} times in a layer of a steady one: "
        "every policy copies 250 MB a layer.",
        plainly(True)
        if within(in_steady, 6, 0.05)
        else "in part"
        if within(in_first, 6, 0.05)
        else "not confirmed",
        "bytes copied beside ffn, in step with the group at 5 GB/s; within 5 % of six, and in part "
        "if that holds in the first layer only",
    )


def _beside_attention(report: Report) -> Iterator[Claim]:
    case = StudyCase(PROFILE_RATE, "group").case
    deep, shallow = (
        [figure(report, case, policy, f"{when}attn_bytes") for when in ("first_", "")]
        for policy in ("history1", "history")
    )
    if None in (*deep, *shallow):
        return
    (deep_first, deep_steady), (first, steady) = (
        [each or 0.0 for each in pair] for pair in (deep, shallow)
    )
    as_said = within(deep_first, 400 * MB, 0.05) and first < MB
    always = within(deep_steady, 400 * MB, 0.05) and steady < MB
    yield settled(
        "beside attention `history1` copies 400 MB, `history` nothing",
        f"{deep_first / MB:.0f} and {first / MB:.0f} MB in the first layer of a cold pass, "
        f"{deep_steady / MB:.0f} and {steady / MB:.0f} MB in a layer of a steady one.",
        "confirmed" if always else "in part" if as_said else "not confirmed",
        "bytes copied beside attention, in step with the group at 5 GB/s; within 5 %, and in part "
        "if that holds in the first layer only",
    )


def _stability(report: Report) -> Iterator[Claim]:
    case = NeighbourCase(WAITS_20_MS, "ahead").case
    uneven = {}
    for policy in ("history", "stage1", "auto", "auto_5"):
        median, slowest = (figure(report, case, policy, each) for each in ("steady", "slowest"))
        if median and slowest is not None:
            uneven[policy] = slowest / median - 1
    if len(uneven) == 4:
        yield settled(
            "deep prefetch is stable, shallow prefetch is not",
            "Slowest pass beside another program against the median: "
            + ", ".join(f"`{policy}` {100 * part:+.1f} %" for policy, part in uneven.items())
            + ". It is the memory of the ring that counts, on a link that is just fast enough.",
            plainly(uneven["stage1"] < uneven["history"]),
            "at 1.5 GB/s, host ahead: the slowest pass of `stage1` is nearer to its median than "
            "that of `history`",
        )


def advice(report: Report) -> Iterator[Finding]:
    worst: dict[str, float] = {}
    rings: dict[str, float] = {}
    cases = [StudyCase(link, host).case for link in LINKS for host in HOSTS]
    for subject in SUBJECTS:
        over = [figure(report, case, subject, "over_bound") for case in cases]
        ring = figure(report, cases[0], subject, "ring")
        known = [each for each in over if each is not None]
        if len(known) == len(cases) and ring is not None:
            worst[subject], rings[subject] = max(known), ring
    if len(worst) > 1:
        best = min(worst.values())
        good = [each for each in worst if worst[each] <= best + AT_THE_BOUND]
        least = min(good, key=lambda subject: rings[subject])
        others = [worst[policy] for policy in worst if policy in STUDY_POLICIES]
        beside = (
            f"; of the study's policies one is up to {100 * (max(others) - 1):.0f} % above it"
            if others
            else ""
        )
        yield Finding(
            "good" if best <= 1 + AT_THE_BOUND else "note",
            f"`{least}` is never more than {100 * (worst[least] - 1):.2f} % above the bound, with "
            f"{rings[least] / MB:,.0f} MB of the card: no policy could save more than that "
            f"there{beside}.",
            f"the worst of {len(cases)} links and hosts; of all within {100 * AT_THE_BOUND:g} % of "
            "the best the one with the smallest ring",
        )
    yield from _peers(report)


def _peers(report: Report) -> Iterator[Finding]:
    """On a card: offload() beside the libraries that do the same."""
    case = DecoderCase(BUDGETS[0]).case
    ours = report.row(case.workload, "auto", case.arm)
    for peer in ("accelerate", "diffusers"):
        theirs = report.row(case.workload, peer, case.arm)
        for quantity in ("token", "prefill"):
            mine = ours.values.get(quantity) if ours else None
            other = theirs.values.get(quantity) if theirs else None
            if not mine or not other:
                continue
            difference = compare(mine, other)
            shown = report.quantities[quantity]
            yield Finding(
                {"lower": "good", "higher": "bad"}.get(difference.verdict, "plain"),  # type: ignore[arg-type]
                f"{shown.title}: offload() {spread_text(shown, mine)}, {peer} "
                f"{spread_text(shown, other)}: {difference.verdict}.",
                "offload() with the least memory; percentiles that do not overlap, and medians "
                "more than 1 % apart",
            )
