"""Advice from figures, by stated rules: each is a function of its arguments alone.

No rule uses a simulated time of an allocator. Bytes that the pool holds come from a replay, which
counts memory as a card does.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from vramkit.lab.advise.observed import Observed
from vramkit.report.units import bytes_text, count_text, rate_text, time_text

GIB = 1 << 30
NOTICED = 0.01
"""Share of the run below which a saving is not worth a change."""
TRUSTED = 0.05
"""What a replay may be off from a real run: smaller differences of memory are none."""
IDLE = 0.10
"""Share of the run that the card must be idle for certain, to speak of sharing it."""
CONTEXT_BYTES = 600 << 20
"""Of a card, for what no allocator sees: the context, modules, libraries."""

Verdict = Literal["do", "consider", "no need", "cannot say"]
Topic = Literal["allocator", "card", "offload", "batch", "sharing"]


FigureUnit = Literal["bytes", "s", "share"]


class Prediction(msgspec.Struct, frozen=True):
    """A figure that following the advice should show."""

    key: Literal["saved", "held", "less", "card", "streamed", "pass", "batch", "idle", "switch"]
    """Which figure it is, however it is worded."""
    what: str
    value: float
    unit: FigureUnit
    bound: Literal["about", "at most", "at least"]

    @property
    def shown(self) -> str:
        return figure_text(self.value, self.unit)


def figure_text(value: float, unit: FigureUnit) -> str:
    return {"bytes": bytes_text, "s": time_text, "share": share_text}[unit](value)


class Advice(msgspec.Struct, frozen=True):
    topic: Topic
    verdict: Verdict
    text: str
    rule: str
    """Why, with the numbers of the rule."""
    predicted: list[Prediction] = []
    check: list[str] = []
    """How to see for oneself: commands, or lines of Python."""

    @property
    def title(self) -> str:
        return f"{self.topic}: {self.verdict}"


class Card(msgspec.Struct, frozen=True):
    """The card that the advice is for, and what driver calls and copies cost on it."""

    name: str
    nbytes: int
    link_bytes_per_s: float
    """From the host to the card."""
    allocate_s: float
    """Of one cuMemAlloc."""
    free_s: float

    @property
    def room(self) -> int:
        return max(self.nbytes - CONTEXT_BYTES, 0)


class Pooled(msgspec.Struct, frozen=True):
    """What the same allocations came to on vramkit's pool, in bytes."""

    held: int
    """Where it may have more than enough."""
    on_card: int | None = None
    """Where it may have no more than the card's room, if it then comes to the end. Asked only if
    `held` does not fit for sure."""


def share_text(share: float) -> str:
    """0.31 %, 12 %: a share below one per cent has a figure too."""
    return f"{100 * share:.3g} %"


def size_option(nbytes: int) -> str:
    """As options take it: 24GiB, or 8704MiB where it is no whole number of those."""
    return f"{nbytes // GIB}GiB" if nbytes % GIB == 0 else f"{nbytes >> 20}MiB"


RECORD = ["vramkit record -o trace.csv.gz -- python train.py", "vramkit advise trace.csv.gz"]
"""How to get a trace with times."""
SNAPSHOT = [
    "torch.cuda.memory._record_memory_history(max_entries=10_000_000)  # before the model is made",
    'torch.cuda.memory._dump_snapshot("snapshot.pickle")',
    "vramkit advise snapshot.pickle",
]
"""How to get a trace of tensors."""


def advise(observed: Observed, card: Card, pooled: Pooled | None) -> list[Advice]:
    """All rules, the most important first; a rule that does not apply says nothing.

    `pooled` is None where the program does not run on the pool even with all of the card.
    """
    found = [allocation_time(observed, card), held_memory(observed, pooled)]
    found += [room(observed, card, pooled), *smaller(observed, card, pooled)]
    found.append(sharing(observed, card, pooled))
    order: dict[Verdict, int] = {"do": 0, "consider": 1, "no need": 2, "cannot say": 3}
    return sorted(found, key=lambda advice: order[advice.verdict])


