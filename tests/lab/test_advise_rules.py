"""Advice from figures whose right answer is known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramkit.lab.advise.observed import Observed, Timing, lasting_bytes, timing_of
from vramkit.lab.advise.rules import (
    CONTEXT_BYTES,
    IDLE,
    NOTICED,
    TRUSTED,
    Advice,
    Card,
    Pooled,
    advise,
)
from vramkit.lab.traces import TraceBuilder

GIB = 1 << 30
CARD = Card("a card of 24 GiB", 24 * GIB, 25e9, 100e-6, 50e-6)


def observed(
    *,
    peak: int = 10 * GIB,
    lasting: int = 4 * GIB,
    held: int | None = None,
    timing: Timing | None = None,
    level: str = "tensors",
) -> Observed:
    return Observed("a program", level, 1000, peak, lasting, held, timing)  # type: ignore[arg-type]


def timing(*, seconds: float = 100, idle: float = 0, calls: int = 0) -> Timing:
    return Timing(seconds, idle, calls, 0, 0, 1_000)


def of(topic: str, given: list[Advice]) -> list[Advice]:
    return [advice for advice in given if advice.topic == topic]


def only(topic: str, given: list[Advice]) -> Advice:
    (advice,) = of(topic, given)
    return advice


def value(advice: Advice, what: str) -> float:
    return next(prediction.value for prediction in advice.predicted if prediction.what == what)


def test_a_pool_that_holds_less_is_advised_with_what_it_saves():
    advice = advise(observed(held=16 * GIB), CARD, Pooled(11 * GIB))
    first = advice[0]
    assert (first.topic, first.verdict) == ("allocator", "do")
    assert value(first, "held by the pool") == 11 * GIB
    assert value(first, "less than now") == 5 * GIB
    assert first.check


@pytest.mark.parametrize("part", [0.8, 1.0, 1 / (1 - TRUSTED) - 1e-6])
def test_no_allocator_is_advised_for_a_difference_that_a_replay_cannot_tell(part):
    """Less, the same, and more by just what a replay may be off."""
    pooled = 10 * GIB
    found = advise(observed(held=int(pooled * part)), CARD, Pooled(pooled))
    assert {advice.verdict for advice in of("allocator", found)} == {"no need", "cannot say"}


def test_without_what_the_program_held_nothing_is_said_of_the_difference():
    found = of("allocator", advise(observed(), CARD, Pooled(11 * GIB)))
    assert {advice.verdict for advice in found} == {"cannot say"}


def test_what_the_driver_was_asked_for_says_nothing_of_tensors():
    """A replay of a pool's own pieces would call any pool perfect."""
    found = advise(observed(level="driver", held=10 * GIB), CARD, Pooled(10 * GIB))
    memory = [advice for advice in of("allocator", found) if "divides" in advice.text]
    assert [advice.verdict for advice in memory] == ["cannot say"]
    assert any("snapshot" in line for line in memory[0].check)


@pytest.mark.parametrize(
    ("calls", "verdict"), [(0, "no need"), (9_900, "no need"), (10_100, "consider")]
)
def test_allocation_time_counts_from_one_per_cent_on(calls, verdict):
    """10,000 calls of 100 us are 1 % of 100 s."""
    found = advise(observed(timing=timing(calls=calls)), CARD, Pooled(11 * GIB))
    advice = next(each for each in of("allocator", found) if "of the run" in each.text)
    assert advice.verdict == verdict
    assert value(advice, "saved of the run") == pytest.approx(calls * 1e-6)


def test_frees_count_as_calls_too():
    """50 us each."""
    seen = observed(timing=Timing(100, 0, 0, 20_000, 0, 1_000))
    advice = next(
        each
        for each in of("allocator", advise(seen, CARD, Pooled(11 * GIB)))
        if "of the run" in each.text
    )
    assert value(advice, "saved of the run") == pytest.approx(0.01)


def test_what_a_pool_holds_beside_what_is_in_use_is_not_there_for_weights():
    """Of 30 GiB in use 20 last; the pool holds a tenth more, also of what comes and goes."""
    program = observed(peak=30 * GIB, lasting=20 * GIB)
    offload = only("offload", advise(program, CARD, Pooled(33 * GIB)))
    streamed = 20 * GIB - (CARD.room - 11 * GIB)
    assert value(offload, "streamed in each pass") == pytest.approx(streamed)


