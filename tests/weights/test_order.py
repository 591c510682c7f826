"""Random models, budgets, policies, chunks and orders: every use sees its own group's bytes, and
the checker has nothing to report."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from soak import rounds

from vramkit.driver import Driver, Stream
from vramkit.weights import POLICIES, BudgetError, Group, Policy

from .support import GRANULE, KIB, PROFILE, Loaded, loaded

pytestmark = [pytest.mark.sim_only]

EXAMPLES = settings(
    max_examples=rounds(100, 2000),
    # Each example resets the simulated GPU itself.
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@st.composite
def models(draw: st.DrawFn) -> list[Group]:
    count = draw(st.integers(1, 7))
    sizes = st.integers(1, 130 * KIB // 4).map(lambda words: 4 * words)
    alike = draw(st.booleans())
    same = draw(sizes), draw(sizes)
    return [
        Group(layer, name, same[part] if alike else draw(sizes))
        for layer in range(count)
        for part, name in enumerate(("attn", "ffn"))
    ]


points = st.sampled_from(["attn", "ffn", "end"])
policies = st.one_of(
    st.sampled_from([*POLICIES.values()]),
    st.just(Policy()),
    st.builds(
        Policy,
        wait=st.sampled_from(["event", "block"]),
        depth=st.integers(1, 3),
        issue_at=st.fixed_dictionaries({"attn": points}, optional={"ffn": points}),
        own_ffn_first=st.booleans(),
    ),
)


def budgets(groups: list[Group], policy: Policy) -> st.SearchStrategy[int]:
    """In granules, from what may just do to all that is needed."""
    sizes = [-(-group.nbytes // GRANULE) for group in groups]
    least = max(sizes) if policy.depth is None else sum(sizes) // 2
    return st.integers(max(1, least), sum(sizes) + 1)


class Run:
    """Acts on a model at random, with two streams."""

    def __init__(self, data: st.DataObject, model: Loaded, streams: list[Stream]) -> None:
        self.data, self.model, self.streams = data, model, streams
        self.count = len(model.groups)
        self.numbers = st.integers(0, self.count - 1)

    def any(self) -> int:
        return self.data.draw(self.numbers)

    def stream(self) -> Stream:
        return self.streams[self.data.draw(st.integers(0, 1))]

    def name(self, number: int) -> tuple[int, str]:
        group = self.model.groups[number]
        return group.layer, group.name

    def in_order(self) -> None:
        self.model.run(self.stream(), begin=self.data.draw(st.booleans()))

    def learnt(self) -> None:
        order = self.data.draw(st.lists(self.numbers, min_size=1, max_size=10))
        for _ in range(3):
            self.model.run(self.stream(), order)

    def jump(self) -> None:
        first = self.any()
        for number in range(first, min(first + 3, self.count)):
            self.model.use(number, self.stream())

    def prefetch(self) -> None:
        options: dict[str, Any] = {
            "pin": self.data.draw(st.booleans()),
            "priority": self.data.draw(st.sampled_from(["normal", "high"])),
        }
        number = self.any()
        self.model.manager.prefetch_group_async(*self.name(number), **options)
        if self.data.draw(st.booleans()):
            self.model.use(number, self.stream())
        elif options["pin"]:
            self.model.manager.release(*self.name(number))

    def evict(self) -> None:
        self.model.manager.evict(*self.name(self.any()))

    def ensure(self) -> None:
        self.model.manager.ensure_group_on_gpu(*self.name(self.any()))

    def two_at_once(self) -> None:
        """One group on both streams, or two groups: those may have no room beside each other."""
        manager, one, other = self.model.manager, self.any(), self.any()
        with manager.using(*self.name(one), compute_stream=self.streams[0]):
            try:
                self.model.use(other, self.streams[1])
            except ValueError as error:
                assert "needs memory that is in use by group" in str(error)
                assert manager.layout.share_bytes(one, other)
            self.model.read(one, self.streams[0])

    def act(self) -> None:
        actions = (
            self.in_order,
            self.learnt,
            self.jump,
            self.prefetch,
            self.evict,
            self.ensure,
            self.two_at_once,
        )
        self.data.draw(st.sampled_from(actions))()


@EXAMPLES
@given(st.data())
def test_every_use_sees_its_own_bytes(driver: Driver, data: st.DataObject) -> None:
    sim = driver.sim
    assert sim is not None
    sim.reset(PROFILE)
    device = driver.device()
    groups, policy = data.draw(models()), data.draw(policies)
    options: dict[str, Any] = {
        "budget": GRANULE * data.draw(budgets(groups, policy)),
        "policy": policy,
        "chunk": data.draw(st.sampled_from([4 * KIB, 20 * KIB, 64 << 20])),
        "prefer": data.draw(st.sets(st.integers(0, len(groups) - 1), max_size=3)),
        "timing": data.draw(st.booleans()),
    }
    try:
        with (
            device.stream() as one,
            device.stream() as two,
            loaded(device, groups, **options) as model,
        ):
            run = Run(data, model, [one, two])
            for _ in range(data.draw(st.integers(1, 6))):
                run.act()
    except BudgetError:
        assert policy.depth is not None
    assert sim.reports() == []
