"""Goes through a program on an allocator, and measures what it costs: time, or memory.

On a resource written in C++ the native player does it; on any other the one in python_player.py.
Both have the same rules, and on the simulated GPU make the same driver calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramkit import _core
from vramkit.lab.played import Measure, Played, Section
from vramkit.lab.python_player import PythonPlayer, at_step

if TYPE_CHECKING:
    from vramkit.driver import Device
    from vramkit.lab.program import Program
    from vramkit.lab.subjects.subject import Allocator

__all__ = ["Measure", "Played", "Section", "play"]


def play(
    program: Program,
    allocator: Allocator,
    device: Device,
    *,
    measure: Measure = "time",
    raw_streams: bool = False,
    read_every: int = 1,
) -> Played:
    """Does the steps of a program on threads, streams and events of its own.

    measure="time" reads nothing of the allocator on the way. measure="memory" reads what it holds
    after each allocation and each free; the times include that then. With `raw_streams` the
    allocator gets each stream as a handle of somebody else's, as PyTorch and CuPy would pass it.

    The Python player reads after each `read_every`-th of them only: some libraries take longer to
    tell than to allocate. To the native player, which reads in nanoseconds, it makes no difference.

    Raises ValueError for a program that cannot be played, before anything runs; OutOfMemoryError,
    which says at which step; and whatever else goes wrong. Every block is freed and every thread
    has ended then. An interrupt (Ctrl-C) ends it in the same way.
    """
    if measure not in ("time", "memory"):
        raise ValueError(f'measure is {measure!r}; it may be "time" or "memory"')
    checked = _core.LabProgram(
        program.ops,
        program.threads,
        program.what,
        program.where,
        program.sizes,
        program.stream_count,
        program.event_count,
        program.thread_count,
        len(program.sections),
        program.in_turns,
    )
    if isinstance(allocator.resource, _core.NativeResource):
        return _play_native(program, checked, allocator.resource, device, measure, raw_streams)
    return PythonPlayer(
        program, checked, allocator, device, measure, raw_streams, read_every
    ).play()


def _play_native(
    program: Program,
    checked: _core.LabProgram,
    resource: _core.NativeResource,
    device: Device,
    measure: Measure,
    raw_streams: bool,
) -> Played:
    spin = device.kernels.function("vk_spin")
    memory = measure == "memory"
    player = _core.LabPlayer(device, resource, checked, spin, raw_streams, memory)
    try:
        measured = player.run()
    except Exception as error:
        raise at_step(error, program, player.failed_step) from error.__cause__
    sections = [
        Section.of(name, threads=program.thread_count, **figures)
        for name, figures in zip(program.sections, measured["sections"], strict=True)
    ]
    if not memory:
        return Played(sections, program.peak_in_use, native=True)
    return Played(
        sections,
        measured["peak_in_use"],
        measured["peak_held"],
        measured["average_held"],
        measured["end_held"],
        native=True,
    )
