"""Programs, a link and a clock that are simulated: thousands of turns take milliseconds.

`World` stands for the daemon around the scheduler; `Worker` for a program with its client library,
by the rules of native/share/protocol.def. After every event the world checks what must always hold.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from vramkit.share.ledger import Account, Ledger, Usage
from vramkit.share.policy import Phase, PolicySettings, Program, Scheduler
from vramkit.share.protocol import (
    Evict,
    Fill,
    Grant,
    Message,
    Prepare,
    Source,
    SourceEnded,
    Start,
    Stop,
)


@dataclass
class Taking:
    """A source as its taker knows it."""

    giver: Memory
    at: int
    until: int


@dataclass(eq=False)
class Memory:
    """A worker's bytes on one card."""

    resident: int = 0
    swapped: int = 0
    unswappable: int = 0
    pending: int = 0
    """An allocation that waits."""
    need: int = 0
    """As last said."""
    unused: int = 0
    """Credits."""
    given: int = 0
    sources: dict[int, Taking] = field(default_factory=dict)

    def draw(self) -> None:
        for source in self.sources.values():
            upto = min(source.giver.given, source.until)
            if upto > source.at:
                self.unused += upto - source.at
                source.at = upto

    @property
    def size(self) -> int:
        return self.resident + self.swapped + self.unswappable + self.pending


