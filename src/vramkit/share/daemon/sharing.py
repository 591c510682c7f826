"""Clients, ledger and scheduler put together: messages in, messages out. No sockets.

A client is a process with a connection. If the connection ends without `bye` and the process goes
on, it still uses its memory: it is kept as lost until it connects again or its process ends. One
that said `leaving` is not called lost: its process ends soon.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from vramkit.share import protocol
from vramkit.share.daemon import plausible
from vramkit.share.daemon.credit_page import CreditPage
from vramkit.share.daemon.nvml import Nvml, uuid_text
from vramkit.share.daemon.plausible import ImplausibleError
from vramkit.share.ledger import Account, CardAccounts, CreditError, Ledger
from vramkit.share.policy import OutOfOrderError, Phase, Program, Scheduler
from vramkit.share.protocol import MODES, Message
from vramkit.share.settings import ShareSettings, card_budget
from vramkit.share.status import CardStatus, ProgramOnCard, ProgramStatus

logger = logging.getLogger(__name__)

MESSAGES_KEPT = 8

Send = Callable[[Message, tuple[int, ...]], None]


class RefusedError(ValueError):
    """The client did what it may not do; its connection ends with this text."""


@dataclass(eq=False)
class Client:
    number: int
    pid: int
    uid: int
    hello: protocol.Hello
    page: CreditPage
    send: Send | None
    """None: lost."""
    administers: bool = False
    seen: bool = True
    """`pid` is the kernel's word, and not its own."""
    facts: dict[int, protocol.Usage] = field(default_factory=dict)
    """By card."""
    told_limits: dict[int, tuple[int, int]] = field(default_factory=dict)
    messages: deque[str] = field(default_factory=lambda: deque(maxlen=MESSAGES_KEPT))
    leaving: bool = False
    """Its process is about to end."""
    distrusted: bool = False
    """Its counters made no sense, and are no longer read."""
    last_given: dict[int, int] = field(default_factory=dict)
    to_confirm: set[int] = field(default_factory=set)
    """Cards on which its process held memory before it connected again: until it says how much."""


