"""Programs and allocators for tests of the player."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from vramkit.driver import Device, OutOfMemoryError, Stream
from vramkit.lab.program import Program, ProgramBuilder
from vramkit.lab.subjects.ours import Engine

MIB = 1 << 20


class Plain:
    """A resource as an allocator. native=False keeps it from the native player."""

    def __init__(self, resource: Engine, *, native: bool = True) -> None:
        self.under = resource
        self.resource = resource if native else None

    def allocate(self, size: int, stream: Stream) -> object:
        return self.under.malloc(size, stream)

    def free(self, handle: object, size: int, stream: Stream) -> None:
        assert isinstance(handle, int)
        self.under.free(handle, size, stream)

    def address(self, handle: object) -> int:
        assert isinstance(handle, int)
        return handle

    def held(self) -> int | None:
        return self.under.reserved_bytes


class Noted:
    """Addresses without memory, and what was done in which order. `fail_at`: that allocation."""

    resource = None

    def __init__(self, device: Device, fail_at: int = -1) -> None:
        self.device = device
        self.fail_at = fail_at
        self.calls: list[tuple[str, int]] = []
        self.live: set[int] = set()
        self.made = 0

    def allocate(self, size: int, stream: Stream) -> object:
        if self.made == self.fail_at:
            raise OutOfMemoryError("noted", 2, "CUDA_ERROR_OUT_OF_MEMORY", "no more")
        self.made += 1
        self.live.add(self.made)
        self.calls.append(("allocate", size))
        return self.made

    def free(self, handle: object, size: int, stream: Stream) -> None:
        assert isinstance(handle, int)
        self.live.remove(handle)
        self.calls.append(("free", size))

    def address(self, handle: object) -> int:
        raise AssertionError("no program here touches its blocks")

    def held(self) -> int | None:
        return None


def pairs(count: int, size: int = MIB, *, work_ns: int = 1000) -> Program:
    """Allocate, write, compute, free: on one thread and stream."""
    builder = ProgramBuilder("pairs")
    for _ in range(count):
        block = builder.allocate(size)
        builder.touch(block)
        builder.kernel(work_ns)
        builder.free(block)
    builder.wait_for_device()
    return builder.build()


def handed_over(count: int, *, in_turns: bool, threads: int = 2, size: int = 4096) -> Program:
    """Each block is allocated by a thread, written by the next one on its stream, and freed by the
    first, ordered by events."""
    builder = ProgramBuilder("handed over", in_turns=in_turns)
    for number in range(count):
        maker, user = number % threads, (number + 1) % threads
        block = builder.allocate(size, maker, thread=maker)
        builder.record(2 * number, maker, thread=maker)
        builder.wait(2 * number, user, thread=user)
        builder.touch(block, user, thread=user)
        builder.record(2 * number + 1, user, thread=user)
        builder.wait(2 * number + 1, maker, thread=maker)
        builder.free(block, thread=maker)
    return builder.build()


@contextmanager
def interrupt_when(ready: Callable[[], bool]) -> Iterator[None]:
    """What Ctrl-C does to the main thread, as soon as it is so."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.001):
            if ready():
                os.kill(os.getpid(), signal.SIGINT)
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