class Worker:
    def __init__(
        self,
        world: World,
        number: int,
        sizes: dict[int, int],
        *,
        work: float = float("inf"),
        spell: float = float("inf"),
        pause: float = 0.0,
        unswappable: int = 0,
        yields: bool = True,
    ) -> None:
        """`work`: seconds of the card until it ends; it computes for `spell`, then pauses."""
        self.world, self.number = world, number
        self.work, self.spell, self.pause, self.yields = work, spell, pause, yields
        self.memory = {card: Memory(unswappable=unswappable) for card in sizes}
        self.sizes = dict(sizes)
        self.open = self.draws = self.done = self.frozen = self.dead = False
        self.computes = True
        self.turn = 0
        self.left_of_spell = spell
        self.since = 0.0
        self.ran = 0.0
        self.starts = 0
        self.evicted = 0
        self.evicting: dict[int, tuple[int, int, int]] = {}
        self.inbox: list[Message] = []
        self.epoch = 0

    # Towards the daemon

    def tell(self, what: str, *words: object) -> None:
        """Calls this method of the scheduler, as soon as the message is there."""
        self.world.tell(self, what, words)

    def tell_usage(self) -> None:
        for card, memory in self.memory.items():
            usage = Usage(memory.resident, memory.swapped, 0, memory.unswappable)
            self.tell("usage", card, usage)

    def want(self) -> None:
        self.tell_usage()
        self.tell("want", self.turn)

    def begin(self) -> None:
        """The first memory of the program: it does not exist yet, so it counts as swapped."""
        for card, memory in self.memory.items():
            memory.swapped = self.sizes[card]
        self.want()

    def allocate(self, card: int, nbytes: int) -> None:
        self.memory[card].pending += nbytes
        self.tell_usage()
        self.pump()
        self.ask(card)

    def ask(self, card: int) -> None:
        """All that must be held, while something is missing."""
        memory = self.memory[card]
        need = memory.size if memory.pending else 0
        if need != memory.need:
            memory.need = need
            self.tell("need", card, need)

    def free(self, card: int, nbytes: int) -> None:
        memory = self.memory[card]
        nbytes = min(nbytes, memory.resident)
        memory.resident -= nbytes
        memory.given += nbytes
        self.ask(card)
        self.world.pump()

    # From the daemon

    def receive(self, message: Message) -> None:
        if self.dead:
            return
        if self.frozen:
            self.inbox.append(message)
            return
        if isinstance(message, Grant):
            self.memory[message.card].unused += message.bytes
        elif isinstance(message, Source):
            giver = self.world.everybody[message.giver].memory[message.card]
            taking = Taking(giver, message.from_, message.until)
            self.memory[message.card].sources[message.source] = taking
        elif isinstance(message, SourceEnded):
            taking = self.memory[message.card].sources.pop(message.source)
            assert taking.at <= message.upto, "took more than it was entitled to"
            self.memory[message.card].unused += message.upto - taking.at
        elif isinstance(message, Stop):
            self.stop()
        elif isinstance(message, Evict):
            self.evict(message)
        elif isinstance(message, (Fill, Start)):
            self.draws = True
            self.turn = message.turn
            if isinstance(message, Start):
                self.open = True
                self.running = False
        else:
            assert isinstance(message, Prepare)
        self.pump()

    def stop(self) -> None:
        if not self.yields and self.running:
            return
        self.account()
        self.open = self.draws = self.running = False
        turn = self.turn
        self.tell_usage()
        if self.work > 0 and self.computes:
            self.tell("want", turn)
        self.tell("stopped", turn)
        for card in self.memory:
            self.ask(card)

    def evict(self, order: Evict) -> None:
        assert not self.open, "told to evict while it runs"
        self.draws = False
        self.evicting[order.card] = (order.turn, order.bytes, 0)
        self.world.after(self.world.chunk_seconds, lambda: self.evict_chunk(order.card))

    def evict_chunk(self, card: int) -> None:
        if self.dead:
            return
        if self.frozen:
            self.world.after(1.0, lambda: self.evict_chunk(card))
            return
        turn, wanted, done = self.evicting[card]
        memory = self.memory[card]
        chunk = min(self.world.chunk, wanted - done)
        first = min(memory.unused, chunk)
        memory.unused -= first
        moved = min(chunk - first, memory.resident)
        memory.resident -= moved
        memory.swapped += moved
        self.evicted += first + moved
        memory.given += first + moved
        done += first + moved
        self.evicting[card] = (turn, wanted, done)
        if done < wanted and first + moved:
            self.world.after(self.world.chunk_seconds, lambda: self.evict_chunk(card))
        else:
            del self.evicting[card]
            self.tell_usage()
            self.tell("moved", card, turn, done)
        self.world.pump()

    running = False

    def pump(self) -> None:
        """Brings in what credits allow; opens the gate when everything is there."""
        if self.dead or self.frozen or not self.draws:
            return
        for card, memory in self.memory.items():
            memory.draw()
            brought = min(memory.unused, memory.swapped)
            memory.unused -= brought
            memory.swapped -= brought
            memory.resident += brought
            if memory.pending and not memory.swapped and memory.unused >= memory.pending:
                memory.unused -= memory.pending
                memory.resident += memory.pending
                memory.pending = 0
                self.tell_usage()
                self.ask(card)
        lacks = any(memory.swapped or memory.pending for memory in self.memory.values())
        if self.open and not self.running and not lacks:
            self.running = True
            self.starts += 1
            self.since = self.world.now
            self.tell_usage()
            self.tell("running", self.turn)
            self.plan()

    # Work

    def account(self) -> None:
        if self.running and self.computes:
            spent = self.world.now - self.since
            self.ran += spent
            self.work -= spent
            self.left_of_spell -= spent
        self.since = self.world.now
        self.epoch += 1

    def plan(self) -> None:
        self.epoch += 1
        epoch = self.epoch
        if self.computes:
            length = min(self.work, self.left_of_spell)
            if length != float("inf"):
                self.world.after(max(0.0, length), lambda: self.spell_over(epoch))

    def spell_over(self, epoch: int) -> None:
        if epoch != self.epoch or self.dead:
            return
        self.account()
        if self.work <= 1e-6:
            self.done = True
            self.world.end(self)
            return
        self.computes = False
        self.left_of_spell = self.spell
        self.tell("idle", self.turn)
        self.world.after(self.pause, self.wake)

    def wake(self) -> None:
        if self.dead:
            return
        self.computes = True
        self.since = self.world.now
        if self.running:
            self.tell("busy")
            self.plan()
        else:
            self.want()


