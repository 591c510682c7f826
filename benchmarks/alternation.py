"""Runs parts of a measurement with two builds in turn, within a time limit.

Each part is a process. Both builds run a part one after the other, and the order is swapped each
time round: whatever drifts on the machine (clocks, temperature, neighbours) hits both alike.
"""

import time
from collections.abc import Callable, Iterator

import msgspec
from rows import Row

BUILDS = ("old", "new")


class Pass(msgspec.Struct):
    """What one process found, and what went wrong, if anything did."""

    rows: list[Row] = []
    wrong: str = ""


class Part(msgspec.Struct, frozen=True):
    """`run(build, limit_s)` measures it once with one of the builds."""

    name: str
    run: Callable[[str, float], Pass]


class Alternation:
    """The parts in turn, as often as asked and as the time allows."""

    def __init__(
        self,
        times: int,
        part_limit_s: float,
        end: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._times = times
        self._part_limit_s = part_limit_s
        self._end = end
        self._clock = clock
        self.notes: list[str] = []
        """Parts that did not run as often as asked, and why."""

    def passes(self, parts: list[Part]) -> Iterator[tuple[str, Part, Pass]]:
        """Every pass that went well. A part that fails once is not tried again."""
        remaining = list(parts)
        needed_s: dict[str, float] = {}
        for turn in range(self._times):
            for part in list(remaining):
                order = BUILDS if turn % 2 == 0 else BUILDS[::-1]
                start = self._clock()
                # Both builds or none; as long as the last time, and a little more.
                if self._end - start < 1.2 * needed_s.get(part.name, 0.0) + 1:
                    remaining.remove(part)
                    self.notes.append(f"{part.name}: the time was over after {turn} alternations")
                    continue
                for build in order:
                    limit = min(self._part_limit_s, self._end - self._clock())
                    found = part.run(build, limit) if limit >= 1 else Pass(wrong="no time left")
                    if found.wrong:
                        remaining.remove(part)
                        self.notes.append(f"{part.name}, {build} build: {found.wrong}")
                        break
                    yield build, part, found
                needed_s[part.name] = self._clock() - start
