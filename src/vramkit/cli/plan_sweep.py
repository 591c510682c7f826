"""A table of plans: here, or on a cluster."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from vramkit.cli.errors import UsageError

if TYPE_CHECKING:
    from vramkit.sweep import Place
    from vramkit.weights.planner.sweep import Grid
    from vramkit.weights.planner.sweep_result import Row

NOTHING = 1


def sweep(grid: Grid, on: str | None, workers: int | None, json: bool) -> int:
    """Exit status 1 where nothing could be planned, or the place failed; 128 + a signal."""
    from vramkit.cli.console import output, print_json
    from vramkit.cli.steps import steps
    from vramkit.sweep import Again, Step, Stopping
    from vramkit.weights.planner.sweep import plan_sweep
    from vramkit.weights.planner.sweep_words import print_sweep, row_line, varying

    grid.check()
    varies, rows = varying(grid.rows()), len(grid.rows())
    stopping, again = Stopping(), Again()
    began = time.monotonic()
    with _place(on, workers) as place, steps("vramkit plan", lines=False) as bar:

        def row(row: Row, done: int) -> None:
            left = (time.monotonic() - began) / done * (rows - done)
            what = f"{row.model}, {row.profile}, {row.budget}, {row.policy}"
            bar.step(Step(done, rows, what, left))
            bar.result(row_line(row, varies))

        with stopping.watched():
            found = plan_sweep(
                grid,
                place,
                check=stopping.check,
                hurry=stopping.in_a_hurry,
                again=again,
                tell=lambda what: bar.step(Step(0, rows, what, None)),
                row=row,
            )
    if json:
        print_json(found)
    else:
        print_sweep(output(), found)
    sys.stdout.flush()
    if words := again.words("plan", "made"):
        print(f"vramkit plan: {words}", file=sys.stderr)
    if found.stopped:
        said = f"{found.stopped}; {found.planned} of {rows} plans have figures"
        print(f"vramkit plan: {said}", file=sys.stderr)
    if stopping.status is not None:
        return stopping.status
    return NOTHING if found.stopped or not found.planned else 0


@contextmanager
def _place(on: str | None, workers: int | None) -> Iterator[Place]:
    if on is None:
        from vramkit.sweep.local import LocalPlace

        if workers is not None and workers < 1:
            raise UsageError(f"--workers is {workers}; it may be 1 or more")
        yield LocalPlace(workers)
        return
    from vramkit.cli.places import ray_place

    if workers is not None:
        raise UsageError("--workers is for this machine; with --on the cluster's CPUs are used")
    with ray_place(on, cards=False) as place:
        yield place
