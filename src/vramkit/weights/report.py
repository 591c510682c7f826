"""What a streamed model costs: the bound, what was measured, and what would help."""

from __future__ import annotations

import msgspec

from vramkit.report.units import bytes_text, count_text, percent_text, rate_text, time_text
from vramkit.weights.experts import ExpertCache, ExpertStats
from vramkit.weights.giving_way import WITHOUT_POOL, GivingWayStats
from vramkit.weights.layout import Layout
from vramkit.weights.manager import WeightStats
from vramkit.weights.outside import NONE_OUTSIDE, OutsideReads
from vramkit.weights.timing import MeasuredPass

MORE = 4 << 30
"""The further memory whose worth a report states."""
NEAR = 1.02
"""What the link or the compute takes up to this part of the pass explains the pass."""


class Wait(msgspec.Struct, frozen=True):
    """A group that a stream waited for, in the last pass."""

    group: str
    seconds: float


class ExpertUse(msgspec.Struct, frozen=True):
    """Routed experts: their memory, counts since the start, and bytes of the last pass."""

    place_bytes: int
    slots: int
    slot_bytes: int
    copied_bytes: int
    waited_s: float | None
    counts: ExpertStats

    def __str__(self) -> str:
        chosen = self.counts.hits + self.counts.misses
        hits = percent_text(self.counts.hits / chosen) if chosen else "none"
        return (
            f"place of {bytes_text(self.place_bytes)}, {self.slots} slots of "
            f"{bytes_text(self.slot_bytes)}; {hits} of those chosen were on the card; the host "
            f"waited for {count_text(self.counts.reads, 'routing', 'routings')}"
        )


class OffloadReport(msgspec.Struct, frozen=True):
    """Seconds are of the last whole pass, None where none was measured; on the simulated GPU
    PyTorch computes on the host, and there are no times."""

    device: str
    budget: int
    resident_bytes: int
    ring_bytes: int
    kept_bytes: int
    host_bytes: int
    streamed_bytes: int
    sent_bytes: int
    """What the link carries in a pass: less than is streamed where weights are packed."""
    staging_bytes: int
    link_bytes_per_s: float | None
    pass_s: float | None
    computed_s: float | None
    waits: tuple[Wait, ...]
    counts: WeightStats
    experts: ExpertUse | None = None
    packed_share: float | None = None
    """What packing would leave of the bytes, by a sample; None: they are packed, or no bf16."""
    predicted_s: float | None = None
    giving_way: GivingWayStats | None = None
    """Of resident weights that give way when memory is short."""
    fixed_because: str | None = WITHOUT_POOL
    """Why there are none such; None: there are."""
    ranks: str | None = None
    """How several processes share the work; None: there is one."""
    outside: OutsideReads = NONE_OUTSIDE
    """Weights that were copied when modules read them without a call of their part."""
    host_blocked_s: float | None = None
    """What the host waited for weights, by a policy that blocks, or for the routing of experts."""

    @property
    def link_utilisation(self) -> float | None:
        """The part of the last pass that its bytes take on the link."""
        if self.link_s is None or self.pass_s is None:
            return None
        return self.link_s / self.pass_s

    @property
    def link_s(self) -> float | None:
        """What the bytes of a pass take on the link."""
        if self.link_bytes_per_s is None:
            return None
        return self.sent_bytes / self.link_bytes_per_s

    @property
    def bound_s(self) -> float | None:
        if self.link_s is None or self.computed_s is None:
            return None
        return max(self.link_s, self.computed_s)

    @property
    def verdict(self) -> str:
        """What limits a pass, in one line."""
        if not self.streamed_bytes and self.experts is None:
            return "all weights are resident: nothing is streamed"
        if self.pass_s is None or self.bound_s is None or self.link_s is None:
            return f"{bytes_text(self.streamed_bytes)} are streamed in a pass; none was timed yet"
        rate = self.sent_bytes / self.pass_s
        assert self.link_bytes_per_s is not None and self.computed_s is not None
        over = f"{self.pass_s / self.bound_s:.3f} of the bound"
        if self.experts is not None and self.experts.waited_s:
            part = percent_text(self.experts.waited_s / self.pass_s)
            copied = bytes_text(self.experts.copied_bytes)
            return f"copies of {copied} of chosen experts took {part} of the pass; {over}"
        if self.pass_s > NEAR * self.bound_s:
            return (
                f"{over}: the streams waited {time_text(sum(w.seconds for w in self.waits))} for "
                f"weights, {count_text(self.counts.misses, 'miss', 'misses')} so far"
            )
        if self.link_s < self.computed_s:
            return f"compute-bound: {over}; the weights arrive in time"
        text = f"link-bound: {rate_text(rate)} of {rate_text(self.link_bytes_per_s)}"
        left = max(self.streamed_bytes - MORE, 0) / self.streamed_bytes
        text += f"; {bytes_text(MORE)} more would save {percent_text(self._saved(left))}"
        if self.packed_share is None:
            return text
        return f"{text}; packing would save {percent_text(self._saved(self.packed_share))}"

    def _saved(self, left: float) -> float:
        """The part of the bound that is saved if this part of the bytes is left."""
        assert self.link_s is not None and self.computed_s is not None and self.bound_s is not None
        return 1 - max(left * self.link_s, self.computed_s) / self.bound_s

    @property
    def _giving_way_text(self) -> str:
        given = self.giving_way
        if given is None:
            return self.fixed_because or ""
        text = f"{count_text(given.groups, 'group')} of {bytes_text(given.nbytes)} can give way"
        if not given.gave_way:
            return f"{text}; none did so far"
        return (
            f"{text}; {given.gave_way} did ({bytes_text(given.gave_way_bytes)}), "
            f"{given.returned} returned, {bytes_text(given.away_bytes)} are streamed meanwhile"
        )

    @property
    def _sent_text(self) -> str:
        if self.sent_bytes >= self.streamed_bytes:
            return ""
        sent = bytes_text(self.sent_bytes)
        return f", packed to {sent}" if self.ranks is None else f", {sent} over this link"

    def __str__(self) -> str:
        rows = [
            ("on the card", f"{bytes_text(self.resident_bytes)} resident, ring of "
             f"{bytes_text(self.ring_bytes)}, {bytes_text(self.kept_bytes)} kept"
             + (f", {bytes_text(self.staging_bytes)} staging" if self.staging_bytes else "")
             + f"; budget {bytes_text(self.budget)}"),
            ("in host memory", f"{bytes_text(self.host_bytes)}, pinned"),
            ("streamed in a pass", bytes_text(self.streamed_bytes)
             + self._sent_text),
            ("if memory is short", self._giving_way_text),
        ]  # fmt: skip
        if self.outside.copies:
            rows.append(("read outside of parts", str(self.outside)))
        if self.ranks is not None:
            rows.append(("ranks", self.ranks))
        if self.experts is not None:
            rows.append(("experts", str(self.experts)))
        if self.link_bytes_per_s is not None and self.link_s is not None:
            rows.append(("link", f"{rate_text(self.link_bytes_per_s)}: {time_text(self.link_s)}"))
        if self.pass_s is not None and self.computed_s is not None:
            rows.append(("compute", time_text(self.computed_s)))
            rows.append(("last pass", time_text(self.pass_s)))
        if self.host_blocked_s:
            rows.append(("host blocked", time_text(self.host_blocked_s)))
        if self.predicted_s is not None:
            rows.append(("predicted", time_text(self.predicted_s)))
        for wait in self.waits[:5]:
            rows.append((f"  waited for {wait.group}", time_text(wait.seconds)))
        width = max(len(name) for name, _ in rows)
        lines = [f"{name:<{width}}  {text}" for name, text in rows]
        return "\n".join([f"Offload on {self.device}", *lines, self.verdict])

    def to_json(self) -> bytes:
        """All fields, and what follows from them."""
        facts = msgspec.structs.asdict(self)
        for name in ("link_s", "bound_s", "link_utilisation", "verdict"):
            facts[name] = getattr(self, name)
        return msgspec.json.encode(facts)