def test_waits_of_frees_are_told_beside_what_calls_take():
    """They have no bound: the figure is called what it is."""
    seen = observed(timing=Timing(100, 0, 10_100, 10_100, 70, 1_000))
    advice = next(
        each
        for each in of("allocator", advise(seen, CARD, Pooled(11 * GIB)))
        if "of the run" in each.text
    )
    assert "70 frees came while kernels may have been running" in advice.text
    assert [each.what for each in advice.predicted] == ["saved of the run, without waits"]
    assert [each.key for each in advice.predicted] == ["saved"]


def test_calls_that_would_take_longer_than_the_whole_run_say_nothing():
    found = advise(observed(timing=timing(seconds=1, calls=1_000_000)), CARD, Pooled(11 * GIB))
    advice = next(each for each in of("allocator", found) if "whole run" in each.text)
    assert (advice.verdict, advice.predicted) == ("cannot say", [])


def test_a_program_that_fits_needs_neither_offload_nor_a_smaller_batch():
    found = advise(observed(), CARD, Pooled(11 * GIB))
    assert only("card", found).verdict == "no need"
    assert not of("offload", found) and not of("batch", found)


def test_a_program_that_only_just_fits_is_not_called_sure():
    held = CARD.room - 1
    found = advise(observed(peak=held, held=None), CARD, Pooled(held))
    assert only("card", found).verdict == "consider"


