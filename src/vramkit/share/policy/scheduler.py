"""The turns: what programs say comes in, what they are to be told comes out.

Contract:
1. Told of everything with the time at which it happened; times never go back. No I/O, no clock.
2. `decide` returns orders. The caller sends each to its program, in this order, and calls again
   after the next event, or at `wake_at`.
3. A message that its program may not send now raises OutOfOrderError; one that was overtaken by an
   order is ignored.
4. Whoever fits runs. If all do, nobody is ever stopped.
5. Else turns: whoever's turn is over gives way to those who wait, in the order of the queue; others
   that fit beside them go on or are started, but do not run past the end of the turn for which
   the first in the queue waits. A turn begins when the program runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from vramkit.share.ledger import Account, CardAccounts, Ended, Ledger, Usage
from vramkit.share.policy import eviction, packing, queue
from vramkit.share.policy.program import Eviction, OutOfOrderError, Phase, Program
from vramkit.share.policy.quantum import Quantum
from vramkit.share.policy.settings import PolicySettings
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

# A process whose connection has ended is waited for this long before anybody is called blocked.
ENDS_WITHIN = 1.0
# A program that works stops in less than this, by the bound on its launches in flight.
STOPS_WITHIN = 0.25


@dataclass(frozen=True)
class Order:
    """What a program is to be told."""

    client: int
    message: Message


class Scheduler:
    def __init__(
        self,
        settings: PolicySettings,
        ledger: Ledger,
        report: Callable[[int, str], None] = lambda client, text: None,
    ) -> None:
        """`report`: told what the user should know of a program."""
        self.settings = settings
        self.ledger = ledger
        self.quantum = Quantum()
        self.programs: dict[int, Program] = {}
        self.wake_at = math.inf
        self.held_back = False
        """Nobody is given anything: programs of before a restart have not all come back."""
        self._report = report
        self._now = -math.inf
        self._orders: list[Order] = []

    # What happens

    def add(self, program: Program, now: float) -> None:
        self._pass_time(now)
        self.programs[program.client] = program

    def remove(self, client: int, now: float) -> None:
        """The program has ended: its memory is free, and nothing comes from it any more."""
        self._pass_time(now)
        del self.programs[client]
        self._say_ended(self.ledger.close(client))

    def lose(self, client: int, now: float) -> None:
        """The program goes on and cannot be reached: what it holds stays, as does its gate."""
        self._pass_time(now)
        program = self.programs[client]
        self._stop_waiting(program)
        program.chosen = None
        # Mostly its process ends within moments.
        program.leaving_until = max(program.leaving_until, now + ENDS_WITHIN)
        for account in self.ledger.accounts(client):
            account.stalled = True
        if program.phase is not Phase.STOPPED:
            program.phase = Phase.RUNNING
            program.unyielding = True
            program.turn_end = math.inf

    def leave(self, client: int, now: float) -> None:
        """The process is about to end, and may still work until then."""
        self._pass_time(now)
        self.programs[client].leaving_until = now + self.settings.patience

    def want(self, client: int, turn: int, now: float) -> None:
        program = self._at(client, turn, now)
        if program.phase is Phase.STARTING or (program.on and turn < program.turn):
            return
        if program.on:
            program.idle = False
            self._came_back(program)
            return
        if not program.wants:
            program.wants = True
            program.waiting_since = now
            self._came_back(program)

    def idle(self, client: int, turn: int, now: float) -> None:
        program = self._at(client, turn, now)
        if turn < program.turn and not (program.turn_is_ahead and turn == program.turn - 1):
            return
        if program.phase is Phase.RUNNING:
            program.idle = True
        elif program.phase is Phase.STOPPED:
            self._stop_waiting(program)
        if program.away_since is None and not program.active:
            program.away_since = now

    def busy(self, client: int, now: float) -> None:
        """An idle program works again; its gate was open."""
        self._pass_time(now)
        program = self.programs[client]
        if program.idle:
            program.idle = False
            self._came_back(program)

    def need(self, client: int, card: int, nbytes: int, now: float) -> None:
        self._pass_time(now)
        self.account(client, card).required = nbytes

    def usage(self, client: int, card: int, usage: Usage, now: float) -> None:
        self._pass_time(now)
        account = self.account(client, card)
        if usage != account.usage:
            account.usage = usage
            account.empty = False
            self.programs[client].progress = now

    def stopped(self, client: int, turn: int, now: float) -> None:
        program = self._at(client, turn, now)
        if program.phase is not Phase.STOPPING or turn < program.turn:
            return
        program.phase = Phase.STOPPED
        program.unyielding = False
        program.idle = False
        program.away_since = None if program.wants else now
        for account in self.ledger.accounts(client):
            self._say_ended(self.ledger.end_sources(account))

    def moved(self, client: int, card: int, turn: int, nbytes: int, now: float) -> None:
        program = self._at(client, turn, now)
        account = self.account(client, card)
        order = program.evictions.get(card)
        if order is None or order.turn != turn:
            raise OutOfOrderError(f"nothing was to be moved on card {card} in turn {turn}")
        del program.evictions[card]
        account.evicting = 0
        account.stalled = False
        if nbytes < order.bytes:
            account.empty = True
            self._report(
                client, f"moved {nbytes} bytes of card {card} out where {order.bytes} were wanted"
            )

    def running(self, client: int, turn: int, now: float) -> None:
        program = self._at(client, turn, now)
        if program.fresh:
            # A program of before a restart, or of a lost connection, whose gate is open.
            self._stop_waiting(program)
            program.fresh = False
            program.phase = Phase.RUNNING
            program.started = program.turn_end = now
            self._came_back(program)
            return
        if turn < program.turn or program.phase is not Phase.STARTING:
            return
        program.phase = Phase.RUNNING
        program.turns += 1
        if not program.bounded:
            program.turn_end += now - program.started
        program.started = now
        if program.chosen is not None and program.had_to_wait_for_memory:
            self.quantum.measured(now - program.chosen)
        program.chosen = None

    # What is decided

    def decide(self, now: float) -> list[Order]:
        self._pass_time(now)
        self.wake_at = math.inf
        for program in self.programs.values():
            self._look_at_times(program)
        if not self.held_back:
            self._take_turns()
        orders, self._orders = self._orders, []
        return orders

    def _take_turns(self) -> None:
        chosen = self._choose()
        kept = {program.client for program in chosen}
        for program in self.programs.values():
            if program.on and program.client not in kept:
                self._stop(program)
        for program in self.programs.values():
            if program.phase is Phase.STOPPING and program.stopped_while is Phase.RUNNING:
                self._let_finish(program)
        for program in chosen:
            self._bring(program, kept)
        for card in self.ledger.cards.values():
            if card.free < 0:
                self._evict(card, kept, -card.free, None)
        self._fill_ahead(kept)
        self._forecast()

    def _choose(self) -> list[Program]:
        """Who is to run from now on, in the order in which they are served."""
        programs = sorted(self.programs.values(), key=queue.place)
        waiting = [each for each in programs if each.phase is Phase.STOPPED and each.wants]
        unyielding = [each for each in programs if each.unyielding]
        leaving = any(each.leaving_until > self._now for each in programs)
        for each in waiting:
            blocked = not (leaving or packing.fits_alone(self.ledger, each, unyielding))
            if blocked and not each.blocked:
                self._report(each.client, "waits for memory that does not become free")
            each.blocked = blocked
        room = packing.Packing(self.ledger, self.settings.policy == "exclusive")
        for each in programs:
            if each.on and each.unyielding:
                room.force(each)
        # First those within their turn; then, in the order of the queue, those whose turn is over
        # and those who wait; last those who have nothing to do.
        within = [each for each in programs if self._is_within_turn(each, waiting)]
        placed = {each.client for each in room.taken}
        placed.update(each.client for each in within if room.take(each))
        over = [each for each in programs if each.on and each.client not in placed]
        busy = [each for each in over if not each.idle and each not in within]
        queued = sorted([*busy, *waiting], key=queue.place)
        left_out = self._queue(queued, room)
        for each in over:
            if each.idle:
                room.take(each)
        if left_out:
            for each in room.taken:
                self._wake(each.turn_end)
        return room.taken

    def _queue(self, queued: list[Program], room: packing.Packing) -> bool:
        """Takes who fits, in this order, and says when their turns end. True: not all did fit."""
        length = self.quantum.seconds(self.settings)
        renewed: list[Program] = []
        first_left_out: Program | None = None
        end = math.inf
        for each in queued:
            may_start = first_left_out is None or end - self._now >= self._worth_a_start()
            if (may_start or each.on) and room.take(each):
                if first_left_out is not None:
                    # Nobody beside the turn for which the first one waits runs past its end.
                    each.turn_end, each.bounded = min(self._now + length, end), True
                elif not each.on:
                    each.turn_end, each.bounded = self._now + length, False
                elif each.turn_end <= self._now:
                    renewed.append(each)
                continue
            if first_left_out is None and not each.blocked:
                first_left_out = each
                # Those before it in the queue go on while it waits: theirs is a new turn.
                for other in renewed:
                    other.turn_end, other.bounded = self._now + length, False
                ends = [other.turn_end for other in room.taken if not other.idle]
                end = max(ends, default=math.inf)
        return first_left_out is not None

    def _worth_a_start(self) -> float:
        """The least time for which another program is started beside the turns of others."""
        return max(self._least_run(), 2 * (self.quantum.switch_seconds or 0.0))

    def _least_run(self) -> float:
        return min(self.settings.least_quantum, self.quantum.seconds(self.settings))

    def _is_within_turn(self, program: Program, waiting: list[Program]) -> bool:
        if not program.on or program.unyielding or program.idle:
            return False
        if program.phase is Phase.STARTING:
            # Its turn has not begun. But who does not come in cannot keep others waiting.
            until = program.progress + self.settings.patience
            self._wake(until)
            return self._now < until
        if program.turn_end <= self._now:
            return False
        # A higher priority takes the turn away, but not at once: switches cost time.
        least = program.started + self._least_run()
        if any(each.priority > program.priority and not each.blocked for each in waiting):
            if self._now >= least:
                return False
            self._wake(least)
        return True

    # Orders

    def _stop(self, program: Program) -> None:
        program.stopped_while = program.phase
        program.phase = Phase.STOPPING
        program.stop_sent = self._now
        program.chosen = None
        self._wake(self._now + self.settings.patience)
        self._tell(program, Stop(program.turn))

    def _bring(self, program: Program, kept: set[int]) -> None:
        """Gives a program what it lacks, as far as there is room, and starts it if that is all."""
        if program.unyielding or program.evictions:
            return  # it would not answer, or gives before it takes
        if program.phase is Phase.STOPPED and program.chosen is None:
            program.chosen = self._now
            program.had_to_wait_for_memory = False
        got = lacks = False
        for account in self.ledger.accounts(program.client):
            card = self.ledger.cards[account.card]
            missing = eviction.shortage(program, card)
            if not missing:
                continue
            program.had_to_wait_for_memory = True
            granted = self._grant(account, missing)
            got |= granted > 0
            lacks |= self._evict(card, kept, missing - granted, account) > 0
        if program.phase is Phase.STOPPED:
            if not lacks:
                length = program.turn_end - self._now
                self._next_turn(program)
                program.turn_is_ahead = False
                program.phase = Phase.STARTING
                program.started = program.progress = self._now
                program.turn_end = self._now + length
                self._stop_waiting(program)
                self._tell(program, Start(program.turn))
            elif got:
                self._fill(program)

    def _let_finish(self, program: Program) -> None:
        """What does not stop soon may be within a capture, which has to end first and can neither
        wait nor go without the memory that it allocates."""
        for account in self.ledger.accounts(program.client):
            card = self.ledger.cards[account.card]
            missing = eviction.shortage(program, card)
            if missing and self._now < program.stop_sent + STOPS_WITHIN:
                self._wake(program.stop_sent + STOPS_WITHIN)
            elif missing:
                self._evict(card, set(), missing - self._grant(account, missing), account)

    def _grant(self, account: Account, wanted: int) -> int:
        nbytes = min(wanted, self.ledger.cards[account.card].free)
        if nbytes <= 0:
            return 0
        self.ledger.grant(account, nbytes)
        self._orders.append(Order(account.client, Grant(account.card, nbytes)))
        return nbytes

    def _evict(self, card: CardAccounts, kept: set[int], wanted: int, taker: Account | None) -> int:
        """Has others make room; returns what nobody can give now. Without a taker: for the pool."""
        if wanted <= 0:
            return 0
        if taker is None:
            # What moves out already, and belongs to nobody, counts.
            for account in card.accounts.values():
                wanted -= max(0, account.leaving - account.promised_away)
        order = eviction.victims(card, self.programs.values(), kept)
        for account, nbytes in eviction.divide(card, order, wanted):
            wanted -= nbytes
            giver = self.programs[account.client]
            all_bytes = account.promised_away + nbytes
            if taker is not None:
                made = self.ledger.assign(account, taker, nbytes)
                self._orders.append(
                    Order(
                        taker.client,
                        Source(card.number, made.number, account.client, made.start, made.until),
                    )
                )
            account.evicting = all_bytes
            account.evicting_until = account.given + all_bytes
            giver.evictions[card.number] = Eviction(giver.turn, all_bytes, self._now, account.given)
            self._wake(self._now + self.settings.patience)
            self._tell(giver, Evict(card.number, giver.turn, all_bytes))
        return max(0, wanted)

    def _fill_ahead(self, kept: set[int]) -> None:
        """What is free now goes to the next in the queue, which can use it before its turn."""
        for program in sorted(self.programs.values(), key=queue.place):
            if program.client in kept or not program.wants or program.blocked:
                continue
            if program.phase is not Phase.STOPPED or program.evictions:
                continue
            got = False
            for account in self.ledger.accounts(program.client):
                missing = eviction.shortage(program, self.ledger.cards[account.card])
                got |= self._grant(account, missing) > 0
            if got:
                self._fill(program)
            return

    def _fill(self, program: Program) -> None:
        self._next_turn(program)
        self._tell(program, Fill(program.turn))

    def _forecast(self) -> None:
        """Has host memory prepared by those who may have to move out."""
        for client, nbytes in eviction.expected(self.ledger).items():
            program = self.programs.get(client)
            if program is not None and nbytes > program.prepared:
                program.prepared = nbytes
                self._tell(program, Prepare(nbytes))

    def _next_turn(self, program: Program) -> None:
        if not program.turn_is_ahead:
            program.turn += 1
            program.turn_is_ahead = True
            program.fresh = False

    def _tell(self, program: Program, message: Message) -> None:
        self._orders.append(Order(program.client, message))

    def _say_ended(self, ended: list[Ended]) -> None:
        for each in ended:
            message = SourceEnded(each.taker.card, each.number, each.upto)
            self._orders.append(Order(each.taker.client, message))

    # Time

    def _pass_time(self, now: float) -> None:
        if self._now < now:
            if self._now > -math.inf:
                queue.charge(self.programs.values(), self._now, now)
            self._now = now

    def _wake(self, at: float) -> None:
        if at > self._now:
            self.wake_at = min(self.wake_at, at)

    def _look_at_times(self, program: Program) -> None:
        patience = self.settings.patience
        if program.phase is Phase.STOPPING:
            self._wake(program.stop_sent + patience)
            if self._now >= program.stop_sent + patience:
                self._pass_over(program)
        elif program.unyielding and self._now >= program.turn_end:
            program.unyielding = False
        if program.unyielding:
            self._wake(program.turn_end)
        self._wake(program.leaving_until)
        for card, order in program.evictions.items():
            account = self.ledger.cards[card].accounts[program.client]
            if account.given > order.given:
                order.given, order.progress = account.given, self._now
                account.stalled = False
            elif not account.stalled and self._now >= order.progress + patience:
                account.stalled = True
                self._report(program.client, f"does not go on moving memory of card {card} out")
            if not account.stalled:
                self._wake(order.progress + patience)
        for account in self.ledger.accounts(program.client):
            if self.ledger.cards[account.card].coming(account, moving=True):
                program.progress = self._now

    def _pass_over(self, program: Program) -> None:
        program.phase = program.stopped_while
        program.unyielding = True
        program.passed_over += 1
        program.started = self._now
        program.turn_end = self._now + max(
            self.quantum.seconds(self.settings), self.settings.patience
        )
        self._stop_waiting(program)
        self._report(
            program.client,
            f"did not stop within {self.settings.patience:g} s, and was passed over",
        )
        self._tell(program, Start(program.turn))

    def _came_back(self, program: Program) -> None:
        others = self.programs.values()
        queue.welcome_back(program, others, self._now, self.settings.least_quantum)

    def _stop_waiting(self, program: Program) -> None:
        program.waited = program.waited_until(self._now)
        program.waiting_since = None
        program.wants = False

    # Programs

    def _at(self, client: int, turn: int, now: float) -> Program:
        """The program of a message with this turn, at this time."""
        self._pass_time(now)
        program = self.programs[client]
        if program.fresh:
            program.turn = turn
        if turn > program.turn:
            raise OutOfOrderError(f"there was no turn {turn} yet, only {program.turn}")
        return program

    def account(self, client: int, card: int) -> Account:
        """Raises OutOfOrderError for a card that the client has not named."""
        found = self.ledger.cards.get(card)
        if found is None or client not in found.accounts:
            raise OutOfOrderError(f"card {card} was not named by a device message")
        return found.accounts[client]
