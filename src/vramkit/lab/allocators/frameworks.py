"""A case with CuPy's or cuDF's own kernels: real threads, on a real card.

Rounds, each on a new allocator: one item of each worker, of which the results are summed and which
compiles the kernels; the timed one; one that reads what the allocator holds; with CuPy, one that
splits the time.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from vramkit.driver import OutOfMemoryError
from vramkit.lab.allocators.array_engine import ArrayEngine
from vramkit.lab.allocators.array_split import Split
from vramkit.lab.allocators.checksum import MODULUS
from vramkit.lab.allocators.engine import Engine
from vramkit.lab.allocators.frame_engine import FrameEngine
from vramkit.lab.allocators.install import Seen, in_cupy, in_rmm, seen_by
from vramkit.lab.allocators.workloads import WORKLOADS, Workload
from vramkit.lab.clock import SteadyClock
from vramkit.lab.experiment import Lab, Unmeasured
from vramkit.lab.meeting import Meter
from vramkit.lab.subjects.subject import Room

if TYPE_CHECKING:
    from vramkit.lab.subjects.subject import Allocator, Subject

Worker = ArrayEngine | FrameEngine


def measure_framework(
    engine: str, workload: str, mutex: bool, subject: Subject, lab: Lab, scale: float
) -> dict[str, float]:
    if lab.driver.sim is not None:
        raise Unmeasured(f"{engine} runs on NVIDIA's driver only, not on the simulated GPU")
    work = Work(WORKLOADS[workload], _maker(engine, lab), scale, mutex)
    with _installed(engine, subject, lab):
        checksum = work.check()
    with _installed(engine, subject, lab):
        first, steady = work.time()
    with subject.open(lab.device, Room(0)) as allocator:
        held = memory_of(work, allocator, partial(_inside, engine, allocator, lab))
    split = _split(workload, mutex, subject, lab, scale) if engine == "cupy" else {}
    times = {"time": steady / 1e6, "first": first / 1e6}
    return {**times, "checksum": float(checksum), **held, **split}


def _split(
    workload: str, mutex: bool, subject: Subject, lab: Lab, scale: float
) -> dict[str, float]:
    cupy = import_module("cupy")
    split = Split(cupy)

    def make() -> Worker:
        cupy.cuda.Device(lab.device.ordinal).use()
        return split.engine()

    work = Work(WORKLOADS[workload], make, scale, mutex)
    with (
        subject.open(lab.device, Room(0)) as allocator,
        _guarded("cupy", in_cupy(allocator, lab.device, split.clocked), lab),
    ):
        return split.measure(work)


def memory_of(
    work: Work, allocator: Allocator, inside: Callable[[Seen], AbstractContextManager[None]]
) -> dict[str, float]:
    """What is in use, and what the allocator holds, while the work has its memory from it: read
    after each allocation and each free, which call what `inside` takes."""
    meter, clock = Meter(allocator.held), SteadyClock()
    meter.begin(clock.now())
    with inside(lambda change: meter.note(clock.now(), change)):
        work.time()
        peak, average, _ = meter.finish(clock.now())
    values = {"peak_in_use": float(meter.peak_in_use)}
    if peak is not None and average is not None:
        values |= {"peak_held": float(peak), "average_held": average}
        if meter.peak_in_use:
            values["over_in_use"] = peak / meter.peak_in_use
    return values


def _maker(engine: str, lab: Lab) -> Callable[[], Worker]:
    """What each worker calls in its own thread, which has the device current from then on."""
    os.environ.setdefault("CUDF_PER_THREAD_STREAM", "1")  # read when cuDF is imported
    cupy = import_module("cupy")
    cudf = import_module("cudf") if engine == "cudf" else None

    def make() -> Worker:
        cupy.cuda.Device(lab.device.ordinal).use()
        if cudf is None:
            return ArrayEngine(cupy)
        return FrameEngine(cudf, cupy, lab.device.synchronize)

    return make


@contextmanager
def _installed(engine: str, subject: Subject, lab: Lab) -> Iterator[None]:
    with subject.open(lab.device, Room(0)) as allocator, _inside(engine, allocator, lab, None):
        yield


def _inside(
    engine: str, allocator: Allocator, lab: Lab, seen: Seen | None
) -> AbstractContextManager[None]:
    if engine == "cupy":
        around = None if seen is None else seen_by(import_module("cupy"), seen)
        return _guarded(engine, in_cupy(allocator, lab.device, around), lab)
    return _guarded(engine, in_rmm(allocator, lab.device, seen), lab)


@contextmanager
def _guarded(engine: str, installed: AbstractContextManager[None], lab: Lab) -> Iterator[None]:
    try:
        with installed:
            yield
    except MemoryError as error:  # CuPy's and RMM's own are such
        raise OutOfMemoryError(engine, 2, "CUDA_ERROR_OUT_OF_MEMORY", str(error)) from error
    finally:
        gc.collect()  # what an exception has kept
        lab.device.synchronize()


class Work:
    """A workload on threads, one for each worker, with an engine each."""

    def __init__(
        self, workload: Workload, make: Callable[[], Worker], scale: float, mutex: bool
    ) -> None:
        self._workload = workload
        self._make = make
        self._scale = scale
        self._mutex = threading.Lock() if mutex else None

    def check(self) -> int:
        """Goes through one item of each worker; returns the sum of their checksums."""
        sums = [0] * self._workload.workers

        def one(number: int, engine: Worker, columns: list[int]) -> None:
            engine.sums.wanted = True
            self.items(engine, columns, 1)
            sums[number] = engine.sums.checksum

        self.run([one])
        return sum(sums) % MODULUS

    def time(self) -> tuple[int, int]:
        """Nanoseconds of the first item of all workers, and of all the others."""

        first, steady = self.run(
            [
                lambda _, engine, columns: self.items(engine, columns, 1),
                lambda _, engine, columns: self.items(engine, columns),
            ]
        )
        return first, steady

    def run(self, parts: Sequence[Callable[[int, Any, list[int]], None]]) -> list[int]:
        """All workers begin a part together; returns how long each part took."""
        moments: list[int] = []
        barrier = threading.Barrier(
            self._workload.workers, lambda: moments.append(time.perf_counter_ns())
        )
        failures: list[BaseException] = []

        def worker(number: int) -> None:
            try:
                engine = self._make()
                rows = self._workload.rows_of(number, self._scale)
                columns = self._workload.prepare(engine, rows)
                engine.finish_all()
                barrier.wait()
                for part in parts:
                    part(number, engine, columns)
                    barrier.wait()
                engine.free(*columns)
            except threading.BrokenBarrierError:
                pass
            except BaseException as error:
                failures.append(error)
                barrier.abort()

        threads = [
            threading.Thread(target=worker, args=(number,))
            for number in range(self._workload.workers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        return [after - before for before, after in pairwise(moments)]

    def items(self, engine: Engine, columns: list[int], count: int | None = None) -> None:
        """So many of them; all that a worker goes through without a number."""
        for _ in range(self._workload.items if count is None else count):
            if self._mutex is None:
                _go_through(self._workload, engine, columns)
            else:
                with self._mutex:
                    _go_through(self._workload, engine, columns)
                    engine.finish()
        engine.finish()


def _go_through(workload: Workload, engine: Engine, columns: list[int]) -> None:
    for _ in workload.item(engine, columns):
        pass
