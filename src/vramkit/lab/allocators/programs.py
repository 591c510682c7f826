"""A workload as a program for the native engine: the model goes through it for each worker."""

from __future__ import annotations

from collections.abc import Iterator

from vramkit.lab.allocators.model import Model
from vramkit.lab.allocators.workloads import Workload
from vramkit.lab.program import Program, ProgramBuilder

SECTIONS = ("set-up", "first", "steady", "end")
FIRST, STEADY = 1, 2


def program_of(
    workload: Workload,
    rate: float,
    *,
    scale: float = 1.0,
    mutex: bool = False,
    in_turns: bool = False,
) -> Program:
    """The columns are made, each worker goes through one item, then through all of them.

    `rate`: bytes a second of the card. In turns, the threads do their steps in one order, which
    virtual times need to repeat exactly.
    """
    builder = ProgramBuilder(workload.name, SECTIONS, in_turns)
    workers = range(workload.workers)
    shared = Model(builder, rate)
    # The streams of a worker that uses several are its own and the next ones: it is then alone.
    engines = [Model(builder, rate, each, each, shared.rows, shared.events) for each in workers]

    def begin(section: int) -> None:
        builder.section(SECTIONS[section], threads=workload.workers)

    begin(0)
    columns = [
        workload.prepare(engines[worker], workload.rows_of(worker, scale)) for worker in workers
    ]
    for engine in engines:
        engine.finish()
    for section, items in ((FIRST, 1), (STEADY, workload.items)):
        begin(section)
        _take_turns(
            [_items(workload, engines[each], columns[each], items, mutex) for each in workers]
        )
    begin(3)
    for engine, own in zip(engines, columns, strict=True):
        engine.free(*own)
    return builder.build()


def _items(
    workload: Workload, engine: Model, columns: list[int], items: int, mutex: bool
) -> Iterator[None]:
    """Yields where others may go on: between operations, with a mutex between items."""
    for _ in range(items):
        if mutex:
            engine.builder.lock(thread=engine.thread)
            for _ in workload.item(engine, columns):
                pass
            engine.finish()  # the work, and not only its launch, is under the mutex
            engine.builder.unlock(thread=engine.thread)
            yield
        else:
            yield from workload.item(engine, columns)
    engine.finish()


def _take_turns(workers: list[Iterator[None]]) -> None:
    done = object()
    while workers:
        workers = [each for each in workers if next(each, done) is not done]
