"""What is copied when, as data: the same schedule is run, simulated, printed and drawn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from vramkit.driver.types import integer, shown
from vramkit.report.units import bytes_text
from vramkit.weights.layout import Layout

END = "end"
"""The point in a layer behind the work of its last group."""


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When copies are issued, and how a layer waits for its weights.

    `wait`: "event" lets the stream wait on the GPU; "block" makes the host wait too, once a layer.
    `depth` is in layers; None: as far ahead as the ring has room, which needs no other setting.
    `issue_at` says for each name of a group at which point of a layer the copies of the next
    `depth` layers are issued: at the beginning of a group, by its name, or at the "end" of the
    layer. A group that is not named is copied when it is needed. `own_ffn_first`: the first thing
    that a layer issues is what is missing of its own weights.
    """

    wait: Literal["event", "block"] = "event"
    depth: int | None = None
    issue_at: Mapping[str, str] = {}
    own_ffn_first: bool = False

    def __post_init__(self) -> None:
        if self.wait not in ("event", "block"):
            raise ValueError(f"wait is {self.wait!r}; it may be 'event' or 'block'")
        if self.depth is None:
            if self.issue_at or self.own_ffn_first:
                raise ValueError(
                    "issue_at and own_ffn_first have no effect without a depth: copies are issued "
                    "as soon as the ring has room"
                )
            return
        integer(self.depth, "depth", 1, 1024, besides="None, or ")
        if not self.issue_at and not self.own_ffn_first:
            raise ValueError("a depth has no effect without issue_at: no copy is issued ahead")


_BOTH = {"attn": "attn", "ffn": "ffn"}

POLICIES: Mapping[str, Policy] = {
    "auto": Policy(),
    "history1": Policy(wait="block", depth=4, issue_at=_BOTH),
    "history": Policy(depth=1, issue_at={"attn": "ffn"}),
    "stage1": Policy(depth=4, issue_at=_BOTH),
    "stage2": Policy(depth=4, issue_at=_BOTH, own_ffn_first=True),
    "first_step": Policy(wait="block", depth=4, issue_at=_BOTH, own_ffn_first=True),
    "block_shallow": Policy(wait="block", depth=1, issue_at={"attn": "ffn"}),
}
"""By the names of a study of weight streaming (docs/weights.md)."""


def chosen_policy(policy: str | Policy) -> Policy:
    if isinstance(policy, Policy):
        return policy
    if policy not in POLICIES:
        raise ValueError(f"policy is {shown(policy)}; it may be a Policy, or {', '.join(POLICIES)}")
    return POLICIES[policy]


class Copy(NamedTuple):
    """A copy of a steady pass: the step at which it is issued, before or after the work of that
    step, and the groups whose work must be over before it writes, the last one first."""

    step: int
    point: Literal["before", "after"]
    group: int
    steps_ahead: int
    behind: tuple[int, ...]


class Schedule(msgspec.Struct, frozen=True):
    """The order in which a pass uses groups (their numbers in the layout), that of the pass behind
    it, and the groups that should be on their way at each of its steps: `before` its work is
    issued, and `after`. `start` counts at the beginning of the first step. A list is in the order
    of need; what is there already is skipped."""

    layout: Layout
    policy: Policy
    order: tuple[int, ...]
    following: tuple[int, ...]
    start: tuple[int, ...]
    before: tuple[tuple[int, ...], ...]
    after: tuple[tuple[int, ...], ...]

    def copies(self) -> list[Copy]:
        """The copies of a pass that follows one like it, without those that are made when a group
        is needed and not there."""
        on_card: set[int] = set()
        found: list[Copy] = []
        for _ in range(2):  # the first pass fills the ring
            found = [copy for step in range(len(self.order)) for copy in self._step(step, on_card)]
        return found

    def _step(self, step: int, on_card: set[int]) -> Iterator[Copy]:
        self._arrives(self.order[step], on_card)
        points: tuple[tuple[Literal["before", "after"], tuple[int, ...]], ...] = (
            ("before", self.before[step]),
            ("after", self.after[step]),
        )
        for point, groups in points:
            for group in groups:
                if group not in on_card:
                    self._arrives(group, on_card)
                    yield Copy(step, point, group, *self._neighbours(step, point, group))

    def _arrives(self, group: int, on_card: set[int]) -> None:
        on_card.difference_update([o for o in on_card if self.layout.share_bytes(group, o)])
        on_card.add(group)

    def _neighbours(self, step: int, point: str, group: int) -> tuple[int, tuple[int, ...]]:
        """How many steps ahead its use is, and what it overwrites."""
        count = len(self.order)
        later = (*self.order[step + 1 :], *self.following)
        last = step if point == "after" else step - 1
        earlier = (self.order[(last - back) % count] for back in range(count))
        overwritten = [each for each in earlier if self.layout.share_bytes(each, group)]
        return 1 + later.index(group), tuple(dict.fromkeys(overwritten))

    def text(self) -> str:
        """The copies of a steady pass, a line each."""
        names = [str(group) for group in self.layout.groups]
        lines = []
        for copy in self.copies():
            nbytes = bytes_text(self.layout.groups[copy.group].nbytes)
            lines.append(
                f"{copy.point} {names[self.order[copy.step]]}: copy {names[copy.group]}, {nbytes}, "
                f"to {self.layout.offsets[copy.group]:#x}, {copy.steps_ahead} steps ahead"
                + (f", behind {names[copy.behind[0]]}" if copy.behind else "")
            )
        return "\n".join(lines)


