"""Who may use how many bytes of which card.

A card's budget is divided into credits. What a client holds of a card is

    held = granted + sourced - given

`granted`: credits that the daemon gave it. `given`: the client's counter, which only grows: bytes
that it has freed and passed on. `sourced`: what came straight from other clients' counters, by
ranges of them that belong to this client. Bytes of a counter that are in no range belong to the
free pool. Always: the sum of `held` and the free bytes are the budget. The free bytes are negative
only while the budget has been made smaller than what is held.

No I/O: the caller reads the counters (`read`) and sends what these calls decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

Counter = Callable[["Account"], int]
"""Reads the client's counter for the card of the account."""


class CreditError(ValueError):
    """A client gave what it did not have, or took its counter back; or a call that would do so."""

    def __init__(self, message: str, client: int | None = None) -> None:
        super().__init__(message)
        self.client = client


@dataclass
class Range:
    """Bytes of a giver's counter that belong to a taker. `start` moves up as they are given."""

    number: int
    giver: Account
    taker: Account | None
    """None: the taker is gone, and they belong to the pool."""
    start: int
    until: int

    @property
    def left(self) -> int:
        return self.until - self.start


@dataclass(frozen=True)
class Ended:
    """A taker gets nothing from this range above `upto`."""

    taker: Account
    number: int
    upto: int


@dataclass(frozen=True)
class Usage:
    """A program's bytes by where they are; each byte is in one of the four."""

    resident: int = 0
    swapped: int = 0
    unbacked: int = 0
    unswappable: int = 0

    @property
    def needed(self) -> int:
        """What must be on the card while the program runs."""
        return self.resident + self.unswappable + self.swapped


@dataclass(eq=False)
class Account:
    """One client on one card."""

    client: int
    card: int
    limit: int
    granted: int = 0
    sourced: int = 0
    given: int = 0
    usage: Usage = field(default_factory=Usage)
    required: int = 0
    """All that must be held, as the client said last; 0: it lacks nothing."""
    evicting: int = 0
    """Bytes of an eviction that is not over."""
    evicting_until: int = 0
    """The count that it leads to."""
    empty: bool = False
    """The last eviction fell short: nothing more can be moved until the usage changes."""
    stalled: bool = False
    """An eviction makes no progress: the program does not answer."""
    ranges: list[Range] = field(default_factory=list)
    """Of this counter, in order."""

    @property
    def held(self) -> int:
        return self.granted + self.sourced - self.given

    @property
    def total(self) -> int:
        """What must be on the card for the program to run."""
        return max(self.usage.needed, self.required)

    @property
    def reachable(self) -> int:
        """Of `total` what the client can have: who needs more than its limit waits."""
        return min(self.total, max(self.limit, self.usage.needed))

    @property
    def evictable(self) -> int:
        return max(0, self.held - self.floor)

    @property
    def fixed(self) -> int:
        """Of what it holds, what can never be moved: others have nothing of that."""
        return min(self.held, self.usage.unswappable)

    @property
    def floor(self) -> int:
        """What stays on the card while the program is stopped."""
        return self.held if self.empty or self.stalled else self.fixed

    @property
    def leaving(self) -> int:
        """Bytes that an eviction still has to give."""
        return max(0, self.evicting_until - self.given) if self.evicting else 0

    @property
    def promised_away(self) -> int:
        """Bytes of this account that belong to others as soon as they are given."""
        return sum(each.left for each in self.ranges)


@dataclass
class CardAccounts:
    """One card: its budget, and who uses it."""

    number: int
    uuid: bytes
    total: int
    budget: int
    owner: int | None = None
    """The user who alone has it; None: all that use a card with this UUID."""
    accounts: dict[int, Account] = field(default_factory=dict)

    @property
    def held(self) -> int:
        return sum(account.held for account in self.accounts.values())

    @property
    def free(self) -> int:
        return self.budget - self.held

    def coming(self, taker: Account, *, moving: bool = False) -> int:
        """Bytes on their way to a client: of others whose eviction is not over.

        `moving`: without those of programs that do not answer.
        """
        return sum(
            each.left
            for each in self.ranges()
            if each.taker is taker and each.giver.evicting and not (moving and each.giver.stalled)
        )

    def ranges(self) -> Iterator[Range]:
        for account in self.accounts.values():
            yield from account.ranges