def make_report(
    *,
    device: str,
    budget: int,
    kept_bytes: int,
    host_bytes: int,
    layout: Layout,
    sent_bytes: int,
    staging_bytes: int = 0,
    link_bytes_per_s: float | None,
    last: MeasuredPass | None,
    counts: WeightStats,
    experts: ExpertCache | None = None,
    routed: MeasuredPass | None = None,
    packed_share: float | None = None,
    predicted_s: float | None = None,
    giving_way: GivingWayStats | None = None,
    fixed_because: str | None = WITHOUT_POOL,
    ranks: str | None = None,
    outside: OutsideReads = NONE_OUTSIDE,
) -> OffloadReport:
    waits: tuple[Wait, ...] = ()
    wall = waited = 0.0
    if last is not None:
        found = [Wait(str(layout.groups[each.group]), each.waited) for each in last.groups]
        waits = tuple(sorted((w for w in found if w.seconds > 0), key=lambda w: -w.seconds))
        wall, waited = last.seconds, last.waited
    if routed is not None:
        wall, waited = max(wall, routed.seconds), waited + routed.waited
    used = None if experts is None else _expert_use(experts, routed)
    copied = 0 if used is None else used.copied_bytes
    return OffloadReport(
        device=device,
        budget=budget,
        resident_bytes=layout.resident_bytes,
        ring_bytes=layout.ring_bytes,
        kept_bytes=kept_bytes,
        host_bytes=host_bytes,
        streamed_bytes=layout.streamed_bytes + copied,
        sent_bytes=sent_bytes + copied,
        staging_bytes=staging_bytes,
        link_bytes_per_s=link_bytes_per_s,
        pass_s=None if last is None else wall,
        computed_s=None if last is None else wall - waited,
        waits=waits,
        counts=counts,
        experts=used,
        packed_share=packed_share,
        predicted_s=predicted_s,
        giving_way=giving_way,
        fixed_because=fixed_because,
        ranks=ranks,
        outside=outside,
        host_blocked_s=None if last is None else last.host_blocked,
    )


def _expert_use(experts: ExpertCache, last: MeasuredPass | None) -> ExpertUse:
    return ExpertUse(
        place_bytes=experts.place_bytes,
        slots=experts.slots,
        slot_bytes=experts.slot_bytes,
        copied_bytes=experts.last_copied,
        waited_s=None if last is None else last.waited,
        counts=experts.stats(),
    )