@pytest.mark.parametrize(("room", "size"), [(8 * GIB, "8GiB"), (17 * GIB // 2, "8704MiB")])
def test_the_command_that_checks_it_has_the_card_without_its_context(room, size):
    """A simulated card has none."""
    card = Card("a card", room + CONTEXT_BYTES, 25e9, 100e-6, 50e-6)
    (advice,) = of("card", advise(observed(), card, Pooled(11 * GIB)))
    assert advice.check == [f"vramkit replay TRACE --card {size}  # without the context"]


def test_a_pool_that_holds_less_on_the_card_than_where_there_is_room_fits():
    found = advise(observed(), CARD, Pooled(30 * GIB, 20 * GIB))
    card = only("card", found)
    assert card.verdict == "no need"
    assert value(card, "memory of the card") == 20 * GIB + CONTEXT_BYTES
    assert not of("offload", found) and not of("batch", found)


def test_what_the_pool_needs_is_not_claimed_where_it_was_not_found():
    """10 GiB in use, 30 held with room, and out of memory with the card's: between the two."""
    card = only("card", advise(observed(), CARD, Pooled(30 * GIB)))
    assert card.verdict == "do"
    assert "with room the pool holds 30" in card.text
    (predicted,) = card.predicted
    assert (predicted.bound, predicted.value) == ("at least", CARD.nbytes)


def test_weights_that_do_not_fit_are_streamed_within_what_is_left():
    """30 GiB of weights and 10 GiB that come and go, on 24 GiB."""
    program = observed(peak=40 * GIB, lasting=30 * GIB)
    found = advise(program, CARD, Pooled(40 * GIB))
    assert only("card", found).verdict == "do"
    offload = only("offload", found)
    streamed = 30 * GIB - (CARD.room - 10 * GIB)
    assert value(offload, "streamed in each pass") == streamed
    assert value(offload, "time of a pass") == pytest.approx(streamed / 25e9)
    assert not of("batch", found), "weights alone exceed the card: no batch is small enough"


def test_a_batch_that_is_too_large_is_advised_smaller():
    """4 GiB last and 36 GiB come and go: 19.4 GiB are left for them."""
    program = observed(peak=40 * GIB, lasting=4 * GIB)
    found = advise(program, CARD, Pooled(40 * GIB))
    assert only("offload", found).verdict == "cannot say"
    batch = only("batch", found)
    assert value(batch, "of today's batch") == pytest.approx((CARD.room - 4 * GIB) / (36 * GIB))


def test_what_the_pool_does_not_serve_at_all_does_not_fit():
    found = advise(observed(peak=40 * GIB, lasting=30 * GIB), CARD, None)
    card = only("card", found)
    assert card.verdict == "do"
    assert card.predicted[0].bound == "at least"


@pytest.mark.parametrize(("idle", "verdict"), [(9.9, "no need"), (10.1, "consider")])
def test_sharing_needs_a_card_that_is_idle_for_certain(idle, verdict):
    found = advise(observed(timing=timing(idle=idle)), CARD, Pooled(11 * GIB))
    assert only("sharing", found).verdict == verdict


def test_two_programs_that_do_not_fit_together_take_turns():
    found = advise(observed(timing=timing(idle=50)), CARD, Pooled(13 * GIB))
    sharing = only("sharing", found)
    short = 2 * (13 * GIB + CONTEXT_BYTES) - 24 * GIB
    assert value(sharing, "time of a switch") == pytest.approx(short / 25e9)
    beside = only("sharing", advise(observed(timing=timing(idle=50)), CARD, Pooled(10 * GIB)))
    assert "room for two" in beside.text


sizes = st.integers(1, 1 << 38)


@given(
    sizes,
    sizes,
    st.one_of(st.none(), sizes),
    st.one_of(st.none(), sizes),
    st.one_of(st.none(), st.floats(0, 1e6)),
    st.sampled_from(["tensors", "driver"]),
)
def test_any_figures_give_whole_advice(peak, lasting, held, pooled, seconds, level):
    """Every piece of advice has a reason; what is to be done can be checked; shares are shares."""
    when = None if seconds is None else Timing(seconds, seconds / 2, 10, 10, 5, 10)
    program = observed(peak=peak, lasting=min(lasting, peak), held=held, timing=when, level=level)
    found = advise(program, CARD, None if pooled is None else Pooled(max(pooled, peak)))
    assert {"allocator", "card", "sharing"} <= {advice.topic for advice in found}
    for advice in found:
        assert advice.text and advice.rule
        assert advice.check or advice.verdict not in ("do", "consider")
        for prediction in advice.predicted:
            assert prediction.value >= 0
            assert prediction.unit != "share" or prediction.value <= 1
    order = ["do", "consider", "no need", "cannot say"]
    ranks = [order.index(advice.verdict) for advice in found]
    assert ranks == sorted(ranks)


def test_what_lasts_is_the_least_in_use_between_start_and_end():
    build = TraceBuilder("steps", "plain")
    weights = range(10)
    for block in weights:
        build.allocate(block, 100)
    for _ in range(20):
        for block in range(100, 105):
            build.allocate(block, 7)
        for block in range(100, 105):
            build.free(block)
    for block in weights:
        build.free(block)
    trace = build.build()
    assert trace.peak_in_use == 1035
    assert lasting_bytes(trace) == 1000


def test_a_program_without_a_steady_state_has_little_that_lasts():
    build = TraceBuilder("up and down", "plain")
    for _ in range(10):
        build.allocate("block", 100)
        build.free("block")
    assert lasting_bytes(build.build()) == 0


def busy(*calls: tuple[object, ...]) -> Timing:
    """Of a recording of these calls, a millisecond apart."""
    build = TraceBuilder("recorded", "vramkit record", timed=True)
    for index, (name, *arguments) in enumerate(calls):
        getattr(build, str(name))(*arguments, at=index * 1_000_000)
    return timing_of(build.build())


def test_the_card_is_idle_from_the_end_of_all_work_to_the_next_launch():
    found = busy(
        ("allocate", "block", 100),
        ("launch", 3, "stream"),
        ("stream_done", "stream"),  # 2 ms
        ("free", "block"),
        ("allocate", "block", 100),
        ("launch", 1, "stream"),  # 5 ms
        ("device_done",),
        ("free", "block"),
    )
    assert found == Timing(7e-3, pytest.approx(3e-3), 1, 1, 0, 4)


def test_only_calls_that_a_pool_could_serve_from_what_was_freed_count():
    """Not the first allocations, nor the frees at the end; and which frees waited for kernels."""
    found = busy(
        *(("allocate", block, 100) for block in range(5)),
        ("launch", 1, "stream"),
        ("free", 0),
        ("device_done",),
        ("free", 1),
        ("allocate", 0, 100),
        ("launch", 1, "stream"),
        *(("free", block) for block in (0, 2, 3, 4)),
    )
    assert (found.allocations, found.frees, found.waiting_frees) == (1, 2, 1)


def test_work_on_another_stream_keeps_the_card_busy():
    found = busy(
        ("launch", 1, "one"),
        ("launch", 1, "other"),
        ("stream_done", "one"),
        ("launch", 1, "one"),
        ("device_done",),
    )
    assert found.idle_seconds == 0


def test_an_event_tells_only_of_what_was_launched_before_it():
    before = (("launch", 1, "stream"), ("record", "event", "stream"))
    done, launch = ("event_done", "event"), ("launch", 1, "stream")
    known = busy(*before, done, ("record", "later", "stream"), launch)
    assert known.idle_seconds == pytest.approx(2e-3)
    unknown = busy(*before, launch, done, launch)
    assert unknown.idle_seconds == 0


def test_before_the_first_launch_and_after_the_last_nothing_is_called_idle():
    found = busy(
        ("device_done",),
        ("allocate", "block", 100),
        ("launch", 1, "stream"),
        ("device_done",),
        ("free", "block"),
    )
    assert found.idle_seconds == 0


def test_the_thresholds_are_those_of_the_documentation():
    assert (NOTICED, TRUSTED, IDLE) == (0.01, 0.05, 0.10)
