"""What the allocator benchmark concludes from its rows, and that the docs show its result file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import msgspec
import pytest

from vramkit.driver import OutOfMemoryError

if TYPE_CHECKING:
    from vramkit.driver import Device, Driver, Stream
    from vramkit.lab.subjects import Room


def row(allocator: str, median: float | None = None, outcome: str = "", **details: float):
    from rows import Row

    return Row("pair", allocator, "ns", median=median, outcome=outcome, details=details)


def place(*rows, most: float | None = None) -> tuple[str, bool]:
    from allocator_goals import Goal, judge

    verdict = judge(Goal("pair", "a pair", most=most, first=most is None), list(rows))
    return verdict.place, verdict.met


def test_the_docs_show_the_result_file() -> None:
    import allocators
    from allocator_table import Report, markdown

    document = allocators.DOCUMENT.read_text("utf-8")
    result = msgspec.json.decode(allocators.DEFAULT_OUTPUT.read_bytes(), type=Report)
    assert allocators.written(document, markdown(result)) == document


@pytest.mark.parametrize(
    ("peer", "expected"),
    [
        ({"median": 200.0}, ("won", True)),
        ({"median": 100.5}, ("tied", True)),
        ({"median": 50.0}, ("lost", False)),
        ({"outcome": "out of memory"}, ("won", True)),
        ({"median": 50.0, "outcome": "a call waited for the kernel"}, ("won", True)),
        ({"median": 50.0, "cap_bytes": 100, "most_card_bytes": 102}, ("won", True)),
        ({"outcome": "timed out after 10 s"}, ("", False)),
        ({"outcome": "not run: one before it timed out after 10 s"}, ("", False)),
    ],
)
def test_first_place_needs_a_rival_that_was_measured(peer, expected) -> None:
    assert place(row("vramkit", 100.0), row("rmm_pool", **peer)) == expected


def test_our_own_variants_and_the_empty_loop_are_no_rivals() -> None:
    rows = [row("vramkit", 100.0), row("vramkit_raw", 50.0), row("empty_loop", 1.0)]
    assert place(*rows) == ("", False)
    assert place(*rows, most=100) == ("", True)
    assert place(*rows, most=99) == ("", False)


def test_a_row_keeps_its_middle_and_its_spread() -> None:
    taken = row("vramkit")
    taken.take([5.0, 1.0, 2.0, 3.0, 4.0])
    assert (taken.median, taken.p10, taken.p90) == (3.0, 1.4, 4.6)


def test_blocks_from_python_are_those_of_the_native_programs() -> None:
    """Figures that the native program wrote for 100 GiB."""
    from python_fragmentation import filling_sizes

    sizes = list(filling_sizes(100 << 30))
    assert (len(sizes), sum(sizes), sum(sizes[1::2])) == (3122, 107_434_590_348, 53_420_877_279)


class Bump:
    """A subject that can only use memory at the end of what it has given out."""

    def __init__(self, device: Device) -> None:
        self.device = device

    @contextmanager
    def open(self, device: Device, room: Room) -> Iterator[Bump]:
        self.left = room.limit
        with ExitStack() as self.blocks:
            yield self

    def allocate(self, size: int, stream: Stream) -> object:
        if size > self.left:
            raise OutOfMemoryError("bump", 2, "CUDA_ERROR_OUT_OF_MEMORY", "no more")
        self.left -= size
        return self.blocks.enter_context(self.device.alloc(size))

    def free(self, handle: object, size: int, stream: Stream) -> None:
        pass


@pytest.mark.sim_only
@pytest.mark.sim(data=False, capacity="8GiB")
@pytest.mark.parametrize(
    ("cap_gib", "outcome", "served"), [(3, "served", 5), (2, "out of memory", 0)]
)
def test_the_full_card_from_python(driver: Driver, cap_gib: int, outcome: str, served: int) -> None:
    from python_fragmentation import measure

    measured = row("card")
    device, cap = driver.device(), cap_gib << 30
    measure(measured, Bump(device), device, cap, 2 << 30)  # type: ignore[arg-type]
    assert measured.outcome == outcome
    assert len(measured.values) == measured.details["served"] == served
    assert measured.details["asked_bytes"] == measured.details["freed_bytes"] // 10 * 9
    assert measured.details["filled_bytes"] <= cap
    assert measured.details["in_use_mib"] == measured.details["filled_bytes"] / 2**20
    assert measured.details["held_mib"] == measured.details["most_card_bytes"] / 2**20
    assert measured.details["held_over_in_use"] >= 1


@pytest.mark.sim_only
@pytest.mark.sim(data=False, capacity="8GiB")
def test_memory_that_is_given_back_before_the_request_was_held(driver: Driver) -> None:
    """Of a subject of the lab, which holds what is in use."""
    from python_fragmentation import measure

    from vramkit.lab.subjects import SUBJECTS

    measured = row("direct")
    measure(measured, SUBJECTS["direct"], driver.device(), 3 << 30, 2 << 30)
    assert measured.details["served"] == 5
    assert measured.details["held_over_in_use"] == pytest.approx(1, abs=0.05)


@pytest.mark.sim_only
@pytest.mark.sim(data=False, capacity="8GiB")
def test_what_an_allocator_may_have_of_the_full_card_is_told_to_it(driver: Driver) -> None:
    from python_fragmentation import measure

    from vramkit.lab.subjects import SUBJECTS

    measured = row("pool")
    cap = 3 << 29
    measure(measured, SUBJECTS["pool"], driver.device(), cap, 2 << 30)
    assert 0.9 * cap < measured.details["most_card_bytes"] <= cap


def held(workload: str, allocator: str, in_use: float, mib: float | None):
    from rows import Row

    figures = {"taken_ahead_mib": 70_000.0}
    if mib is not None:
        figures = {"held_mib": mib, "held_over_in_use": mib / in_use}
    return Row(workload, allocator, "ns", median=1.0, details={"in_use_mib": in_use} | figures)


def test_held_over_in_use_has_a_row_a_workload_and_ours_first() -> None:
    from allocator_held import held_section

    rows = [
        held("pair", "rmm_async", 100, 110),
        held("pair", "rmm_pool", 100, None),
        held("pair", "vramkit", 1234.5, 2469),
        held("holes", "vramkit", 128, 129),
        row("torch", 5.0),
    ]
    table = [line for line in held_section(rows) if line.startswith("|")]
    assert table == [
        "| workload | in use | vramkit | rmm_async | rmm_pool |",
        "|---|---:|---:|---:|---:|",
        "| pair | 1,234 MiB | 2.00 | 1.10 | - |",
        "| holes | 128 MiB | 1.01 |  |  |",
    ]


def test_held_for_a_few_bytes_is_shown_in_mib() -> None:
    from allocator_held import held_section

    lines = held_section([held("multi_stream", "vramkit", 8 / 2**20, 32)])
    assert "| multi_stream | 8 B | 32 MiB |" in lines


def test_notes_only_where_the_table_needs_them() -> None:
    from allocator_held import AHEAD, IN_MIB, held_section

    plain, small = held("pair", "vramkit", 100, 110), held("few", "vramkit", 1, 2)
    ahead = held("pair", "rmm_pool", 100, None)
    assert not {AHEAD, IN_MIB} & set(held_section([plain]))
    assert held_section([plain, small])[-2:] == ["", IN_MIB]
    assert held_section([plain, ahead])[-2:] == ["", AHEAD]


def test_rows_without_the_figures_have_no_section() -> None:
    from allocator_held import held_section

    assert held_section([row("vramkit", 1.0), row("rmm_pool", 2.0)]) == []


def test_the_result_shows_held_memory() -> None:
    import allocators
    from allocator_table import Report, markdown

    result = msgspec.json.decode(allocators.DEFAULT_OUTPUT.read_bytes(), type=Report)
    result.rows = [held("pair", "vramkit", 100, 104)]
    shown = markdown(result)
    assert "## Held over in use" in shown
    assert "| pair | 100 MiB | 1.04 |" in shown


def test_large_pairs_on_raw_handles_have_a_goal() -> None:
    from allocator_goals import GOALS, judge
    from rows import Row

    (goal,) = [g for g in GOALS if (g.workload, g.allocator) == ("pair/large/16", "vramkit_raw")]
    for median, met in ((1000.0, True), (1001.0, False)):
        assert judge(goal, [Row(goal.workload, "vramkit_raw", "ns", median=median)]).met is met