def allocation_time(observed: Observed, card: Card) -> Advice:
    """How much of the run the driver's allocation calls can have taken."""
    timing = observed.timing
    if timing is None or timing.seconds <= 0:
        return Advice(
            "allocator",
            "cannot say",
            "How long allocation takes is not in this file.",
            "needs the times of driver calls, as `vramkit record` writes them",
            check=RECORD,
        )
    cost = timing.allocations * card.allocate_s + timing.frees * card.free_s
    share = cost / timing.seconds
    rule = (
        f"{count_text(timing.allocations, 'allocation')} of {time_text(card.allocate_s)} after a "
        f"free, and {count_text(timing.frees, 'free')} of {time_text(card.free_s)} before an "
        f"allocation, on {card.name}, in {time_text(timing.seconds)}; below {share_text(NOTICED)} "
        "it is not worth a change"
    )
    if share > 1:
        return Advice(
            "allocator",
            "cannot say",
            f"On {card.name} the driver's calls for memory would take longer than the whole run "
            "did: it was recorded on another card, or by a virtual clock, and says nothing.",
            rule,
        )
    saved, waits = "saved of the run", ""
    if timing.waiting_frees:
        saved += ", without waits"
        waits = (
            " It also saves the waits of cuMemFree, which are not counted: "
            f"{count_text(timing.waiting_frees, 'free')} came while kernels may have been running."
        )
    predicted = [Prediction("saved", saved, share, "share", "at most")]
    if share < NOTICED:
        return Advice(
            "allocator",
            "no need",
            f"At most {share_text(share)} of the run are calls that a pool saves.{waits}",
            rule,
            predicted,
        )
    return Advice(
        "allocator",
        "consider",
        f"The driver's calls for memory take time: a pool saves at most {share_text(share)} of the "
        f"run.{waits}",
        rule,
        predicted,
        ["vramkit run --pool -- python train.py  # with PyTorch, CuPy or RMM; else vramkit.Pool"],
    )


def held_memory(observed: Observed, pooled: Pooled | None) -> Advice:
    """Whether vramkit's pool holds less than the program's own allocator."""
    if observed.level == "driver":
        return Advice(
            "allocator",
            "cannot say",
            "The file has what the driver was asked for. A framework's allocator divides that "
            "among tensors, and how well it does is not to be seen here.",
            "needs a trace of what the allocator was asked for",
            check=SNAPSHOT,
        )
    rule = f"a replay is trusted to {share_text(TRUSTED)}: a smaller difference counts as none"
    if pooled is None:
        return Advice(
            "allocator",
            "cannot say",
            "On this card the allocations do not fit vramkit's pool either.",
            rule,
        )
    over = pooled.held / observed.peak - 1
    if observed.held is None:
        return Advice(
            "allocator",
            "cannot say",
            f"vramkit's pool holds {bytes_text(pooled.held)} for this, {share_text(over)} more "
            "than is in use at the peak; what the program's own allocator held is not in this "
            "file.",
            rule,
            [Prediction("held", "held by the pool", pooled.held, "bytes", "about")],
            ["vramkit replay TRACE"],
        )
    less = observed.held - pooled.held
    predicted = [
        Prediction("held", "held by the pool", pooled.held, "bytes", "about"),
        Prediction("less", "less than now", max(less, 0), "bytes", "about"),
    ]
    if less <= TRUSTED * observed.held:
        return Advice(
            "allocator",
            "no need",
            f"vramkit's pool would not hold less: {bytes_text(observed.held)} now, "
            f"{bytes_text(pooled.held)} with it.",
            rule,
            predicted,
        )
    return Advice(
        "allocator",
        "do",
        f"With vramkit's pool the program would hold about {bytes_text(pooled.held)} instead of "
        f"{bytes_text(observed.held)}.",
        rule,
        predicted,
        [
            "from vramkit.integrations import torch as vramkit_torch; vramkit_torch.install()",
            "torch.cuda.max_memory_reserved()  # before and after",
        ],
    )


def needed(observed: Observed, pooled: Pooled | None) -> int | None:
    """Bytes of the card that the program needs, besides the context: of what its own allocator
    asked the driver for, or as vramkit's pool holds it. None: more than the card has."""
    if observed.level == "driver":
        return observed.peak
    if pooled is None:
        return None
    return pooled.held if pooled.on_card is None else pooled.on_card


def room(observed: Observed, card: Card, pooled: Pooled | None) -> Advice:
    """Whether the program fits the card."""
    held = needed(observed, pooled)
    by = "as it is" if observed.level == "driver" else "on vramkit's pool"
    rule = (
        f"{bytes_text(card.nbytes)} less {bytes_text(CONTEXT_BYTES)} for the context; figures are "
        f"trusted to {share_text(TRUSTED)}"
    )
    check = [f"vramkit replay TRACE --card {size_option(card.room)}  # without the context"]
    if held is None or held > card.room:
        least = max(observed.peak, card.room)
        text = f"{bytes_text(observed.peak)} are in use at most"
        if held is not None and observed.peak <= card.room:
            text += f", and with room the pool holds {bytes_text(held)}"
        return Advice(
            "card",
            "do",
            f"It does not fit {card.name} {by}: {text}; {bytes_text(card.room)} are there.",
            rule,
            [Prediction("card", "memory of the card", least + CONTEXT_BYTES, "bytes", "at least")],
            check,
        )
    predicted = [Prediction("card", "memory of the card", held + CONTEXT_BYTES, "bytes", "about")]
    spare = bytes_text(card.room - held)
    if held * (1 + TRUSTED) > card.room:
        return Advice(
            "card",
            "consider",
            f"It fits {card.name} {by}, with {spare} to spare: too little to be sure.",
            rule,
            predicted,
            check,
        )
    return Advice(
        "card", "no need", f"It fits {card.name} {by}, with {spare} to spare.", rule, predicted
    )