class World:
    def __init__(
        self,
        budgets: dict[int, int],
        settings: PolicySettings | None = None,
        *,
        chunk: int = 1 << 28,
        chunk_seconds: float = 0.004,
        latency: float = 0.0,
    ) -> None:
        self.now = 0.0
        self.chunk, self.chunk_seconds, self.latency = chunk, chunk_seconds, latency
        self.ledger = Ledger()
        for number, budget in budgets.items():
            self.ledger.add_card(number, bytes([number] * 16), budget, budget)
        self.reports: list[tuple[int, str]] = []
        self.scheduler = Scheduler(
            settings or PolicySettings(),
            self.ledger,
            lambda client, text: self.reports.append((client, text)),
        )
        self.workers: dict[int, Worker] = {}
        self.everybody: dict[int, Worker] = {}
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.count = 0
        self.sent: list[tuple[float, int, Message]] = []
        self.told = False
        """The daemon was told something, or its time has come. It is not told of each chunk."""
        self.woken = float("inf")
        self.strict = False
        """Nobody dies, fails or allocates: then nothing moves without need."""

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.events, (self.now + seconds, self.count, act))

    def add(self, worker: Worker, weight: float = 1.0, priority: int = 0) -> Worker:
        number = worker.number
        self.workers[number] = self.everybody[number] = worker
        self.scheduler.add(Program(number, weight, priority), self.now)
        for card in worker.memory:
            account = self.ledger.open(number, card, self.ledger.cards[card].budget)
            fixed = worker.memory[card].unswappable
            if fixed:
                self.ledger.grant(account, fixed)
        worker.begin()
        self.settle()
        return worker

    def end(self, worker: Worker) -> None:
        """The program is gone, orderly or not."""
        if worker.dead:
            return
        worker.dead = True
        del self.workers[worker.number]
        self.read()
        self.scheduler.remove(worker.number, self.now)

    def thaw(self, worker: Worker) -> None:
        worker.frozen = False
        inbox, worker.inbox = worker.inbox, []
        for message in inbox:
            worker.receive(message)

    def counter(self, account: Account) -> int:
        return self.everybody[account.client].memory[account.card].given

    def read(self) -> None:
        self.ledger.read(self.counter)

    def pump(self) -> None:
        for worker in list(self.workers.values()):
            worker.pump()

    def settle(self) -> None:
        """What the daemon does after each event."""
        for _ in range(10_000):
            self.read()
            orders = self.scheduler.decide(self.now)
            self.check()
            if not orders:
                break
            for order in orders:
                self.sent.append((self.now, order.client, order.message))
                self.deliver(order.client, order.message)
        else:
            raise AssertionError("orders without end")
        self.told = False
        wake = max(self.now, self.scheduler.wake_at)
        if wake < self.woken or self.woken <= self.now:
            self.woken = wake
            if wake < float("inf"):
                self.after(wake - self.now, self.wake)

    def wake(self) -> None:
        self.told = True

    def tell(self, worker: Worker, what: str, words: tuple[object, ...]) -> None:
        """What a program says; it comes in the order in which it was said."""

        def arrive() -> None:
            if worker.number in self.workers:
                self.told = True
                getattr(self.scheduler, what)(worker.number, *words, self.now)

        if self.latency:
            self.after(self.latency, arrive)
        else:
            arrive()

    def deliver(self, client: int, message: Message) -> None:
        if client not in self.workers:
            return
        worker = self.workers[client]
        if self.latency:
            self.after(self.latency, lambda: worker.receive(message))
        else:
            worker.receive(message)

    def step(self) -> bool:
        if not self.events:
            return False
        at, _, act = heapq.heappop(self.events)
        self.now = max(self.now, at)
        act()
        if self.told:
            self.settle()
        return True

    def run(self, until: float = float("inf"), events: int = 60_000) -> None:
        for _ in range(events):
            if not self.events or self.events[0][0] > until or not self.workers:
                break
            self.step()
        else:
            raise AssertionError("events without end")
        if until != float("inf"):
            self.now = until
            for worker in self.workers.values():
                worker.account()
                worker.plan()

    def check(self) -> None:
        """What must hold at any time."""
        assert not self.ledger.broken_invariant(), self.ledger.broken_invariant()
        for number, card in self.ledger.cards.items():
            used = 0
            for client, account in card.accounts.items():
                memory = self.everybody[client].memory[number]
                mine = memory.resident + memory.unswappable + memory.unused
                assert mine <= account.held, f"{client} uses {mine} and holds {account.held}"
                used += mine
            assert used <= card.budget, f"card {number}: {used} of {card.budget}"
            assert card.held <= card.budget
            if self.strict:
                for account in card.accounts.values():
                    coming = card.coming(account)
                    assert not coming or account.held + coming <= account.total
                    assert account.leaving <= account.promised_away

    def stops(self) -> int:
        return sum(isinstance(message, Stop) for _, _, message in self.sent)

    def phase(self, worker: Worker) -> Phase:
        return self.scheduler.programs[worker.number].phase
