"""Credits: what is granted, given and passed on is always the budget, whoever reads when."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from soak import rounds

from vramkit.share.ledger import Account, CreditError, Ledger, Usage
from vramkit.share.policy import eviction


def make(budget: int = 100, clients: int = 3) -> tuple[Ledger, list[Account], dict[int, int]]:
    ledger = Ledger()
    ledger.add_card(0, bytes(16), budget, budget)
    accounts = [ledger.open(number, 0, budget) for number in range(clients)]
    return ledger, accounts, {number: 0 for number in range(clients)}


def test_what_is_given_goes_to_its_taker_and_then_to_the_pool() -> None:
    ledger, (giver, taker, _), counters = make()
    ledger.grant(giver, 100)
    made = ledger.assign(giver, taker, 30)
    assert (made.start, made.until) == (0, 30)
    counters[0] = 20
    ledger.read(lambda account: counters[account.client])
    assert (giver.held, taker.held, ledger.cards[0].free) == (80, 20, 0)
    counters[0] = 50
    ledger.read(lambda account: counters[account.client])
    assert (giver.held, taker.held, ledger.cards[0].free) == (50, 30, 20)


def test_what_a_taker_loses_belongs_to_the_pool_and_keeps_later_ranges_in_place() -> None:
    ledger, (giver, first, second), counters = make()
    ledger.grant(giver, 100)
    ledger.assign(giver, first, 30)
    ledger.assign(giver, second, 30)
    counters[0] = 10
    ledger.read(lambda account: counters[account.client])
    (ended,) = ledger.end_sources(first)
    assert ended.upto == 10
    counters[0] = 60
    ledger.read(lambda account: counters[account.client])
    assert (first.held, second.held, ledger.cards[0].free) == (10, 30, 20)


def test_a_giver_that_is_gone_ends_its_sources_where_they_are() -> None:
    ledger, (giver, taker, _), counters = make()
    ledger.grant(giver, 40)
    ledger.assign(giver, taker, 40)
    counters[0] = 25
    ledger.read(lambda account: counters[account.client])
    (ended,) = ledger.close(0)
    assert (ended.taker, ended.upto) == (taker, 25)
    assert ledger.cards[0].free == 75


def test_more_than_is_free_cannot_be_granted() -> None:
    ledger, (first, second, _), _ = make()
    ledger.grant(first, 60)
    with pytest.raises(CreditError, match="40 are free"):
        ledger.grant(second, 41)


@pytest.mark.parametrize(("value", "said"), [(50, "gave 10 bytes"), (5, "back from 30 to 5")])
def test_counters_that_make_no_sense_are_named(value: int, said: str) -> None:
    ledger, (giver, _, _), counters = make()
    ledger.grant(giver, 40)
    counters[0] = 30
    ledger.read(lambda account: counters[account.client])
    counters[0] = value
    with pytest.raises(CreditError, match=said) as caught:
        ledger.read(lambda account: counters[account.client])
    assert caught.value.client == 0


def test_a_counter_that_moves_while_others_are_read_is_no_fault() -> None:
    """The taker gives on what it took after the giver's counter was read."""
    ledger, (giver, taker, _), counters = make()
    ledger.grant(giver, 50)
    ledger.assign(giver, taker, 50)

    def read(account: Account) -> int:
        value = counters[account.client]
        if account is giver and value == 0:
            counters[0], counters[1] = 50, 50  # behind our back
        return value

    ledger.read(read)
    assert (giver.held, taker.held, ledger.cards[0].free) == (0, 0, 100)


@given(st.lists(st.tuples(st.sampled_from("gats-"), *[st.integers(0, 40)] * 3), max_size=60))
@settings(max_examples=rounds(100, 20_000))
def test_the_sum_is_always_the_budget(steps: list[tuple[str, int, int, int]]) -> None:
    ledger, accounts, counters = make(clients=4)
    alive = {account.client for account in accounts}
    for what, one, two, nbytes in steps:
        first, second = accounts[one % 4], accounts[two % 4]
        if first.client not in alive:
            continue
        free = ledger.cards[0].free
        if what == "g" and 0 < nbytes <= free:
            ledger.grant(first, nbytes)
        elif what == "a" and first is not second and second.client in alive and nbytes:
            ledger.assign(first, second, nbytes)
        elif what == "t":
            counters[first.client] += min(nbytes, first.held)
        elif what == "s":
            ledger.end_sources(first)
        elif what == "-" and len(alive) > 1:
            ledger.close(first.client)
            alive.discard(first.client)
        ledger.read(lambda account: counters[account.client])
        card = ledger.cards[0]
        assert ledger.broken_invariant() == ""
        assert card.held + card.free == card.budget
        assert card.free >= 0


def test_what_may_have_to_move_is_the_shortfall_of_what_all_can_have() -> None:
    ledger, accounts, _ = make()
    for account, nbytes in zip(accounts, (50, 40, 30), strict=True):
        account.usage = Usage(swapped=nbytes - 10, unswappable=10)
    assert eviction.expected(ledger) == {0: 20, 1: 20, 2: 20}
    # Who says that it needs more than it can have does not make the others prepare for that.
    accounts[0].limit, accounts[0].required = 55, 10**9
    assert eviction.expected(ledger) == {0: 25, 1: 25, 2: 20}
    accounts[1].usage = accounts[2].usage = Usage()
    assert eviction.expected(ledger) == {}


def test_who_uses_two_cards_prepares_for_each_what_leaves_one_of_them() -> None:
    ledger, accounts, _ = make()
    ledger.add_card(1, bytes([1] * 16), 100, 100)
    accounts += [ledger.open(number, 1, 100) for number in range(2)]
    for account in accounts[:2]:
        account.usage = Usage(resident=60)
    for account in accounts[3:]:
        account.usage = Usage(resident=65)
    assert eviction.expected(ledger) == {0: 30, 1: 30}
