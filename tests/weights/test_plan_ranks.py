"""Plans for several cards, each with a link of its own."""

from __future__ import annotations

from typing import Any

import pytest

from vramkit.weights import Group, Plan, plan
from vramkit.weights.gather import SHARE, share_chunks

LAYERS = 20
GROUPS = [
    Group(layer, name, nbytes)
    for layer in range(LAYERS)
    for name, nbytes in (("attn", 300_000_000), ("ffn", 600_000_000))
]
LINK = 55.4e9


def planned(ranks: int, rate: float | None = None, seconds: float = 1e-4, **more: Any) -> Plan:
    return plan(
        GROUPS,
        "6GB",
        seconds=[seconds] * len(GROUPS),
        ranks=ranks,
        gather_bytes_per_s=rate,
        compare=False,
        **more,
    )


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_the_bound_falls_with_the_number_of_cards(ranks: int) -> None:
    alone, several = planned(1).chosen, planned(ranks, 1e12).chosen
    assert alone.limit == several.limit == "link"
    assert several.ranks == ranks
    # What is staged takes some room of residents.
    assert several.streamed_bytes >= alone.streamed_bytes
    assert several.sent_bytes == pytest.approx(several.streamed_bytes / ranks, rel=1e-4)
    assert several.bound_s == several.link_s == several.sent_bytes / LINK
    assert several.bound_s <= several.pass_s < 1.015 * several.bound_s
    assert several.pass_s < 1.05 * alone.pass_s / ranks
    assert several.gather_s == (several.streamed_bytes - several.sent_bytes) / 1e12


def test_a_slow_connection_of_the_cards_is_the_limit() -> None:
    made = planned(4, 20e9)
    chosen = made.chosen
    assert chosen.limit == "gather" and chosen.bound_s == chosen.gather_s > 2 * chosen.link_s
    assert chosen.bound_s <= chosen.pass_s < 1.01 * chosen.bound_s
    assert made.verdict.startswith("gather-bound: 20.0 GB/s of 20.0 GB/s from the other cards")


def test_gathering_takes_no_time_of_the_computation() -> None:
    chosen = planned(4, 100e9, seconds=0.02).chosen
    assert chosen.limit == "compute"
    assert chosen.pass_s == pytest.approx(LAYERS * 2 * 0.02, rel=1e-3)


def test_shares_are_copied_while_others_are_gathered() -> None:
    """Two groups that have room only one behind the other: no copy takes time of its own."""
    rate, ranks = 30e9, 4
    groups = [Group(layer, "attn", 512 << 20) for layer in range(2)]
    made = plan(
        groups,
        "580MiB",
        seconds=[0.0, 0.0],
        ranks=ranks,
        gather_bytes_per_s=rate,
        ring=512 << 20,
        compare=False,
    )
    assert made.chosen.streamed_bytes == 1 << 30
    chunks = [each for each in share_chunks(512 << 20, 0, ranks, SHARE) if each.staged]
    gathering = 2 * sum(each.nbytes - each.stored for each in chunks) / rate
    assert made.chosen.gather_s == gathering
    assert made.chosen.pass_s == pytest.approx(gathering, rel=0.002)
    assert made.chosen.link_s > 0.15 * gathering


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"ranks": 2}, "2 ranks need gather_bytes_per_s"),
        ({"ranks": 1, "gather_bytes_per_s": 1e9}, "has no effect with one rank"),
        ({"ranks": 0}, "ranks is 0"),
        ({"ranks": 2, "gather_bytes_per_s": 0}, "gather_bytes_per_s is 0"),
        ({"ranks": 2, "gather_bytes_per_s": -1e9}, "gather_bytes_per_s is -1"),
    ],
)
def test_bad_settings(settings: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        plan(GROUPS, "6GB", seconds=[0.0] * len(GROUPS), compare=False, **settings)
