"""Whose turn it is, by a simulated clock: each rule by itself, then all of them under chance."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from soak import rounds

from vramkit.share.policy import OutOfOrderError, Phase, PolicySettings
from vramkit.share.protocol import Evict, Fill, Grant, Prepare, Start, Stop

from .simulation import Worker, World

GIB = 1 << 30


def two(
    budget: int = 20, sizes: tuple[int, int] = (12, 12), **options: object
) -> tuple[World, Worker, Worker]:
    world = World({0: budget * GIB}, PolicySettings(**options))  # type: ignore[arg-type]
    first, second = (
        world.add(Worker(world, number + 1, {0: size * GIB})) for number, size in enumerate(sizes)
    )
    return world, first, second


def test_programs_that_fit_run_together_and_are_never_stopped() -> None:
    world, first, second = two(sizes=(8, 12))
    world.run(until=1000)
    assert (first.ran, second.ran) == (1000, 1000)
    assert world.stops() == 0
    assert not [message for _, _, message in world.sent if isinstance(message, (Evict, Prepare))]


def test_programs_that_do_not_fit_take_turns_of_a_quantum() -> None:
    world, first, second = two()
    world.run(until=600)
    starts = [at for at, _, message in world.sent if isinstance(message, Start)]
    assert starts[0] == 0
    for before, after in itertools.pairwise(starts[1:]):
        assert after - before == pytest.approx(30, abs=0.5)
    assert first.ran == pytest.approx(300, abs=31)
    assert first.ran + second.ran == pytest.approx(600, abs=5)


def test_the_shortfall_leaves_and_no_more() -> None:
    world, _, _ = two()
    world.run(until=600)
    evictions = [message.bytes for _, _, message in world.sent if isinstance(message, Evict)]
    assert set(evictions) == {4 * GIB}


def prepared(world: World) -> list[tuple[int, int]]:
    return [
        (client, message.bytes) for _, client, message in world.sent if isinstance(message, Prepare)
    ]


def test_host_memory_is_prepared_before_anything_moves() -> None:
    """By both, once: what leaves is either one's. The first Stop comes with the end of a turn."""
    world, _, _ = two()
    world.run(until=29)
    assert prepared(world) == [(1, 4 * GIB), (2, 4 * GIB)]
    assert world.stops() == 0
    world.run(until=600)
    assert world.stops() > 1 and len(prepared(world)) == 2


def test_more_host_memory_is_prepared_when_more_may_have_to_move() -> None:
    world, first, _ = two(sizes=(8, 12))
    world.run(until=10)
    assert prepared(world) == []
    first.allocate(0, 2 * GIB)
    world.settle()
    assert prepared(world) == [(1, 2 * GIB), (2, 2 * GIB)]
    world.add(Worker(world, 3, {0: 3 * GIB}))
    world.settle()
    assert prepared(world)[2:] == [(1, 5 * GIB), (2, 5 * GIB), (3, 3 * GIB)]


def test_nobody_is_stopped_while_nobody_waits() -> None:
    world = World({0: 16 * GIB})
    worker = world.add(Worker(world, 1, {0: 12 * GIB}))
    world.run(until=500)
    assert (worker.ran, world.stops()) == (500, 0)
    # Its quantum is long over: who comes now has the card at once.
    late = world.add(Worker(world, 2, {0: 12 * GIB}))
    world.run(until=501)
    assert world.phase(late) is Phase.RUNNING


def test_a_quantum_that_has_begun_is_finished() -> None:
    world, first, second = two()
    world.run(until=20)
    assert world.phase(first) is Phase.RUNNING
    assert world.phase(second) is Phase.STOPPED or second.ran == 0 or world.stops() == 1


def test_who_cannot_stop_yet_gets_what_it_allocates() -> None:
    """Within a capture: from the one that waits for the turn, and not before it is known to be
    more than launches in flight."""
    world, first, second = two()
    first.yields = False
    world.run(until=30)
    assert world.phase(first) is Phase.STOPPING
    first.allocate(0, 2 * GIB)
    world.settle()
    world.run(until=30.2)
    assert first.memory[0].pending == 2 * GIB
    moved = second.evicted
    world.run(until=31)
    assert (first.memory[0].pending, second.evicted - moved) == (0, 2 * GIB)
    # Passed over meanwhile. When it stops, the other one has its turn, with all its memory.
    first.yields = True
    world.run(until=100)
    assert second.ran > 20


