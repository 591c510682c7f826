"""Tables and callouts in a terminal that is narrower than they are."""

from __future__ import annotations

import io

from rich.console import Console

from vramkit.report.blocks import Block, Callout, Table
from vramkit.report.terminal import print_block


def lines(block: Block, width: int) -> list[str]:
    file = io.StringIO()
    print_block(Console(file=file, width=width), block)
    found = [line.rstrip() for line in file.getvalue().splitlines()]
    assert max(map(len, found)) <= width
    return [line for line in found if line]


HELD = Table(
    ["allocator", "in use", "held / in use", "prefetch_out_in"],
    [["fixed_pool", "10.9 GiB", "6.40x", "1.6106"]],
    numeric=[1, 2, 3],
)


def test_a_table_that_fits_is_not_folded() -> None:
    assert lines(HELD, 60) == [
        "  allocator     in use  held / in use  prefetch_out_in",
        "  fixed_pool  10.9 GiB          6.40x           1.6106",
    ]


def test_names_of_columns_of_figures_are_folded_before_names_of_rows() -> None:
    """The longest first, and no more of them than has to be."""
    assert [line.split() for line in lines(HELD, 50)] == [
        ["prefetch_"],
        ["allocator", "in", "use", "held", "/", "in", "use", "out_in"],
        ["fixed_pool", "10.9", "GiB", "6.40x", "1.6106"],
    ]
    assert [line.split() for line in lines(HELD, 44)] == [
        ["held", "/", "prefetch_"],
        ["allocator", "in", "use", "in", "use", "out_in"],
        ["fixed_pool", "10.9", "GiB", "6.40x", "1.6106"],
    ]


def test_figures_that_have_no_room_beside_each_other_stand_below_each_other() -> None:
    assert lines(HELD, 34) == [
        "  fixed_pool",
        "    in use: 10.9 GiB",
        "    held / in use: 6.40x",
        "    prefetch_out_in: 1.6106",
    ]


def test_many_columns_of_words_stand_below_each_other_where_they_are_too_wide() -> None:
    cells = ["a claim", "confirmed", "figures that take some room", ""]
    block = Table(["claim", "verdict", "figures", "rule"], [cells])
    assert lines(block, 80)[1].split("  ")[1] == "a claim"
    assert lines(block, 40) == [
        "  a claim",
        "    verdict: confirmed",
        "    figures: figures that take some room",
    ]


def test_lines_of_a_callout_stand_below_its_words_and_not_below_its_sign() -> None:
    assert lines(Callout("good", "a title of some words", "and what it says of it"), 20) == [
        "  ✓ a title of some",
        "    words",
        "    and what it says",
        "    of it",
    ]
