"""The tables of docs/weights.md from the figures of the study."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from weight_policies_document import Document, Jitter, Preset, Swept
from weight_policies_run import (
    AS_COMPUTE,
    HOSTS,
    LINK_BOUND,
    PROFILE_RATE,
    WAITS_5_MS,
    WAITS_20_MS,
)

from vramkit.weights.passes import Host

STUDY_MS = {"history1": "16,160", "history": "16,400", "stage1": "16,000", "stage2": "15,600"}
STUDY_COPIED = {"history1": "400 / 600", "history": "0 / 100"}
ORDER = ("history1", "history", "stage1", "stage2", "first_step", "block_shallow", "auto")
STEPS: dict[Host, str] = {
    "ahead": "host ahead",
    "layer": "in step with the layer",
    "group": "in step with the group",
}


def tables(document: Document) -> dict[str, str]:
    """By name, in Markdown."""
    return {
        "totals, 5 GB/s": totals(document, PROFILE_RATE),
        "totals, 1.76 GB/s": totals(document, WAITS_5_MS),
        "a layer": a_layer(document),
        "copied": copied(document),
        "sweep": swept(document),
        "depth": by_depth(document),
        "jitter": jittered(document, WAITS_20_MS),
        "jitter by link": jitter_by_link(document),
    }


def totals(document: Document, link: float) -> str:
    """Steady passes, the cold ones in brackets."""

    def cell(policy: str, host: Host) -> str:
        result = find(document, policy, link, host).result
        return f"{_ms(result.steady_ms)} ({_ms(result.cold_ms)})"

    rows = [
        [
            f"`{policy}`",
            f"{find(document, policy, link, 'ahead').result.ring_mb:,.0f}",
            STUDY_MS.get(policy, ""),
            *(cell(policy, host) for host in HOSTS),
        ]
        for policy in ORDER
    ]
    return markdown(["policy", "ring, MB", "the study says", *STEPS.values()], rows, numeric=5)


def a_layer(document: Document) -> str:
    """CPU blocked, GPU idle and wall-clock time a layer."""
    cases: list[tuple[str, float, Host, str]] = [
        ("history1", WAITS_5_MS, "layer", "2 / 0 / 202"),
        ("history", WAITS_5_MS, "layer", "0 / 5 / 205, in its second account"),
        ("history", WAITS_20_MS, "layer", "0 / 20 / 220, in its first"),
        ("history", PROFILE_RATE, "layer", ""),
        ("history", PROFILE_RATE, "group", ""),
        ("stage1", WAITS_5_MS, "layer", "0 / 0 / 200"),
        ("block_shallow", WAITS_5_MS, "layer", '"slowest"'),
    ]
    rows = []
    for policy, link, host, said in cases:
        result = find(document, policy, link, host).result
        figures = (result.blocked_ms, result.idle_ms, result.steady_ms / document.layers)
        row = [f"`{policy}`, {_link(link)}, {STEPS[host]}", *(f"{each:.1f}" for each in figures)]
        rows.append([*row, said])
    columns = ["", "CPU blocked, ms", "GPU idle, ms", "wall clock, ms", "the study says"]
    return markdown(columns, rows, numeric=3)


def copied(document: Document) -> str:
    """MB copied while attention and ffn of a layer computed."""
    rows = []
    for policy in ORDER:
        result = find(document, policy, PROFILE_RATE, "group").result
        pairs = (result.first_layer_copied_mb, result.copied_mb)
        cells = [f"{pair['attn']:.0f} / {pair['ffn']:.0f}" for pair in pairs]
        rows.append([f"`{policy}`", *cells, STUDY_COPIED.get(policy, "")])
    columns = ["policy", "first layer, cold", "a layer, steady", "the study says"]
    return markdown(columns, rows, numeric=2)


FFN: dict[str, Callable[[Swept], bool]] = {
    "issued a layer or more ahead": lambda each: "ffn" in each.issue_at,
    "first thing in its own layer": lambda each: "ffn" not in each.issue_at and each.own_ffn_first,
    "on demand": lambda each: "ffn" not in each.issue_at and not each.own_ffn_first,
}


def swept(document: Document) -> str:
    """Steady passes by how the ffn group is issued; from the least to the most over the rest."""
    rows = []
    for link in (PROFILE_RATE, WAITS_5_MS, AS_COMPUTE, LINK_BOUND):
        for words, chosen in FFN.items():
            found = [each for each in _events(document, link) if chosen(each)]
            rows.append([_link(link), words, *(_range(found, host) for host in HOSTS)])
    return markdown(["link", "ffn is copied", *STEPS.values()], rows, numeric=3, first=2)


def by_depth(document: Document) -> str:
    """Of the policies that issue both groups ahead."""
    rows = []
    for link in (PROFILE_RATE, WAITS_5_MS, AS_COMPUTE, LINK_BOUND):
        for depth in (1, 2, 4):
            found = [
                each
                for each in _events(document, link)
                if "ffn" in each.issue_at and each.depth == depth
            ]
            rows.append([_link(link), str(depth), *(_range(found, host) for host in HOSTS)])
    return markdown(["link", "depth", *STEPS.values()], rows, numeric=4)


def jittered(document: Document, link: float) -> str:
    """Median and slowest pass by host."""
    rows: dict[tuple[str, float], list[str]] = {}
    for each in _jitter(document):
        if each.link == link:
            rows.setdefault((each.policy, each.ring_mb), []).append(_median_most(each))
    named = [[f"`{policy}`", f"{ring:,.0f}", *cells] for (policy, ring), cells in rows.items()]
    return markdown(["policy", "ring, MB", *STEPS.values()], named, numeric=4)


def jitter_by_link(document: Document) -> str:
    """Median and slowest pass by link, with the host ahead."""
    links = sorted({each.link for each in document.jitter}, reverse=True)
    rows: dict[tuple[str, float], list[str]] = {}
    for each in _jitter(document):
        if each.host == "ahead" and each.policy in ("auto", "stage1", "history"):
            rows.setdefault((each.policy, each.ring_mb), []).append(_median_most(each))
    named = [[f"`{policy}`", f"{ring:,.0f}", *cells] for (policy, ring), cells in rows.items()]
    return markdown(["policy", "ring, MB", *map(_link, links)], named, numeric=len(links) + 1)


def _jitter(document: Document) -> list[Jitter]:
    """By policy and ring, the fastest link first."""
    return sorted(
        document.jitter, key=lambda each: (ORDER.index(each.policy), each.ring_mb, -each.link)
    )


def _median_most(each: Jitter) -> str:
    return f"{each.ms.median:,.0f}, {each.ms.most:,.0f}"


def find(document: Document, policy: str, link: float, host: Host, streams: int = 1) -> Preset:
    return next(
        each
        for each in document.presets
        if (each.policy, each.link, each.host, each.streams) == (policy, link, host, streams)
    )


def _events(document: Document, link: float) -> list[Swept]:
    return [each for each in document.sweep if each.link == link and each.wait == "event"]


def _range(found: Iterable[Swept], host: Host) -> str:
    steady = [each.ms[host][1] for each in found]
    least, most = f"{min(steady):,.0f}", f"{max(steady):,.0f}"
    return least if least == most else f"{least} to {most}"


def _ms(milliseconds: float) -> str:
    return f"{milliseconds:,.1f}"


def _link(link: float) -> str:
    return f"{link / 1e9:.3g} GB/s"


def markdown(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, numeric: int, first: int = 1
) -> str:
    """`numeric` columns from `first` on are set flush right."""
    edges = ["---:" if first <= n < first + numeric else "---" for n in range(len(columns))]
    lines = ["| " + " | ".join(columns) + " |", "|" + "|".join(edges) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])