def test_who_is_about_to_stop_makes_nobody_move_out() -> None:
    world, first, second = two()
    world.run(until=29.9)
    first.frozen = True  # for a moment: launches in flight
    world.run(until=30)
    assert world.phase(first) is Phase.STOPPING
    moved = second.evicted
    first.allocate(0, 2 * GIB)
    world.settle()
    world.run(until=30.1)
    world.thaw(first)
    world.settle()
    world.run(until=32)
    assert second.evicted == moved and world.phase(second) is Phase.RUNNING


def test_an_idle_program_is_stopped_at_once() -> None:
    world = World({0: 16 * GIB})
    interactive = world.add(Worker(world, 1, {0: 12 * GIB}, spell=5, pause=1000))
    world.run(until=6)
    other = world.add(Worker(world, 2, {0: 12 * GIB}))
    world.run(until=7)
    assert world.phase(interactive) is Phase.STOPPED
    assert other.ran == pytest.approx(1, abs=0.3)


def test_an_idle_program_keeps_its_memory_while_nobody_needs_it() -> None:
    world = World({0: 24 * GIB})
    interactive = world.add(Worker(world, 1, {0: 12 * GIB}, spell=1, pause=1))
    world.add(Worker(world, 2, {0: 12 * GIB}))
    world.run(until=100)
    assert world.stops() == 0
    assert interactive.ran == pytest.approx(50, abs=2)


@pytest.mark.parametrize("weights", [(1, 1), (2, 1), (1, 3), (5, 2)])
def test_shares_of_time_converge_to_weights(weights: tuple[int, int]) -> None:
    world = World({0: 16 * GIB}, PolicySettings(quantum=2))
    workers = [
        world.add(Worker(world, number, {0: 12 * GIB}), weight=weight)
        for number, weight in enumerate(weights, 1)
    ]
    world.run(until=500)
    for worker, weight in zip(workers, weights, strict=True):
        assert worker.ran / 500 == pytest.approx(weight / sum(weights), abs=0.06)


def test_a_higher_priority_has_the_card_when_it_wants_it() -> None:
    world = World({0: 16 * GIB})
    batch = world.add(Worker(world, 1, {0: 12 * GIB}))
    urgent = world.add(Worker(world, 2, {0: 12 * GIB}, spell=4, pause=6), priority=5)
    world.run(until=1000)
    assert urgent.ran == pytest.approx(400, rel=0.1)
    assert batch.ran == pytest.approx(600, rel=0.1)


def test_a_small_program_runs_beside_each_turn_of_the_large_ones() -> None:
    world = World({0: 16 * GIB})
    first, second = (world.add(Worker(world, number, {0: 12 * GIB})) for number in (1, 2))
    small = world.add(Worker(world, 3, {0: 2 * GIB}))
    world.run(until=1000)
    assert small.ran > 900
    assert first.ran == pytest.approx(500, abs=40)
    assert second.ran == pytest.approx(500, abs=40)


def test_small_programs_do_not_keep_a_large_one_waiting() -> None:
    world = World({0: 16 * GIB})
    large = world.add(Worker(world, 1, {0: 16 * GIB}))
    small = [world.add(Worker(world, n, {0: 4 * GIB}, spell=n, pause=1)) for n in range(2, 10)]
    world.run(until=800)
    assert large.ran > 50
    assert min(each.ran for each in small) > 50


def test_nobody_is_started_for_the_last_moments_of_a_turn() -> None:
    world = World({0: 16 * GIB})
    world.add(Worker(world, 1, {0: 12 * GIB}))
    world.scheduler.programs[1].turn_end = 30
    world.add(Worker(world, 2, {0: 12 * GIB}))
    world.run(until=29.5)
    small = world.add(Worker(world, 3, {0: 2 * GIB}))
    world.run(until=29.9)
    assert world.phase(small) is Phase.STOPPED
    world.run(until=31)
    assert world.phase(small) is Phase.RUNNING


def test_a_job_on_two_cards_has_its_turn_on_both() -> None:
    world = World({0: 16 * GIB, 1: 16 * GIB})
    both = [world.add(Worker(world, n, {0: 12 * GIB, 1: 12 * GIB})) for n in (1, 2)]
    single = world.add(Worker(world, 3, {1: 12 * GIB}))
    world.run(until=2000)
    assert all(each.ran > 400 for each in both)
    assert single.ran > 400