def make_schedule(
    layout: Layout,
    order: Sequence[int],
    policy: Policy,
    following: Sequence[int] | None = None,
    *,
    must_fit: bool = True,
) -> Schedule:
    """The schedule of a pass that uses groups in this order, with `following` (default: the same)
    behind it. If the ring is too small for the policy's depth in this order, ValueError is raised,
    or without `must_fit` the copies for which there is no room are left out."""
    steps = tuple(order)
    behind = steps if following is None else tuple(following)
    if policy.depth is None:
        return _as_far_as_the_ring(layout, policy, steps, behind)
    _require_names(layout, policy)
    return _by_depth(layout, policy, steps, behind, must_fit)


def _require_names(layout: Layout, policy: Policy) -> None:
    names = dict.fromkeys(group.name for group in layout.groups)
    for name, point in policy.issue_at.items():
        if name not in names or point not in (*names, END):
            raise ValueError(
                f"issue_at has {name!r}: {point!r}, which would have no effect: groups are "
                f"{', '.join(map(repr, names))}, and points are these and {END!r}"
            )


def _as_far_as_the_ring(
    layout: Layout, policy: Policy, steps: tuple[int, ...], following: tuple[int, ...]
) -> Schedule:
    """After each step: all that follows, until a group would overwrite one that is needed first."""

    ahead = steps + following

    def window(begin: int) -> tuple[int, ...]:
        groups: list[int] = []
        for group in ahead[begin : begin + len(steps)]:
            if group in groups or layout.resident[group]:
                continue
            if any(layout.share_bytes(group, other) for other in groups):
                break
            groups.append(group)
        return tuple(groups)

    count = len(steps)
    return Schedule(
        layout=layout,
        policy=policy,
        order=steps,
        following=following,
        start=window(0),
        before=((),) * count,
        after=tuple(window(step + 1) for step in range(count)),
    )


def _by_depth(
    layout: Layout,
    policy: Policy,
    steps: tuple[int, ...],
    following: tuple[int, ...],
    must_fit: bool,
) -> Schedule:
    assert policy.depth is not None
    groups, ahead = layout.groups, steps + following
    layers = _runs([groups[group].layer for group in ahead], len(steps))
    before: list[list[int]] = [[] for _ in steps]
    after: list[list[int]] = [[] for _ in steps]
    for number, (begin, end) in enumerate(layers):
        if begin >= len(steps):
            break
        if policy.own_ffn_first:
            before[begin] += range(begin + 1, end)
        for later_begin, later_end in layers[number + 1 : number + 1 + policy.depth]:
            for later in range(later_begin, later_end):
                point = policy.issue_at.get(groups[ahead[later]].name)
                if point == END:
                    after[end - 1].append(later)
                    continue
                for step in range(begin, end):
                    if groups[ahead[step]].name == point:
                        before[step].append(later)
    if must_fit:
        for step, lists in enumerate(zip(before, after, strict=True)):
            for needed in (later for each in lists for later in each):
                _require_room(layout, policy, ahead, step, needed)

    def named(lists: list[list[int]]) -> tuple[tuple[int, ...], ...]:
        return tuple(
            tuple(
                ahead[later]
                for later in each
                if not layout.resident[ahead[later]] and _has_room(layout, ahead, step, later)
            )
            for step, each in enumerate(lists)
        )

    return Schedule(
        layout=layout,
        policy=policy,
        order=steps,
        following=following,
        start=(),
        before=named(before),
        after=named(after),
    )


def _runs(layers: Sequence[int], count: int) -> list[tuple[int, int]]:
    """The first step and the end of each layer; the next pass begins at step `count`."""
    starts = [
        step
        for step in range(len(layers))
        if step in (0, count) or layers[step] != layers[step - 1]
    ]
    return list(zip(starts, [*starts[1:], len(layers)], strict=True))


def _between(ahead: tuple[int, ...], step: int, needed: int) -> set[int]:
    """The groups that are used from `step` on before the step `needed`."""
    return set(ahead[step:needed]) - {ahead[needed]}


def _has_room(layout: Layout, ahead: tuple[int, ...], step: int, needed: int) -> bool:
    """What is issued at `step` for the step `needed` must not overwrite what is used in between."""
    group = ahead[needed]
    return not any(layout.share_bytes(group, other) for other in _between(ahead, step, needed))


def _require_room(
    layout: Layout, policy: Policy, ahead: tuple[int, ...], step: int, needed: int
) -> None:
    if _has_room(layout, ahead, step, needed):
        return
    group = ahead[needed]
    at_once = [*_between(ahead, step, needed), group]
    least = sum(layout.groups[each].nbytes for each in at_once if not layout.resident[each])
    raise ValueError(
        f"depth is {policy.depth}: the groups from {layout.groups[ahead[step]]} to "
        f"{layout.groups[group]} must be on the card at once, {bytes_text(least)}; the ring has "
        f"{bytes_text(layout.ring_bytes)}"
    )
