"""The ranks that stream a model together: what they tell each other, and one end for all.

A rank that fails, leaves or dies must not leave the others waiting. Their collectives run in a
process group of their own, beside those of the program, and every wait is bounded by the timeout of
the program's group. Whatever ends a wait early is told to all as one error, a RankError with the
same words on each of the others.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from vramkit.driver.types import shown
from vramkit.weights.store import memory_of

GRACE = 2.0
"""Seconds in which a rank that fails has told why, after the others notice."""

LOOK = timedelta(seconds=0.25)
"""Between two looks at what other ranks have told, in a wait; an interrupt is noticed then too."""

_HEADER = struct.Struct("<Q")


class RankError(RuntimeError):
    """A rank has failed, left or died, and a model whose weights the ranks stream together cannot
    go on. The same on each of the others."""


class Member(NamedTuple):
    """A process of the team."""

    node: str
    """The same for processes that can share memory."""
    host: str
    pid: int


def this_member() -> Member:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    space = os.stat("/proc/self/ns/pid").st_ino
    return Member(f"{boot}/{space}/{os.getuid()}", socket.gethostname(), os.getpid())


class Team:
    """Collective: all ranks of the group make it, and call what is marked so, in the same order.

    After a failure every call raises the same error.
    """

    def __init__(self, torch: Any, group: Any) -> None:
        dist = torch.distributed
        if not dist.is_available() or not isinstance(group, dist.ProcessGroup):
            raise TypeError(
                f"group is {shown(group)}; it may be None, or a ProcessGroup of torch.distributed, "
                "such as torch.distributed.group.WORLD"
            )
        self._torch = torch
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        of_cards = _backend(torch, group, "cuda")
        self.on_cards = of_cards is not None and of_cards.name() == "nccl"
        """Whether the group gathers tensors on cards, in stream order."""
        own = of_cards if self.on_cards else _backend(torch, group, "cpu")
        self.timeout: timedelta = getattr(own, "options", _USUAL)._timeout
        store = group.get_group_store()
        # How often this rank made a team of the group: the same number on all of them.
        number = store.add(f"vramkit/rank {self.rank}", 1)
        self._store = dist.PrefixStore(f"vramkit/team {number}", store)
        self._failure: str | None = None
        self._pids: dict[int, int] = {}  # of other ranks on this node: descriptors
        self._groups: list[Any] = []
        self.members: list[Member] = []
        self._control = self._make_group(dist.ProcessGroupGloo)
        self.members = [Member(*each) for each in self.exchange(this_member())]
        self.neighbours = [
            rank for rank, each in enumerate(self.members) if each.node == self.here.node
        ]
        """The ranks of this node, in order."""
        for rank in self.neighbours:
            if rank != self.rank:
                with suppress(OSError, AttributeError):  # it has ended, or the kernel is old
                    self._pids[rank] = os.pidfd_open(self.members[rank].pid)

    @property
    def here(self) -> Member:
        here: Member = self.members[self.rank]
        return here

    def device_group(self) -> Any:
        """Collective. A group for tensors on cards."""
        return self._make_group(self._torch.distributed.ProcessGroupNCCL)

    def _make_group(self, kind: Any) -> Any:
        store = self._torch.distributed.PrefixStore(f"group {len(self._groups)}", self._store)
        with self.waiting():
            made = kind(store, self.rank, self.size, self.timeout)
        self._groups.append(made)
        return made

    # Collectives over host memory

    def gather(self, out: Any, share: Any) -> None:
        """Collective: the ranks' shares behind each other, host tensors of bytes."""
        with self.waiting():
            work = self._control._allgather_base(out, share)
            until = time.monotonic() + self.timeout.total_seconds()
            while not ends(work, LOOK):
                # A rank may have failed and still take part in this one.
                if (told := self._told("failed")) is not None:
                    raise RuntimeError(told)
                if time.monotonic() > until:
                    raise TimeoutError("timed out")

    def exchange(self, value: Any) -> list[Any]:
        """Collective: what each rank gave, as JSON has it."""
        torch, mine = self._torch, json.dumps(value).encode()
        sizes = torch.empty(self.size * _HEADER.size, dtype=torch.uint8)
        self.gather(sizes, torch.frombuffer(bytearray(_HEADER.pack(len(mine))), dtype=torch.uint8))
        lengths = [each[0] for each in _HEADER.iter_unpack(bytes(memory_of(sizes)))]
        most = max(lengths)
        out = torch.empty(self.size * most, dtype=torch.uint8)
        padded = bytearray(mine.ljust(most))
        self.gather(out, torch.frombuffer(padded, dtype=torch.uint8))
        every = bytes(memory_of(out))
        return [json.loads(every[most * rank : most * (rank + 1)]) for rank in range(self.size)]

    def barrier(self) -> None:
        """Collective: all ranks have come this far."""
        self.exchange(None)

    # Its end

    def require_whole(self) -> None:
        """Raises RankError once a rank has failed, as far as it is known here."""
        if self._failure is not None:
            raise RankError(self._failure)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around a wait for the other ranks. What ends it becomes a RankError."""
        self.require_whole()
        try:
            yield
        except Exception as error:
            self._fail(self._cause(error))
            raise RankError(self._failure) from error
        except BaseException as error:  # an interrupt
            self.fail(error)
            raise

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Around work of this rank that the others rely on: they are told why it failed."""
        try:
            yield
        except BaseException as error:
            self.fail(error)
            raise

    def fail(self, error: BaseException | str) -> None:
        """This rank cannot go on: the others get an error that says so."""
        if self._failure is None:
            text = error if isinstance(error, str) else _described(error)
            self._fail(f"{self._name(self.rank)} failed: {text}")

    def leave(self) -> None:
        """This rank is done. Others that still wait for it get an error."""
        if self._failure is None:
            with suppress(Exception):
                self._store.set(f"left {self.rank}", "")
            self._failure = f"{self._name(self.rank)} has closed its Offload"
        self._let_go(gently=True)

    def _fail(self, text: str) -> None:
        """The first failure that anybody tells is the one that all raise."""
        with suppress(Exception):  # the store may have gone with its rank
            text = self._store.compare_set("failed", "", text).decode()
        self._failure = f"{text}; the ranks stream the weights of the model together, and end here"
        self._let_go()

    def _let_go(self, *, gently: bool = False) -> None:
        """Ends the waits of the others for this rank; gently, where nothing is under way."""
        for group in self._groups:
            with suppress(Exception):
                group.shutdown() if gently else group.abort()
        self._groups.clear()
        self._control = None
        for descriptor in self._pids.values():
            os.close(descriptor)
        self._pids.clear()

    def _cause(self, error: Exception) -> str:
        """Why a wait ended, from the rank that ended it or from its process."""
        until = time.monotonic() + GRACE
        while time.monotonic() < until:
            if (told := self._told("failed")) is not None:
                return told
            for rank in range(self.size):
                if rank != self.rank and self._told(f"left {rank}") is not None:
                    return f"{self._name(rank)} has closed its Offload, and others have not"
            for rank, descriptor in self._pids.items():
                if _has_ended(descriptor):
                    return f"{self._name(rank)} has ended"
            time.sleep(0.05)
        seconds = self.timeout.total_seconds()
        return f"a rank is gone, or did not answer within {seconds:g} s ({_described(error)})"

    def _told(self, key: str) -> str | None:
        with suppress(Exception):  # the store may have gone with its rank
            if self._store.check([key]):
                return str(self._store.get(key).decode())
        return None

    def _name(self, rank: int) -> str:
        if rank >= len(self.members):
            return f"rank {rank} of {self.size}"
        member = self.members[rank]
        return f"rank {rank} of {self.size} (process {member.pid} on {member.host})"


class _USUAL:
    """Of a backend that does not tell its options."""

    _timeout = timedelta(minutes=30)


def ends(work: Any, within: timedelta) -> bool:
    """Whether a collective ends within that time. Raises what has made it fail."""
    try:
        work.wait(within)
    except RuntimeError:
        if not work.is_completed():
            return False
        # It has failed, or ended just after the time was over: now this says which.
        work.wait()
    return True


def _backend(torch: Any, group: Any, kind: str) -> Any:
    """What the group has for tensors of this kind of device; None: nothing."""
    with suppress(RuntimeError):
        return group._get_backend(torch.device(kind))
    return None


def _has_ended(descriptor: int) -> bool:
    """Of a process: it has left its sockets by now, though its parent may not have asked for it."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def _described(error: BaseException) -> str:
    text = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
