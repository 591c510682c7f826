"""A real card of which all but a little is taken."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from vramkit.lab.experiment import Lab, Unmeasured
from vramkit.lab.small_card import GRAIN, small_card

GIB = 1 << 30


class Card:
    """With so much free memory."""

    def __init__(self, free: int) -> None:
        self.free = free
        self.taken: list[int] = []

    def memory_info(self) -> SimpleNamespace:
        return SimpleNamespace(free=self.free)

    @contextmanager
    def alloc(self, nbytes: int) -> Iterator[None]:
        self.taken.append(nbytes)
        self.free -= nbytes
        yield
        self.free += nbytes


def lab_on(card: Card) -> Lab:
    driver: Any = SimpleNamespace(sim=None)
    device: Any = card
    return Lab(driver, device, 0, 0, {})


def test_the_rest_of_the_card_is_taken_for_that_time() -> None:
    card = Card(100 * GIB + 12345)
    with small_card(lab_on(card), 4 * GIB):
        assert 4 * GIB <= card.free < 4 * GIB + GRAIN
        assert card.taken == [96 * GIB]
    assert card.free == 100 * GIB + 12345


def test_a_card_that_has_just_so_much_stays_as_it_is() -> None:
    card = Card(4 * GIB + GRAIN - 1)
    with small_card(lab_on(card), 4 * GIB):
        assert card.taken == []


def test_a_card_that_has_less_cannot_take_part() -> None:
    with (
        pytest.raises(Unmeasured, match="the card has 3072 MiB free; this case needs 4096 MiB"),
        small_card(lab_on(Card(3 * GIB)), 4 * GIB),
    ):
        pass
