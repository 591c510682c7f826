"""A program with its client library, played in Python: speaks the protocol, has no GPU.

`step` receives, answers and moves memory; nothing happens between steps. As a program of its own
(`python client.py SOCKET GIB [SPELL]`) it steps until it is killed, and prints how its gate stands.
"""

from __future__ import annotations

import mmap
import os
import select
import socket
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from vramkit.share import protocol
from vramkit.share.protocol import Decoder, Message, encode

GIB = 1 << 30
CHUNK = 1 << 28
CARD = bytes(range(16))
SECONDS = 30.0


def ticks() -> int:
    return int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])


@dataclass
class Taking:
    counters: memoryview
    at: int
    until: int


@dataclass(eq=False)
class FakeClient:
    path: Path
    resident: int = 0
    swapped: int = 0
    pending: int = 0
    unused: int = 0
    weight: float = 1.0
    priority: int = 0
    limit: int = 0
    total: int = 24 * GIB
    uuid: bytes = CARD
    name: str = "fake"
    ticks: int = field(default_factory=ticks)
    yields: bool = True
    answers: bool = True
    """False: it reads and says nothing, as a program whose threads hang."""
    card: int = -1
    turn: int = 0
    open: bool = False
    wants: bool = False
    draws: bool = False
    running_said: bool = False
    connected: bool = False
    refused: str = ""
    received: list[Message] = field(default_factory=list)
    sources: dict[int, Taking] = field(default_factory=dict)
    evict: protocol.Evict | None = None
    moved: int = 0
    chunk_seconds: float = 0.0
    next_chunk: float = 0.0

    # Connection

    def connect(self) -> None:
        """Hello, device and, after an earlier connection, how the gate stands."""
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(str(self.path))
        self.decoder = Decoder("daemon")
        self.descriptors: list[int] = []
        self.connected = True
        self.sources.clear()
        self.evict = None
        self.counters: memoryview | None = None
        weight = int(self.weight * 1000)
        self.say(
            protocol.Hello(
                protocol.VERSION, os.getpid(), self.ticks, weight, self.priority, self.limit, 0,
                self.name,
            )
        )  # fmt: skip
        self.say(protocol.Device(self.uuid, self.total, self.resident + self.unused))
        until(lambda: (self.card >= 0 and self.counters is not None) or self.refused, [self])
        if self.refused:
            return
        self.usage()
        if self.running_said:
            self.say(protocol.Running(self.turn))
        elif self.wants or self.open:
            # Told to start and not in yet: it asks again.
            self.open = self.draws = False
            self.want()

    def say(self, message: Message) -> None:
        if self.connected:
            try:
                self.socket.sendall(encode(message))
            except OSError:
                self.lost()

    def lost(self) -> None:
        self.connected = False
        self.card = -1
        self.socket.close()

    def close(self) -> None:
        if self.connected:
            self.lost()

    def leave(self) -> None:
        """Ends in good order; its process goes on for a while."""
        self.say(protocol.Leaving())
        self.close()

    def bye(self) -> None:
        self.resident = self.swapped = self.unused = 0
        self.say(protocol.Bye())
        self.close()

    # The program

    def start(self, nbytes: int) -> None:
        """Wants to run with so much memory."""
        self.swapped = nbytes
        self.want()

    def want(self) -> None:
        self.wants = True
        self.usage()
        self.say(protocol.Want(self.turn))

    def idle(self) -> None:
        self.say(protocol.Idle(self.turn))

    def allocate(self, nbytes: int) -> None:
        self.pending += nbytes
        self.usage()
        self.say(protocol.Need(self.card, self.resident + self.swapped + self.pending))

    def free(self, nbytes: int) -> None:
        self.resident -= nbytes
        self.give(nbytes)
        self.usage()

    def give(self, nbytes: int) -> None:
        assert self.counters is not None
        self.counters[self.card] += nbytes

    def usage(self) -> None:
        if self.card >= 0:
            self.say(
                protocol.Usage(self.card, self.resident, self.swapped, 0, 0, self.moved, 0, 0, 0)
            )

    # What the library does

    def step(self, seconds: float = 0.0) -> None:
        if not self.connected:
            return
        readable, _, _ = select.select([self.socket], [], [], seconds)
        if readable:
            try:
                data, descriptors, _, _ = socket.recv_fds(self.socket, 1 << 16, 64)
            except OSError:
                data, descriptors = b"", []
            self.descriptors += descriptors
            if not data:
                self.lost()
                return
            self.decoder.feed(data)
            for message in self.decoder.messages():
                self.received.append(message)
                self.hear(message)
        if self.answers and self.connected:
            self.evict_chunk()
            self.pump()

    def hear(self, message: Message) -> None:
        match message:
            case protocol.Welcome():
                self.counters = self.mapped(mmap.PROT_READ | mmap.PROT_WRITE)
            case protocol.Card():
                self.card = message.card
                self.budget, self.told_limit = message.budget, message.limit
            case protocol.Grant():
                self.unused += message.bytes
            case protocol.Source():
                counters = self.mapped(mmap.PROT_READ)
                self.sources[message.source] = Taking(counters, message.from_, message.until)
            case protocol.SourceEnded():
                taking = self.sources.pop(message.source)
                assert taking.at <= message.upto, "took more than it was entitled to"
                self.unused += message.upto - taking.at
            case protocol.Stop() if self.answers:
                self.stop()
            case protocol.Evict():
                self.draws = False
                self.evict = message
                self.out = 0
            case protocol.Fill() | protocol.Start():
                self.draws, self.turn = True, message.turn
                if isinstance(message, protocol.Start):
                    self.open, self.wants = True, False
            case protocol.Refuse():
                self.refused = message.text
            case _:
                assert isinstance(message, (protocol.Prepare, protocol.Stop))

    def stop(self) -> None:
        if not self.yields and self.running_said:
            return
        self.open = self.draws = self.running_said = False
        self.say(protocol.Stopped(self.turn))
        self.want()

    def mapped(self, protection: int) -> memoryview:
        handle = self.descriptors.pop(0)
        try:
            return memoryview(mmap.mmap(handle, protocol.CREDIT_PAGE_BYTES, prot=protection)).cast(
                "Q"
            )
        finally:
            os.close(handle)

    def evict_chunk(self) -> None:
        order = self.evict
        if order is None or time.monotonic() < self.next_chunk:
            return
        self.next_chunk = time.monotonic() + self.chunk_seconds
        wanted = min(CHUNK, order.bytes - self.out)
        unused = min(self.unused, wanted)
        chunk = min(wanted - unused, self.resident)
        self.unused -= unused
        self.resident -= chunk
        self.swapped += chunk
        self.moved += chunk
        self.out += unused + chunk
        self.give(unused + chunk)
        if self.out == order.bytes or unused + chunk == 0:
            self.evict = None
            self.usage()
            self.say(protocol.Moved(order.card, order.turn, self.out))

    def pump(self) -> None:
        if not self.draws:
            return
        for source in self.sources.values():
            upto = min(source.counters[self.card], source.until)
            if upto > source.at:
                self.unused += upto - source.at
                source.at = upto
        brought = min(self.unused, self.swapped)
        self.unused -= brought
        self.swapped -= brought
        self.resident += brought
        if self.pending and not self.swapped and self.unused >= self.pending:
            self.unused -= self.pending
            self.resident += self.pending
            self.pending = 0
            self.usage()
            self.say(protocol.Need(self.card, 0))
        if self.open and not self.running_said and not self.swapped:
            self.running_said = True
            self.usage()
            self.say(protocol.Running(self.turn))


def until(
    condition: Callable[[], object], clients: Iterable[FakeClient], seconds: float = SECONDS
) -> None:
    """Steps all clients until the condition holds."""
    clients = list(clients)
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            states = [
                (each.name, each.open, each.running_said, each.resident / GIB, each.swapped / GIB,
                 each.received[-3:])
                for each in clients
            ]  # fmt: skip
            raise AssertionError(f"did not happen within {seconds:g} s: {states}")
        for each in clients:
            each.step()
        time.sleep(0.001)


def main() -> None:
    client = FakeClient(Path(sys.argv[1]))
    client.connect()
    client.start(int(float(sys.argv[2]) * GIB))
    said = ""
    while True:
        client.step(0.005)
        if not client.connected:
            time.sleep(0.1)
            try:
                client.connect()
            except OSError:
                continue
        now = "running" if client.running_said else "evicting" if client.evict else "waiting"
        if len(sys.argv) > 3:
            client.chunk_seconds = float(sys.argv[3])
        if now != said:
            said = now
            print(now, flush=True)


if __name__ == "__main__":
    main()
