"""The orders in which passes use groups, each with the schedule that the engine follows for it."""

from __future__ import annotations

from vramkit import _core
from vramkit.weights.layout import Layout
from vramkit.weights.schedule import Policy, Schedule, make_schedule

MOST_ORDERS = 16
"""Orders that are kept: a program without a fixed order would have ever more of them."""


class Orders:
    """Begins with one schedule. Each pass that ends tells its order: one that is not known yet gets
    a schedule, and the one before it is made again so that it ends with what follows. The engine is
    given to each call: it ends when its owner drops it."""

    def __init__(self, engine: _core.StreamerEngine, policy: Policy, first: Schedule) -> None:
        self._policy, self._layout = policy, first.layout
        self._schedules: list[Schedule] = []
        self._next: list[int] = []  # the schedule that follows each; -1: one that is gone
        self._exchanged = 0  # the schedule that was replaced last
        self._following = 0  # that of this pass, as far as is known
        self._add(engine, first)
        engine.follow(0)

    def __len__(self) -> int:
        return len(self._schedules)

    @property
    def last(self) -> Schedule:
        """That of the last pass that was learnt."""
        return self._schedules[self._following]

    def learn(self, engine: _core.StreamerEngine, order: tuple[int, ...]) -> None:
        """The order of the pass that has ended, and what it followed."""
        known = next((n for n, s in enumerate(self._schedules) if s.order == order), None)
        if known is None:
            made = make_schedule(self._layout, order, self._policy, must_fit=False)
            put = self._add if len(self._schedules) < MOST_ORDERS else self._exchange
            known = put(engine, made)
            engine.follow(known)
        before, self._following = self._following, known
        if self._next[before] != known:
            self._next[before] = known
            made = make_schedule(
                self._layout, self._schedules[before].order, self._policy, order, must_fit=False
            )
            self._schedules[before] = made
            engine.replace_schedule(before, *_lists(made), known)

    def _add(self, engine: _core.StreamerEngine, schedule: Schedule) -> int:
        number = len(self._schedules)
        engine.add_schedule(*_lists(schedule), number)
        self._schedules.append(schedule)
        self._next.append(number)
        return number

    def _exchange(self, engine: _core.StreamerEngine, schedule: Schedule) -> int:
        """In the place of another one: each has its turn, but for the first and that of the pass
        before."""
        number = 1 + self._exchanged % (len(self._schedules) - 1)
        if number == self._following:
            number = 1 + number % (len(self._schedules) - 1)
        self._exchanged = number
        engine.replace_schedule(number, *_lists(schedule), number)
        self._schedules[number] = schedule
        # Schedules that the other one followed end with its groups, and are made again.
        self._next = [-1 if each == number else each for each in self._next]
        self._next[number] = number
        return number

    def adopt(self, engine: _core.StreamerEngine, layout: Layout) -> None:
        """Groups lie elsewhere: all schedules are made again."""
        self._layout = layout
        for number, known in enumerate(self._schedules):
            made = make_schedule(layout, known.order, self._policy, known.following, must_fit=False)
            follows = self._next[number]
            self._schedules[number] = made
            engine.replace_schedule(number, *_lists(made), follows if follows >= 0 else number)


def _lists(
    schedule: Schedule,
) -> tuple[list[int], list[int], list[list[int]], list[list[int]]]:
    return (
        list(schedule.order),
        list(schedule.start),
        [list(each) for each in schedule.before],
        [list(each) for each in schedule.after],
    )
