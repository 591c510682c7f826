"""The player for allocators of any kind: threads and calls of Python.

The native player has the same rules; a test compares the two. What a step of Python's own costs:
docs/lab-player.md.
"""

from __future__ import annotations

import gc
import os
import threading
from array import array
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from vramkit import _core
from vramkit.driver import OutOfMemoryError, Stream
from vramkit.lab.clock import clock_of
from vramkit.lab.meeting import Meeting, Meter, Mutex, Stopped
from vramkit.lab.played import Measure, Played, Section
from vramkit.lab.program import OWN_STREAM, Op, Program

if TYPE_CHECKING:
    from vramkit.driver import Device
    from vramkit.lab.subjects.subject import Allocator

FILL = 0xA5
"""What a TOUCH writes."""

# Plain numbers: a comparison with a member of an enum costs 30 ns more, and each step has several.
ALLOCATE, FREE, TOUCH, KERNEL, RECORD, WAIT, WAIT_FOR_EVENT, WAIT_FOR_STREAM, *_ = map(int, Op)
LOCK, UNLOCK, SECTION = int(Op.LOCK), int(Op.UNLOCK), int(Op.SECTION)


class PythonPlayer:
    """One play of one program."""

    def __init__(
        self,
        program: Program,
        checked: _core.LabProgram,
        allocator: Allocator,
        device: Device,
        measure: Measure,
        raw_streams: bool,
        read_every: int = 1,
    ) -> None:
        self._program = program
        self._checked = checked
        self._allocator = allocator
        self._device = device
        self._raw_streams = raw_streams
        self._clock = clock_of(device.driver)
        self._meter = Meter(allocator.held, read_every) if measure == "memory" else None
        self._handles: list[object] = [None] * program.allocations
        self._own: list[Stream | None] = [None] * program.allocations
        begin = (lambda now: None) if self._meter is None else self._meter.begin
        self._meeting = Meeting(program, self._clock, begin)
        self._mutex = Mutex(self._clock)
        self._sums = [[_Sums() for _ in program.sections] for _ in range(program.thread_count)]
        self._failures: list[BaseException] = []

    def play(self) -> Played:
        with ExitStack() as stack:
            device = self._device
            made = [stack.enter_context(device.stream()) for _ in range(self._program.stream_count)]
            self._streams = (
                [Stream.from_handle(device, each.handle) for each in made]
                if self._raw_streams
                else made
            )
            self._events = [
                stack.enter_context(device.event(timing=False))
                for _ in range(self._program.event_count)
            ]
            device.kernels.function("vk_spin")  # loaded before the clock runs
            stack.callback(self._free_all)
            self._run()
            if self._failures:
                raise self._failures[0]
        return self._result()

    def _run(self) -> None:
        """Without Python's collector, whose rounds would be in somebody's times."""
        collects = gc.isenabled()
        gc.disable()
        try:
            self._run_threads()
        finally:
            if collects:
                gc.enable()

    def _run_threads(self) -> None:
        threads = [
            threading.Thread(target=self._work, args=(number,), name=f"player {number}")
            for number in range(self._program.thread_count)
        ]
        started = []
        try:
            for thread in threads:
                thread.start()
                started.append(thread)
            for thread in started:
                _wait_for_its_end(thread)
        except BaseException:  # an interrupt, or no more threads to be had
            self._meeting.stop()
            for thread in started:
                while thread.is_alive():
                    with suppress(KeyboardInterrupt):
                        _wait_for_its_end(thread)
            raise
        self._clock.catch_up(self._meeting.moment)

    def _work(self, number: int) -> None:
        try:
            _ = self._device.priority_range  # makes the context this thread's, before the clock
            self._meeting.meet(0)
            self._walk(number)
            self._meeting.meet(0)
        except Stopped:
            pass
        except BaseException as error:
            self._failures.append(error)
            self._meeting.stop()

    def _walk(self, number: int) -> None:
        """All steps of a thread."""
        program, meeting, meter = self._program, self._meeting, self._meter
        ops, all_what, all_where = program.ops, program.what, program.where
        sizes, streams, events = program.sizes, self._streams, self._events
        handles, own = self._handles, self._own
        allocate, free, address = (
            self._allocator.allocate,
            self._allocator.free,
            self._allocator.address,
        )
        device, now = self._device, self._clock.now
        fill, spin = device.fill, device.kernels.spin
        of_thread = [array("I", column) for column in self._checked.steps(number)]
        in_turns = program.in_turns
        sums = self._sums[number][0]
        locked = False
        step = -1
        try:
            for step, sync, slot in zip(*of_thread, strict=True):
                if meeting.stopped:
                    raise Stopped
                if sync > 1:
                    if in_turns:
                        meeting.wait_for_turn(step)
                    else:
                        meeting.wait_for(slot, sync >> 1)
                op, what, where = ops[step], all_what[step], all_where[step]
                if op == ALLOCATE:
                    stream = streams[where]
                    begun = now()
                    handles[what] = allocate(sizes[what], stream)
                    ended = now()
                    own[what] = stream
                    sums.allocate_ns += ended - begun
                    sums.allocations += 1
                    if meter is not None:
                        meter.note(ended, sizes[what])
                elif op == FREE:
                    at = own[what] if where == OWN_STREAM else streams[where]
                    assert at is not None
                    begun = now()
                    free(handles[what], sizes[what], at)
                    ended = now()
                    handles[what] = own[what] = None
                    sums.free_ns += ended - begun
                    sums.frees += 1
                    if meter is not None:
                        meter.note(ended, -sizes[what])
                elif op <= WAIT:
                    stream = streams[where]
                    begun = now()
                    if op == TOUCH:
                        fill(address(handles[what]), FILL, sizes[what], stream=stream)
                    elif op == KERNEL:
                        spin(what, stream=stream)
                    elif op == RECORD:
                        stream.record(events[what])
                    else:
                        stream.wait(events[what])
                    sums.launch_ns += now() - begun
                    sums.launches += op <= KERNEL
                elif op == LOCK:
                    self._mutex.lock()
                    locked = True
                elif op == UNLOCK:
                    locked = False
                    self._mutex.unlock()
                elif op == SECTION:
                    if in_turns and sync & 1:
                        meeting.give_turn(step + 1)
                    meeting.meet(what)
                    sums = self._sums[number][what]
                    continue
                else:
                    begun = now()
                    if op == WAIT_FOR_EVENT:
                        events[what].synchronize()
                    elif op == WAIT_FOR_STREAM:
                        streams[where].synchronize()
                    else:
                        device.synchronize()
                    sums.wait_ns += now() - begun
                if sync & 1:
                    if in_turns:
                        meeting.give_turn(step + 1)
                    else:
                        meeting.tell(slot)
        except Stopped:
            raise
        except Exception as error:
            raise at_step(error, program, step) from error.__cause__
        finally:
            if locked:
                self._mutex.unlock()

    def _free_all(self) -> None:
        """What is in use after a failure. Nothing is left to be ordered once the card is idle."""
        if all(handle is None for handle in self._handles):
            return
        with suppress(Exception):
            self._device.synchronize()
        for block, handle in enumerate(self._handles):
            stream = self._own[block]
            if handle is not None and stream is not None:
                self._handles[block] = None
                with suppress(Exception):  # the first error is the one that counts
                    self._allocator.free(handle, self._program.sizes[block], stream)

    def _result(self) -> Played:
        program, meter = self._program, self._meter
        sections = [self._section(number, name) for number, name in enumerate(program.sections)]
        if meter is None:
            return Played(sections, program.peak_in_use)
        peak, average, end = meter.finish(self._meeting.moment)
        return Played(sections, meter.peak_in_use, peak, average, end)

    def _section(self, number: int, name: str) -> Section:
        of_threads = [sums[number] for sums in self._sums]
        return Section.of(
            name,
            threads=len(of_threads),
            wall_ns=self._meeting.walls[number],
            allocate_ns=sum(each.allocate_ns for each in of_threads),
            free_ns=sum(each.free_ns for each in of_threads),
            launch_ns=sum(each.launch_ns for each in of_threads),
            wait_ns=sum(each.wait_ns for each in of_threads),
            allocations=sum(each.allocations for each in of_threads),
            frees=sum(each.frees for each in of_threads),
            launches=sum(each.launches for each in of_threads),
        )


def at_step(error: Exception, program: Program, step: int) -> Exception:
    """The error that says at which step it was; -1: before the first one."""
    if step < 0:
        return error
    where = program.describe(step)
    if isinstance(error, OutOfMemoryError):
        return OutOfMemoryError(error.call, error.code, error.name, f"{error.meaning}; {where}")
    error.add_note(f"in {where}")
    return error


class _Sums:
    """Of one thread in one section."""

    def __init__(self) -> None:
        self.allocate_ns = self.free_ns = self.launch_ns = self.wait_ns = 0.0
        self.allocations = self.frees = self.launches = 0


def _wait_for_its_end(thread: threading.Thread) -> None:
    """Of the system's thread: a pool hears of it then, before Python 3.13 only after join()."""
    thread.join()
    while Path(f"/proc/self/task/{thread.native_id}").exists():
        os.sched_yield()