class Sharing:
    def __init__(
        self,
        settings: ShareSettings,
        clock: Callable[[], float],
        nvml: Nvml,
        *,
        system: bool = False,
    ) -> None:
        """`system`: the clients' users need not trust each other."""
        self.ledger = Ledger()
        self.clients: dict[int, Client] = {}
        self.settings = settings
        self.scheduler = Scheduler(settings.for_policy(), self.ledger, self._note)
        self._clock = clock
        self._nvml = nvml
        self._system = system
        self.others: dict[int, int | None] = {}
        self._next_client = 1
        self.refuse: Callable[[int, str], None] = lambda client, text: None
        """Told of a client whose connection must end."""

    # Clients come and go

    def welcome(
        self,
        pid: int,
        uid: int,
        hello: protocol.Hello,
        send: Send,
        *,
        administers: bool = False,
        seen: bool = True,
    ) -> Client:
        """A client; the one that its process was before, if any, is over. Raises RefusedError.

        `pid`: the process as this daemon sees it, or where it does not (`seen`), its own word.
        """
        if hello.protocol != protocol.VERSION:
            raise RefusedError(
                f"this daemon speaks version {protocol.VERSION} of the protocol, and the program "
                f"version {hello.protocol}; install the same vramkit for both"
            )
        hello = replace(hello, name=plausible.text(hello.name))
        before = self.find(uid, pid, hello.start_ticks)
        if before is not None and before.send is not None:
            raise RefusedError(f"process {pid} is connected already")
        try:
            page = CreditPage.make()
        except OSError as error:
            raise RefusedError(f"no credit page can be made: {error}") from error
        client = Client(self._next_client, pid, uid, hello, page, send, administers, seen)
        self._next_client += 1
        self.clients[client.number] = client
        self.scheduler.add(Program(client.number), self._clock())
        self._rank(client)
        if before is not None:
            self._succeed(before, client)
        send(protocol.Welcome(protocol.VERSION, client.number), (page.writable,))
        page.sent()
        logger.info("client %d: process %d (%s) of user %d", client.number, pid, hello.name, uid)
        program = self.scheduler.programs[client.number]
        for name, asked, most in (
            ("weight", hello.weight_milli / 1000, program.weight),
            ("priority", hello.priority, program.priority),
        ):
            if most < asked:
                text = f"its {name} is {most:g} instead of {asked:g}: that is max_{name} here"
                self._note(client.number, text)
        return client

    def _succeed(self, before: Client, client: Client) -> None:
        """What the process held stays its own until it says how much that is now."""
        held = {account.card: account.held for account in self.ledger.accounts(before.number)}
        self.remove(before)
        for card, nbytes in held.items():
            account = self.ledger.open(client.number, card, 0, nbytes)
            account.stalled = True
            client.to_confirm.add(card)

    def confirm(self, client: Client) -> None:
        """It has named its cards: what its process held on others is gone, as after an exec."""
        for card in client.to_confirm:
            self.ledger.cards[card].accounts.pop(client.number, None)
        client.to_confirm.clear()

    def find(self, uid: int, pid: int, start_ticks: int) -> Client | None:
        """Of this user: what others say of their processes is not asked."""
        for client in self.clients.values():
            if (client.uid, client.pid, client.hello.start_ticks) == (uid, pid, start_ticks):
                return client
        return None

    def lose(self, client: Client) -> None:
        """The connection has ended, and the process has not."""
        if client.send is None:
            return
        client.send = None
        self.scheduler.lose(client.number, self._clock())
        if not client.leaving:
            logger.warning("client %d: connection lost", client.number)

    def remove(self, client: Client) -> None:
        """The process has ended, or freed everything."""
        if client.number not in self.clients:
            return
        self._read_counters()
        del self.clients[client.number]
        self.scheduler.remove(client.number, self._clock())
        client.page.close()
        how = "has ended" if client.leaving else "is gone"
        logger.info("client %d: process %d %s", client.number, client.pid, how)

    # Messages

    def receive(self, client: Client, message: Message) -> None:
        """Raises RefusedError for a message that is not allowed now."""
        number, now = client.number, self._clock()
        try:
            plausible.check_turn(message)
            self._read_counters()
            if not isinstance(message, protocol.Device):
                self.confirm(client)
            match message:
                case protocol.Device():
                    self._device(client, message)
                case protocol.Usage():
                    self._usage(client, message)
                case protocol.Want():
                    self.scheduler.want(number, message.turn, now)
                case protocol.Idle():
                    self.scheduler.idle(number, message.turn, now)
                case protocol.Need():
                    self.scheduler.need(number, message.card, message.bytes, now)
                case protocol.Stopped():
                    self.scheduler.stopped(number, message.turn, now)
                case protocol.Moved():
                    self.scheduler.moved(number, message.card, message.turn, message.bytes, now)
                case protocol.Running():
                    self.scheduler.running(number, message.turn, now)
                case protocol.Failed():
                    self._note(number, plausible.text(message.text))
                case protocol.Leaving():
                    client.leaving = True
                    self.scheduler.leave(number, now)
                case protocol.Bye():
                    client.leaving = True
                    self.remove(client)
                case _:
                    raise RefusedError(f"{type(message).__name__.lower()} is not allowed here")
        except (OutOfOrderError, CreditError, ImplausibleError) as error:
            raise RefusedError(str(error)) from error

    def _device(self, client: Client, message: protocol.Device) -> None:
        card = self._card(client, message)
        # Processes of one user may each have a simulated card of their own, of one name.
        beside = [each for each in card.accounts.values() if each.client != client.number]
        others = sum(each.held for each in beside) if self._system else 0
        plausible.check_held(message.held, card, others)
        if card.number in client.to_confirm:
            client.to_confirm.discard(card.number)
            del card.accounts[client.number]
        self.ledger.open(client.number, card.number, card.budget, message.held)
        self._tell_limits()

    def _card(self, client: Client, message: protocol.Device) -> CardAccounts:
        """The card that a client names: in a system-wide daemon one that NVML knows is everybody's,
        with as much memory as NVML says. Another one, a simulated card, is its user's own: whatever
        he says of it."""
        known = self._nvml.total(message.uuid) if self._system else None
        owner = client.uid if self._system and known is None else None
        before = next(
            (
                card
                for card in self.ledger.cards.values()
                if card.uuid == message.uuid and card.owner == owner
            ),
            None,
        )
        if before is not None and before.accounts:
            return before
        number = self._place_of_card(owner) if before is None else before.number
        total = known or min(message.total_bytes, plausible.MOST_CARD_BYTES)
        card = self.ledger.add_card(number, message.uuid, total, 0, owner)
        self.measure_others()
        if owner is not None:
            logger.warning(
                "card %s is not known to NVML: programs of user %d have it for themselves",
                uuid_text(message.uuid),
                owner,
            )
        return card

    def _place_of_card(self, owner: int | None) -> int:
        """A number that no card has, or one that nobody uses any more."""
        cards = self.ledger.cards
        in_use = [card for card in cards.values() if card.accounts]
        if owner is not None:
            owned = [card for card in in_use if card.owner is not None]
            own = sum(card.owner == owner for card in owned)
            places = protocol.CARDS - self._nvml.count()
            if not plausible.has_place(own, len(owned), places):
                raise RefusedError(
                    f"user {owner} has {own} simulated cards here, and there is no place for more"
                )
        free = [number for number in range(protocol.CARDS) if number not in cards]
        free += [card.number for card in cards.values() if not card.accounts]
        if not free:
            raise RefusedError(f"there are more than {protocol.CARDS} cards")
        return free[0]

    def _usage(self, client: Client, message: protocol.Usage) -> None:
        account = self.scheduler.account(client.number, message.card)
        usage = plausible.usage(message, self.ledger.cards[account.card])
        self.scheduler.usage(client.number, message.card, usage, self._clock())
        before = client.facts.get(message.card)
        if before is not None and message.launches > before.launches:
            self.scheduler.busy(client.number, self._clock())
        client.facts[message.card] = message

    # Decisions

    def settle(self) -> float:
        """Decides, tells everybody, and returns the time at which to be called again."""
        for _ in range(100):
            self._read_counters()
            self._tell_limits()
            orders = self.scheduler.decide(self._clock())
            if not orders:
                break
            for order in orders:
                self._send(order.client, order.message)
        return self.scheduler.wake_at

    def _send(self, number: int, message: Message) -> None:
        client = self.clients.get(number)
        if client is None or client.send is None:
            return
        logger.debug("to %d: %s", number, message)
        if isinstance(message, protocol.Source):
            giver = self.clients[message.giver]
            client.send(message, (giver.page.readable,))
        else:
            client.send(message, ())

    def _read_counters(self) -> None:
        while True:
            try:
                self.ledger.read(self._counter)
                return
            except CreditError as error:
                assert error.client is not None
                client = self.clients[error.client]
                client.distrusted = True
                client.last_given = {
                    account.card: account.given for account in self.ledger.accounts(error.client)
                }
                self._clamp(client)
                self._note(error.client, str(error))
                self.refuse(error.client, str(error))

    def _clamp(self, client: Client) -> None:
        """What a client gave beyond what it held never was there: the ledger goes on without it."""
        for account in self.ledger.accounts(client.number):
            if account.held < 0:
                account.granted -= account.held

    def _counter(self, account: Account) -> int:
        client = self.clients[account.client]
        if client.distrusted:
            return client.last_given.get(account.card, 0)
        return client.page.given(account.card)

    # Budgets and limits

    def apply(self, settings: ShareSettings) -> None:
        self.settings = settings
        self.scheduler.settings = settings.for_policy()
        for client in self.clients.values():
            self._rank(client)
        self._set_budgets()
        self._tell_limits()

    def _rank(self, client: Client) -> None:
        """How the program stands beside others: what it asked for, as far as it may."""
        program = self.scheduler.programs[client.number]
        program.weight, program.priority = client.hello.weight_milli / 1000, client.hello.priority
        if self._system and not client.administers:
            program.weight = min(program.weight, self.settings.max_weight)
            program.priority = min(program.priority, self.settings.max_priority)

    def measure_others(self) -> None:
        """Asks what programs that are not ours use of each card."""
        ours = {client.pid for client in self.clients.values() if client.seen}
        for card in self.ledger.cards.values():
            self.others[card.number] = self._nvml.used_by_others(card.uuid, ours)
        self._set_budgets()

    def _set_budgets(self) -> None:
        for card in self.ledger.cards.values():
            others = self.others.get(card.number) or 0
            card.budget = card_budget(self.settings, uuid_text(card.uuid), card.total, others)

    def _tell_limits(self) -> None:
        for card in self.ledger.cards.values():
            fixed = sum(each.fixed for each in card.accounts.values())
            for account in card.accounts.values():
                client = self.clients[account.client]
                if card.number in client.to_confirm:
                    continue
                limits = [card.budget - fixed + account.fixed, *self._chosen_limits(client)]
                account.limit = max(0, min(limits))
                told = card.budget, account.limit
                if client.told_limits.get(card.number) != told:
                    client.told_limits[card.number] = told
                    self._send(client.number, protocol.Card(card.number, card.uuid, *told))

    def _chosen_limits(self, client: Client) -> list[int]:
        """By the program's user and by the settings: these are an administrator's, who has the
        last word, or the same user's, for programs that say nothing."""
        own, settings = client.hello.memory_limit, self.settings.limit
        chosen = [own, settings] if self._system else [own or settings]
        return [each for each in chosen if each]

    # What is told

    def _note(self, number: int, text: str) -> None:
        logger.warning("client %d: %s", number, text)
        client = self.clients.get(number)
        if client is not None:
            client.messages.append(text)

    def card_statuses(self, uid: int | None) -> list[CardStatus]:
        """`uid`: without the cards that other users have for themselves; None: all."""
        return [
            CardStatus(
                card=card.number,
                uuid=uuid_text(card.uuid),
                total=card.total,
                budget=card.budget,
                held=card.held,
                free=card.free,
                others=self.others.get(card.number),
                owner=card.owner,
            )
            for card in self.ledger.cards.values()
            if uid is None or card.owner in (None, uid)
        ]

    def program_statuses(self, uid: int | None) -> list[ProgramStatus]:
        """`uid`: only this user's programs; None: all."""
        self._read_counters()
        return [
            self._program_status(client)
            for client in self.clients.values()
            if uid is None or client.uid == uid
        ]

    def _program_status(self, client: Client) -> ProgramStatus:
        program = self.scheduler.programs[client.number]
        return ProgramStatus(
            client=client.number,
            pid=client.pid,
            uid=client.uid,
            name=client.hello.name,
            state=state_of(client, program),
            mode=MODES[client.hello.mode],
            weight=program.weight,
            priority=program.priority,
            memory_limit=client.hello.memory_limit,
            turns=program.turns,
            passed_over=program.passed_over,
            waited_seconds=program.waited_until(self._clock()),
            blocked=program.blocked,
            messages=list(client.messages),
            cards=[
                self._on_card(client, account) for account in self.ledger.accounts(client.number)
            ],
        )

    def _on_card(self, client: Client, account: Account) -> ProgramOnCard:
        facts = client.facts.get(account.card)
        return ProgramOnCard(
            card=account.card,
            held=account.held,
            limit=account.limit,
            resident=account.usage.resident,
            swapped=account.usage.swapped,
            unbacked=account.usage.unbacked,
            unswappable=account.usage.unswappable,
            out_bytes=facts.out_bytes if facts else 0,
            in_bytes=facts.in_bytes if facts else 0,
            launches=facts.launches if facts else 0,
            gate_wait_seconds=facts.waited_ns / 1e9 if facts else 0.0,
        )


def state_of(client: Client, program: Program) -> str:
    if client.send is None:
        return "ending" if client.leaving else "lost"
    if program.phase is Phase.RUNNING and program.idle:
        return "idle"
    if program.phase is Phase.STOPPED and program.wants:
        return "waiting"
    return program.phase.value
