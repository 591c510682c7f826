"""Which programs run together: those that fit the cards at the same time."""

from __future__ import annotations

from collections.abc import Iterable

from vramkit.share.ledger import Account, Ledger
from vramkit.share.policy.program import Program


class Packing:
    """Room of all cards, from which programs take theirs, on all of their cards or on none.

    Whoever is not taken keeps its floor: what cannot be moved out.
    """

    def __init__(self, ledger: Ledger, exclusive: bool) -> None:
        self._ledger = ledger
        self._exclusive = exclusive
        self._room = {
            number: card.budget - sum(account.floor for account in card.accounts.values())
            for number, card in ledger.cards.items()
        }
        self._used: set[int] = set()
        self.taken: list[Program] = []

    def take(self, program: Program) -> bool:
        if not self.fits(program):
            return False
        self.force(program)
        return True

    def force(self, program: Program) -> None:
        """Takes a program that cannot be stopped now, whether it fits or not."""
        for account in self._ledger.accounts(program.client):
            self._room[account.card] -= _extra(program, account)
            self._used.add(account.card)
        self.taken.append(program)

    def fits(self, program: Program) -> bool:
        accounts = self._ledger.accounts(program.client)
        if self._exclusive and any(account.card in self._used for account in accounts):
            return False
        extras = {account.card: _extra(program, account) for account in accounts}
        # What takes nothing fits even where the budget was made smaller than what is held.
        return all(extra <= max(0, self._room[card]) for card, extra in extras.items())


def fits_alone(ledger: Ledger, program: Program, unyielding: Iterable[Program]) -> bool:
    """Whether a program fits beside the memory that nobody can move out."""
    packing = Packing(ledger, exclusive=False)
    for each in unyielding:
        if each is not program:
            packing.force(each)
    return packing.fits(program)


def _extra(program: Program, account: Account) -> int:
    """What a program takes beside its floor: all that it holds, and what it will need."""
    wanted = account.held if program.unyielding else max(account.total, account.held)
    return wanted - account.floor
