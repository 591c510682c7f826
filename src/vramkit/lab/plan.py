"""Which steps of a program wait for other threads."""

from __future__ import annotations

from collections.abc import Sequence

from vramkit.lab.program import Op, Program

Thing = tuple[str, int]
"""("block", number) or ("event", number)."""


class Plan:
    """Where threads go on by themselves: what a step waits for, and what it tells others of."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self.waits: dict[int, tuple[Thing, int]] = {}
        """By step: how often something must have been told of."""
        self.tells: dict[int, Thing] = {}
        self._steps: list[Sequence[int]] = [range(len(program))]
        if program.thread_count == 1:
            return
        of_threads: list[list[int]] = [[] for _ in range(program.thread_count)]
        for step, thread in enumerate(program.threads):
            of_threads[thread].append(step)
        self._steps = list(of_threads)
        if not program.in_turns:
            self._share()

    def steps_of(self, thread: int) -> Sequence[int]:
        return self._steps[thread]

    def _share(self) -> None:
        makers: dict[Thing, int] = {}
        shared: set[Thing] = set()
        for _, thing, thread, makes in self._uses():
            if makes:
                makers.setdefault(thing, thread)
            if makers.get(thing, thread) != thread:
                shared.add(thing)
        told: dict[Thing, int] = {}
        for step, thing, _, makes in self._uses():
            if thing not in shared:
                continue
            op = self._program.ops[step]
            if not makes and told.get(thing):
                self.waits[step] = thing, 1 if op == Op.TOUCH else told[thing]
            if makes or op == Op.TOUCH:
                told[thing] = told.get(thing, 0) + 1
                self.tells[step] = thing

    def _uses(self) -> list[tuple[int, Thing, int, bool]]:
        program = self._program
        uses = []
        for step, op in enumerate(program.ops):
            thread, what = program.threads[step], program.what[step]
            if op in (Op.ALLOCATE, Op.FREE, Op.TOUCH):
                uses.append((step, ("block", what), thread, op == Op.ALLOCATE))
            elif op in (Op.RECORD, Op.WAIT, Op.WAIT_FOR_EVENT):
                uses.append((step, ("event", what), thread, op == Op.RECORD))
        return uses