def smaller(observed: Observed, card: Card, pooled: Pooled | None) -> list[Advice]:
    """Where it does not fit: weights from the host, or a smaller batch."""
    held = needed(observed, pooled)
    if held is not None and held * (1 + TRUSTED) <= card.room:
        return []
    if observed.level == "driver":
        return [
            Advice(
                "offload",
                "cannot say",
                "What lasts and what comes and goes cannot be told apart in what the driver was "
                "asked for.",
                "needs a trace of tensors",
                check=SNAPSHOT,
            )
        ]
    over = 1.0 if held is None else held / observed.peak
    # What comes and goes must be there; what lasts is what can be elsewhere.
    changing = round(observed.changing * over)
    budget = card.room - changing
    found = []
    rule = (
        f"{bytes_text(observed.lasting)} last, {bytes_text(observed.changing)} come and go; the "
        f"link brings {rate_text(card.link_bytes_per_s)}"
    )
    if budget <= 0:
        found.append(
            Advice(
                "offload",
                "cannot say",
                "Weights that stay on the host do not make it fit: what comes and goes is larger "
                "than the card by itself.",
                rule,
            )
        )
    elif budget < observed.lasting:
        streamed = observed.lasting - budget
        found.append(
            Advice(
                "offload",
                "consider",
                f"With a budget of {bytes_text(budget)} for weights it fits, if what lasts is "
                "weights; optimizer state cannot be streamed.",
                rule,
                [
                    Prediction("streamed", "streamed in each pass", streamed, "bytes", "about"),
                    Prediction(
                        "pass", "time of a pass", streamed / card.link_bytes_per_s, "s", "at least"
                    ),
                ],
                [
                    f"vramkit plan MODEL --budget {max(budget >> 20, 1)}MiB",
                    f'vramkit.offload(model, budget="{max(budget >> 20, 1)}MiB")',
                ],
            )
        )
    if observed.changing and observed.lasting < card.room:
        part = (card.room - observed.lasting) / changing
        if part < 1:
            found.append(
                Advice(
                    "batch",
                    "consider",
                    f"With at most {share_text(part)} of today's batch it fits, if what comes and "
                    "goes grows with the batch.",
                    f"room of {bytes_text(card.room - observed.lasting)} beside what lasts, for "
                    f"{bytes_text(changing)} that come and go",
                    [Prediction("batch", "of today's batch", part, "share", "at most")],
                    ["torch.cuda.max_memory_reserved()  # with the smaller batch"],
                )
            )
    return found


def sharing(observed: Observed, card: Card, pooled: Pooled | None) -> Advice:
    """Whether the card has time, and room, for another such program."""
    timing = observed.timing
    rule = (
        f"no kernel may be queued in {share_text(IDLE)} of the run; copies are not in the file, so "
        "time in which only they ran counts as idle"
    )
    if timing is None or timing.seconds <= 0:
        return Advice(
            "sharing",
            "cannot say",
            "How busy the card was is not in this file.",
            "needs the times of launches, as `vramkit record` writes them",
            check=RECORD,
        )
    idle = Prediction("idle", "without a kernel", timing.idle_share, "share", "at least")
    if timing.idle_share < IDLE:
        return Advice(
            "sharing",
            "no need",
            f"No kernel was queued in {share_text(timing.idle_share)} of the run, as far as can be "
            "seen: another program beside this one would mostly wait, or make it wait.",
            rule,
            [idle],
        )
    held = needed(observed, pooled) or observed.peak
    short = 2 * (held + CONTEXT_BYTES) - card.nbytes
    check = ["vramkit run -- python train.py  # twice", "vramkit status"]
    if short <= 0:
        return Advice(
            "sharing",
            "consider",
            f"No kernel was queued in at least {share_text(timing.idle_share)} of the run, and the "
            "card has room for two such programs at once.",
            rule,
            [idle],
            check,
        )
    switch = short / card.link_bytes_per_s
    return Advice(
        "sharing",
        "consider",
        f"No kernel was queued in at least {share_text(timing.idle_share)} of the run. Two such "
        f"programs do not fit together: they would take turns, and a switch moves "
        f"{bytes_text(short)} each way.",
        rule,
        [idle, Prediction("switch", "time of a switch", switch, "s", "at least")],
        check,
    )