def test_room_is_filled_ahead_for_the_next() -> None:
    world = World({0: 20 * GIB})
    world.add(Worker(world, 1, {0: 12 * GIB}))
    second = Worker(world, 2, {0: 12 * GIB})
    # It is there while the first one is within its turn.
    world.scheduler.programs[1].turn_end = 30
    world.add(second)
    world.run(until=20)
    fills = [client for _, client, message in world.sent if isinstance(message, Fill)]
    assert fills == [2]
    assert second.memory[0].resident == 8 * GIB
    world.run(until=31)
    assert world.phase(world.workers[2]) is Phase.RUNNING


def test_an_adaptive_quantum_keeps_switches_under_their_share() -> None:
    world = World(
        {0: 16 * GIB}, PolicySettings(quantum=None, switch_share=0.05), chunk_seconds=0.04
    )
    workers = [world.add(Worker(world, n, {0: 12 * GIB})) for n in (1, 2)]
    world.run(until=1000)
    measured = world.scheduler.quantum.switch_seconds
    assert measured == pytest.approx(1.28, rel=0.1)  # 8 GiB in chunks of 256 MiB, 40 ms each
    assert sum(each.ran for each in workers) > 940
    assert world.stops() > 30


def test_a_program_that_never_stops_is_passed_over_and_reported() -> None:
    world = World({0: 20 * GIB})
    stubborn = world.add(Worker(world, 1, {0: 12 * GIB}, yields=False))
    waiting = world.add(Worker(world, 2, {0: 12 * GIB}))
    beside = world.add(Worker(world, 3, {0: 6 * GIB}))
    world.run(until=300)
    assert world.scheduler.programs[1].passed_over >= 2
    assert (1, "did not stop within 10 s, and was passed over") in world.reports
    assert world.phase(stubborn) in (Phase.RUNNING, Phase.STOPPING)
    assert waiting.ran == 0 and beside.ran > 150
    world.end(stubborn)
    world.settle()
    world.run(until=400)
    assert waiting.ran > 60


def test_an_allocation_that_does_not_fit_now_waits_for_its_turn() -> None:
    world, first, second = two(sizes=(8, 8))
    world.run(until=10)
    first.allocate(0, 8 * GIB)
    world.settle()
    world.run(until=200)
    assert first.memory[0].pending == 0
    assert first.memory[0].size == 16 * GIB
    assert first.ran > 60 and second.ran > 60


def test_a_stopped_program_says_all_that_it_needs() -> None:
    world, first, second = two(sizes=(12, 12))
    world.run(until=10)
    waiting = second if first.running else first
    waiting.memory[0].pending = 3 * GIB
    waiting.tell_usage()
    waiting.ask(0)
    world.settle()
    world.run(until=100)
    assert waiting.memory[0].pending == 0
    assert waiting.memory[0].size == 15 * GIB


@pytest.mark.parametrize("latency", [0.0, 0.01, 1.0])
def test_a_need_that_crosses_a_grant_changes_nothing(latency: float) -> None:
    """It is said while nothing has arrived; the grant is on its way meanwhile."""
    world = World({0: 16 * GIB}, latency=latency)
    worker = world.add(Worker(world, 1, {0: 8 * GIB}))
    worker.allocate(0, 2 * GIB)
    world.settle()
    world.run(until=10)
    assert worker.running and worker.memory[0].resident == 10 * GIB
    assert world.ledger.cards[0].held == 10 * GIB
    grants = [message.bytes for _, _, message in world.sent if isinstance(message, Grant)]
    assert sum(grants) == 10 * GIB


def test_a_need_that_crosses_the_end_of_a_source_is_met() -> None:
    """What the taker counts on while it says its need comes to nothing: it is stopped before the
    giver has moved anything."""
    world, first, second = two()
    world.run(until=10)
    taker, giver = (second, first) if first.running else (first, second)
    taker.memory[0].pending = 3 * GIB
    taker.tell_usage()
    taker.ask(0)
    world.settle()
    world.latency = 0.01
    while not giver.evicting:
        world.step()
    giver.frozen = True
    while world.phase(taker) is not Phase.STOPPED:
        world.step()
    world.thaw(giver)
    while not taker.open:
        world.step()
    world.run(until=world.now + 3)
    assert taker.running and taker.memory[0].resident == 15 * GIB


