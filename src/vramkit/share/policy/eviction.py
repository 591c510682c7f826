"""Who makes room, and how much: the shortfall and no more. And who may have to, later."""

from __future__ import annotations

from collections.abc import Iterable

from vramkit.share.ledger import Account, CardAccounts, Ledger
from vramkit.share.policy.program import Phase, Program
from vramkit.share.policy.queue import place


def shortage(program: Program, card: CardAccounts) -> int:
    """Bytes that a program lacks on a card, beside those that are on their way."""
    account = card.accounts[program.client]
    # One that runs has what it uses; only an allocation that waits can lack something.
    runs = program.phase in (Phase.RUNNING, Phase.STOPPING)
    wanted = account.required if runs else account.total
    return max(0, wanted - account.held - card.coming(account))


def victims(card: CardAccounts, programs: Iterable[Program], kept: set[int]) -> list[Program]:
    """Stopped programs that hold memory of the card, those that will need it last first."""
    found = [
        program
        for program in programs
        if program.phase is Phase.STOPPED
        and program.client not in kept
        and program.client in card.accounts
        and card.accounts[program.client].evicting == 0
    ]
    return sorted(found, key=lambda each: (not each.wants, *place(each)), reverse=True)


def divide(card: CardAccounts, order: Iterable[Program], nbytes: int) -> list[tuple[Account, int]]:
    """How much each victim moves out so that `nbytes` become available: (account, bytes)."""
    plan: list[tuple[Account, int]] = []
    for program in order:
        if nbytes <= 0:
            break
        account = card.accounts[program.client]
        available = min(nbytes, account.evictable - account.promised_away)
        if available > 0:
            plan.append((account, available))
            nbytes -= available
    return plan


def expected(ledger: Ledger) -> dict[int, int]:
    """How much each program may have to move out of one of its cards once all want to run.

    The most of any card: it prepares host memory for each of its cards by itself.
    """
    moves: dict[int, int] = {}
    for card in ledger.cards.values():
        accounts = card.accounts.values()
        over = sum(account.reachable for account in accounts) - card.budget
        for account in accounts:
            nbytes = min(over, account.reachable - account.usage.unswappable)
            if nbytes > 0:
                moves[account.client] = max(moves.get(account.client, 0), nbytes)
    return moves
