"""Frees that wait for all work of the context, beside captures too.

Nothing documents it. The pool counts on it where there is nothing else to wait by.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from .capturing import MODES, RELAXED, capturing, exchange
from .support import MIB, NOT_READY, SUCCESS, in_thread, name, ok
from .test_capture import words
from .test_host_functions import enqueue

NON_BLOCKING, BLOCKING = 1, 0
BYTES = 4096

# Of memory that no work uses: taken while the work is under way.
FREES: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "2 MiB of the card": lambda cu: cu.cuMemFree(ok(cu.cuMemAlloc(2 * MIB))),
    "256 bytes of the card": lambda cu: cu.cuMemFree(ok(cu.cuMemAlloc(256))),
    "2 MiB of the host": lambda cu: cu.cuMemFreeHost(ok(cu.cuMemHostAlloc(2 * MIB, 0))),
}


@dataclass
class Work:
    """A kernel, a host function behind it, and behind that a fill and a copy to the host."""

    event: Any  # behind all
    seen: list[int]
    landed: int

    def state(self, cu) -> tuple[str, list[int], bytes]:
        """Of an event that is ready or not, what the host function and the copy have left."""
        return name(cu.cuEventQuery(self.event)), self.seen, ctypes.string_at(self.landed, BYTES)


DONE = (SUCCESS, [1], b"\x21" * BYTES)


@pytest.fixture
def start(cu, scope, kernels) -> Callable[[Any], Work]:
    """start(stream): the work, which is under way."""
    memory, landed = scope.alloc(BYTES), scope.pinned(BYTES)
    event = scope.event()

    def start(stream: Any) -> Work:
        work = Work(event, [], landed)
        kernels.spin(stream)
        ok(enqueue(cu, scope, stream, work.seen.append, 1))
        ok(cu.cuMemsetD8Async(memory, 0x21, BYTES, stream))
        ok(cu.cuMemcpyDtoHAsync(landed, memory, BYTES, stream))
        ok(cu.cuEventRecord(event, stream))
        assert name(cu.cuEventQuery(event)) == NOT_READY
        return work

    return start


@pytest.mark.parametrize("flags", [NON_BLOCKING, BLOCKING], ids=["non-blocking", "blocking"])
@pytest.mark.parametrize("free", FREES)
def test_free_of_memory_that_nobody_uses_waits_for_a_stream(cu, scope, start, free, flags):
    work = start(scope.stream(flags))
    assert name(FREES[free](cu)) == SUCCESS
    assert work.state(cu) == DONE


@pytest.mark.parametrize("free", FREES)
def test_free_waits_for_work_of_a_stream_that_is_destroyed(cu, start, free):
    stream = ok(cu.cuStreamCreate(NON_BLOCKING))
    work = start(stream)
    ok(cu.cuStreamDestroy(stream))
    assert name(FREES[free](cu)) == SUCCESS
    assert work.state(cu) == DONE


@pytest.mark.parametrize("free", FREES)
def test_free_waits_for_work_that_waits_for_another_stream(cu, scope, kernels, start, free):
    first, second = scope.stream(), scope.stream()
    kernels.spin(first)
    ok(cu.cuStreamWaitEvent(second, scope.recorded(first), 0))
    work = start(second)
    assert name(FREES[free](cu)) == SUCCESS
    assert work.state(cu) == DONE


@pytest.mark.parametrize("whose", ["another thread", "the capturing thread"])
@pytest.mark.parametrize("flags", [NON_BLOCKING, BLOCKING], ids=["non-blocking", "blocking"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("free", FREES)
def test_free_by_a_relaxed_thread_waits_and_a_capture_survives(
    cu, scope, kernels, start, free, mode, flags, whose
):
    memory = scope.alloc(BYTES)
    scope.write(memory, bytes(BYTES))
    captured = scope.stream(flags)

    def relaxed() -> tuple[str, Any]:
        ok(cu.cuCtxSetCurrent(cu.primary))
        before = exchange(cu, RELAXED)
        answer = name(FREES[free](cu))
        state = work.state(cu)
        exchange(cu, before)
        return answer, state

    work = start(scope.stream())
    with capturing(cu, scope, captured, MODES[mode]) as capture:
        kernels.run("vk_fill", memory, BYTES // 4, 5, stream=captured)
        found = in_thread(relaxed) if whose == "another thread" else relaxed()
        kernels.run("vk_fill", memory, BYTES // 8, 6, stream=captured)
    assert found == (SUCCESS, DONE)
    assert capture.ended == SUCCESS
    assert capture.nodes() == 2
    ok(cu.cuGraphLaunch(capture.executable(), captured))
    ok(cu.cuStreamSynchronize(captured))
    assert scope.read(memory, BYTES) == words(6, BYTES // 8) + words(5, BYTES // 8)
