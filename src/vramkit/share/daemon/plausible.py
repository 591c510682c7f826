"""What a client may say of itself, beyond the bounds that the protocol has for each field.

A system-wide daemon serves users who need not trust each other. Contract:
1. What a client says may cost its own user memory and turns. Others lose nothing by it but what
   the client really holds, by credits that it was granted.
2. A program that says the truth is never cut off: what cannot be is bounded, and refused only where
   the daemon would have to act on it.
3. Places (connections, cards) are shared so that a new user always finds one.
"""

from __future__ import annotations

from vramkit.share import protocol
from vramkit.share.ledger import CardAccounts, Usage

# Of a card that only its user knows of. Sums over all cards stay within what a message can say.
MOST_CARD_BYTES = 1 << 50
# A turn of before; those that follow it have numbers too.
MOST_TURN = 1 << 62


class ImplausibleError(ValueError):
    """What was said cannot be; the text says why."""


def check_turn(message: protocol.Message) -> None:
    turn = getattr(message, "turn", 0)
    if turn > MOST_TURN:
        raise ImplausibleError(f"there was no turn {turn}; numbers of turns end at {MOST_TURN}")


def check_held(nbytes: int, card: CardAccounts, others: int) -> None:
    """Memory that a client has of earlier, as after a restart of the daemon. `others`: what other
    programs hold, for memory is not held twice."""
    if nbytes > card.total - others:
        raise ImplausibleError(
            f"{nbytes} bytes of card {card.number} cannot be held already: it has {card.total}, "
            f"and other programs hold {others}"
        )


def usage(said: protocol.Usage, card: CardAccounts) -> Usage:
    """No program has more of one kind than the card could ever hold."""
    return Usage(
        resident=min(said.resident, card.total),
        swapped=min(said.swapped, card.total),
        unbacked=min(said.unbacked, card.total),
        unswappable=min(said.unswappable, card.total),
    )


def text(said: str) -> str:
    """On one line and without codes: an administrator sees it on a terminal and in the log."""
    return "".join(each if each.isprintable() else "?" for each in said)


def has_place(own: int, everybodys: int, places: int) -> bool:
    """Whether a user who has `own` places may have another: one has half of them at most, the next
    one half of what is left, and so on."""
    return own < places - everybodys