def test_a_need_that_is_met_is_taken_back() -> None:
    """Memory that is freed later is not granted again."""
    world = World({0: 16 * GIB})
    worker = world.add(Worker(world, 1, {0: 8 * GIB}))
    worker.allocate(0, 4 * GIB)
    world.settle()
    world.run(until=1)
    assert worker.memory[0].resident == 12 * GIB
    worker.free(0, 6 * GIB)
    worker.tell_usage()
    world.settle()
    world.run(until=2)
    assert world.ledger.cards[0].held == 6 * GIB


def test_who_needs_more_than_there_is_is_told_so_and_holds_nobody_up() -> None:
    world = World({0: 16 * GIB})
    greedy = world.add(Worker(world, 1, {0: 8 * GIB}))
    other = world.add(Worker(world, 2, {0: 8 * GIB}))
    world.run(until=1)
    greedy.allocate(0, 1 << 50)
    world.settle()
    world.run(until=40)
    assert world.scheduler.programs[1].blocked and not greedy.running
    assert (1, "waits for memory that does not become free") in world.reports
    assert other.ran == pytest.approx(40)
    assert not [
        message for _, client, message in world.sent if client == 2 and isinstance(message, Stop)
    ]


def test_memory_that_is_freed_lets_both_run() -> None:
    world, first, second = two()
    world.run(until=100)
    runner = first if first.running else second
    runner.free(0, 6 * GIB)
    runner.tell_usage()
    world.settle()
    before = world.stops()
    world.run(until=400)
    assert world.stops() - before == 0
    assert first.running and second.running


def test_memory_that_cannot_move_blocks_only_those_it_must() -> None:
    world = World({0: 16 * GIB})
    world.add(Worker(world, 1, {0: 2 * GIB}, unswappable=4 * GIB, spell=10, pause=10**6))
    large = world.add(Worker(world, 2, {0: 14 * GIB}))
    fits = world.add(Worker(world, 3, {0: 8 * GIB}))
    world.run(until=100)
    assert large.ran == 0 and fits.ran == pytest.approx(100)
    assert world.scheduler.programs[2].blocked
    assert (2, "waits for memory that does not become free") in world.reports


def test_a_client_that_does_not_answer_in_mid_eviction_holds_up_only_its_memory() -> None:
    world, first, second = two(sizes=(12, 12))
    small = world.add(Worker(world, 3, {0: 3 * GIB}))
    world.run(until=30)
    victim = first if first.running else second
    while not victim.evicting:
        world.step()
    victim.frozen = True
    world.run(until=150)
    assert small.running
    assert any("does not go on" in text for _, text in world.reports)
    world.thaw(victim)
    world.settle()
    ran = second.ran, first.ran
    world.run(until=400)
    assert second.ran > ran[0] and first.ran > ran[1]


def test_a_smaller_budget_moves_memory_out_as_soon_as_it_can() -> None:
    world, first, second = two(budget=24)
    world.run(until=10)
    card = world.ledger.cards[0]
    card.budget = 16 * GIB
    world.check = lambda: None  # type: ignore[method-assign]
    world.settle()
    world.run(until=20)
    assert card.held <= card.budget
    world.run(until=200)
    assert first.ran > 60 and second.ran > 60


def test_exclusive_runs_one_program_at_a_time() -> None:
    world, first, second = two(sizes=(4, 4), policy="exclusive")
    world.run(until=600)
    assert first.ran + second.ran == pytest.approx(600, abs=1)
    assert first.ran == pytest.approx(300, abs=31)
    assert not [message for _, _, message in world.sent if isinstance(message, Evict)]


def test_a_turn_that_was_never_given_is_out_of_order() -> None:
    world, _, _ = two()
    with pytest.raises(OutOfOrderError, match="no turn 99"):
        world.scheduler.stopped(1, 99, world.now)
    with pytest.raises(OutOfOrderError, match="nothing was to be moved"):
        world.scheduler.moved(1, 0, 0, 5, world.now)
    with pytest.raises(OutOfOrderError, match="card 7"):
        world.scheduler.need(1, 7, 5, world.now)


# Under chance


@given(st.lists(st.integers(0, 40), min_size=1, max_size=rounds(10, 64)), st.integers(0, 10))
@settings(max_examples=rounds(40, 2000))
def test_while_all_fit_nothing_is_ever_stopped_or_moved(sizes: list[int], room: int) -> None:
    budget = (sum(sizes) + room) << 28
    world = World({0: budget, 1: budget}, PolicySettings(quantum=0.5))
    for number, size in enumerate(sizes, 1):
        used = {0: size << 28, 1: size << 28} if number % 3 == 0 else {number % 2: size << 28}
        spell = 0.7 if number % 2 else float("inf")
        world.add(Worker(world, number, used, work=2 + number / 10, spell=spell, pause=0.4))
    world.run()
    assert not world.workers
    assert not [each for _, _, each in world.sent if isinstance(each, (Stop, Evict, Fill))]