class Ledger:
    def __init__(self) -> None:
        self.cards: dict[int, CardAccounts] = {}
        self._next_range = 1

    def add_card(
        self, number: int, uuid: bytes, total: int, budget: int, owner: int | None = None
    ) -> CardAccounts:
        card = self.cards[number] = CardAccounts(number, uuid, total, budget, owner)
        return card

    def open(self, client: int, card: int, limit: int, held: int = 0) -> Account:
        """An account; `held`: what the client has of earlier."""
        accounts = self.cards[card].accounts
        if client in accounts:
            raise CreditError(f"client {client} has an account on card {card} already")
        account = accounts[client] = Account(client, card, limit, granted=held)
        account.usage = Usage(resident=held)
        return account

    def accounts(self, client: int) -> list[Account]:
        return [card.accounts[client] for card in self.cards.values() if client in card.accounts]

    def grant(self, account: Account, nbytes: int) -> None:
        """Bytes of the free pool to a client."""
        free = self.cards[account.card].free
        if not 0 < nbytes <= free:
            raise CreditError(
                f"{nbytes} bytes of card {account.card} were granted; {free} are free"
            )
        account.granted += nbytes

    def assign(self, giver: Account, taker: Account, nbytes: int) -> Range:
        """The next bytes that the giver gives, behind those assigned already, to a taker."""
        if giver is taker or giver.card != taker.card:
            raise CreditError("bytes go from one client to another, on one card")
        start = giver.ranges[-1].until if giver.ranges else giver.given
        made = Range(self._next_range, giver, taker, start, start + nbytes)
        self._next_range = self._next_range % 0xFFFFFFFF + 1
        giver.ranges.append(made)
        return made

    def read(self, counter: Counter) -> None:
        """Reads all counters. Raises CreditError, with the client that gave too much.

        Counters move while they are read: a client may have given what it took from another after
        that other's counter was read. So whoever seems to have given too much is judged after the
        others have been read once more.
        """
        accounts = [each for card in self.cards.values() for each in card.accounts.values()]
        for account in accounts:
            self._take_reading(account, counter(account))
        for suspect in [account for account in accounts if account.held < 0]:
            for account in self.cards[suspect.card].accounts.values():
                if account is not suspect:
                    self._take_reading(account, counter(account))
            if suspect.held < 0:
                raise CreditError(
                    f"client {suspect.client} gave {-suspect.held} bytes of card {suspect.card} "
                    "more than it held",
                    suspect.client,
                )

    def _take_reading(self, account: Account, value: int) -> None:
        if value < account.given:
            raise CreditError(
                f"client {account.client} took its counter of card {account.card} back from "
                f"{account.given} to {value}",
                account.client,
            )
        account.given = value
        while account.ranges and account.ranges[0].start < value:
            first = account.ranges[0]
            reached = min(value, first.until)
            if first.taker is not None:
                first.taker.sourced += reached - first.start
            first.start = reached
            if first.left:
                break
            account.ranges.pop(0)

    def end_sources(self, taker: Account) -> list[Ended]:
        """Takes from a client what is still on its way to it; these bytes go to the pool."""
        ranges = [each for each in self.cards[taker.card].ranges() if each.taker is taker]
        for each in ranges:
            each.taker = None
            # A range in the middle keeps its place: those behind it were told their counts.
            behind = each.giver.ranges
            while behind and behind[-1].taker is None:
                behind.pop()
        return [Ended(taker, each.number, each.start) for each in ranges]

    def close(self, client: int) -> list[Ended]:
        """A client is gone: its bytes are free. Returns what others were to get from it."""
        ended: list[Ended] = []
        for account in self.accounts(client):
            self.end_sources(account)
            ended += [
                Ended(each.taker, each.number, each.start)
                for each in account.ranges
                if each.taker is not None
            ]
            account.ranges.clear()
            del self.cards[account.card].accounts[client]
        return ended

    def broken_invariant(self) -> str:
        """What is wrong, for tests; empty: nothing."""
        for card in self.cards.values():
            for account in card.accounts.values():
                where = f"client {account.client} on card {card.number}"
                if account.held < 0:
                    return f"{where} holds {account.held}"
                count = account.given
                for each in account.ranges:
                    if each.start < count or each.left <= 0:
                        return f"{where}: range {each.start} to {each.until} behind {count}"
                    count = each.until
        return ""