@given(st.lists(st.integers(1, 48), min_size=2, max_size=6), st.integers(48, 96))
@settings(max_examples=rounds(40, 2000))
def test_never_more_than_the_shortfall_moves(sizes: list[int], budget: int) -> None:
    world = World({0: budget << 28}, PolicySettings(quantum=1.0))
    world.strict = True
    for number, size in enumerate(sizes, 1):
        world.add(Worker(world, number, {0: size << 28}, work=6.0))
    world.run()
    assert not world.workers


@st.composite
def worlds(draw: st.DrawFn) -> World:
    cards = draw(st.integers(1, 4))
    budget = draw(st.integers(8, 24))
    quantum = draw(st.sampled_from([None, 0.5, 3.0, 30.0]))
    world = World(
        {card: budget * GIB for card in range(cards)},
        PolicySettings(quantum=quantum, patience=5),
        chunk=1 << 28,
        chunk_seconds=draw(st.sampled_from([0.0, 0.004, 0.02])),
        latency=draw(st.sampled_from([0.0, 0.0, 0.003, 0.05])),
    )
    for number in range(1, draw(st.integers(1, rounds(8, 64))) + 1):
        used = draw(st.sets(st.integers(0, cards - 1), min_size=1))
        worker = Worker(
            world,
            number,
            {card: draw(st.integers(0, budget * 4)) * GIB // 4 for card in sorted(used)},
            work=draw(st.floats(0.1, 20)),
            spell=draw(st.sampled_from([0.3, 2.0, float("inf")])),
            pause=draw(st.sampled_from([0.0, 0.5, 20.0])),
        )
        world.add(
            worker, draw(st.sampled_from([0.5, 1, 3])), draw(st.sampled_from([0, 0, 0, 1, -2]))
        )
    return world


@given(worlds())
@settings(max_examples=rounds(25, 3000))
def test_everybody_finishes_whatever_the_mixture(world: World) -> None:
    world.run()
    left = {worker.number: worker.work for worker in world.workers.values()}
    assert not left, left
    assert all(card.free == card.budget for card in world.ledger.cards.values())


@given(worlds(), st.data())
@settings(max_examples=rounds(25, 3000))
def test_deaths_and_allocations_at_any_moment_stop_nobody_else(
    world: World, data: st.DataObject
) -> None:
    for _ in range(data.draw(st.integers(0, 12))):
        for _ in range(data.draw(st.integers(0, 60))):
            world.step()
        if not world.workers:
            break
        worker = world.workers[data.draw(st.sampled_from(sorted(world.workers)))]
        what = data.draw(st.sampled_from(["end", "allocate", "free", "freeze", "thaw"]))
        card = min(worker.memory)
        memory = worker.memory[card]
        if what == "end":
            world.end(worker)
        elif what == "freeze":
            worker.frozen = True
        elif what == "thaw":
            world.thaw(worker)
        elif worker.running and not worker.frozen and not memory.pending:
            if what == "free":
                worker.free(card, data.draw(st.integers(0, 8)) * GIB)
                worker.tell_usage()
            else:
                room = world.ledger.cards[card].budget - memory.size
                worker.allocate(card, data.draw(st.integers(0, room >> 28)) << 28)
        world.settle()
    for worker in list(world.workers.values()):
        world.thaw(worker)
    world.settle()
    world.run()
    assert not world.workers
    assert all(card.free == card.budget for card in world.ledger.cards.values())


@given(st.lists(st.integers(1, 8), min_size=2, max_size=4), st.sampled_from([1.0, 5.0]))
@settings(max_examples=rounds(10, 300))
def test_any_weights_have_their_shares(weights: list[int], quantum: float) -> None:
    world = World({0: 16 * GIB}, PolicySettings(quantum=quantum))
    workers = [
        world.add(Worker(world, number, {0: 12 * GIB}), weight=weight)
        for number, weight in enumerate(weights, 1)
    ]
    whole = 150 * quantum
    world.run(until=whole)
    for worker, weight in zip(workers, weights, strict=True):
        assert worker.ran / whole == pytest.approx(weight / sum(weights), abs=0.08)
