"""Who is awaited after a restart of the daemon, by a clock of the test."""

from __future__ import annotations

import math

from vramkit.share.daemon.returning import (
    DEVICE_SECONDS,
    RETURN_SECONDS,
    Process,
    Returning,
    is_there,
    start_ticks,
)

FIRST, SECOND = (100, 7), (200, 8)


def there(process: Process) -> bool:
    return True


def test_nobody_is_awaited_without_programs_of_before() -> None:
    assert Returning().is_over(5.0, there)
    assert Returning.of([], 5.0).is_over(5.0, there)


def test_it_is_over_when_all_are_back_and_had_time_to_say_what_they_hold() -> None:
    returning = Returning.of([FIRST, SECOND], 10.0)
    returning.came_back(FIRST, 10.1)
    assert not returning.is_over(10.1 + DEVICE_SECONDS, there)
    returning.came_back(SECOND, 10.5)
    assert not returning.is_over(10.5, there)
    assert returning.wake_at == 10.5 + DEVICE_SECONDS
    assert returning.is_over(returning.wake_at, there)


def test_who_does_not_come_back_is_awaited_for_a_bounded_time() -> None:
    returning = Returning.of([FIRST], 10.0)
    assert returning.wake_at == 10.0 + RETURN_SECONDS
    assert not returning.is_over(math.nextafter(returning.wake_at, 0), there)
    assert returning.is_over(returning.wake_at, there)


def test_those_who_come_late_and_again_and_again_do_not_lengthen_it() -> None:
    returning = Returning.of([FIRST, SECOND], 10.0)
    for step in range(30):
        returning.came_back(SECOND, 10.0 + step / 10)
    assert returning.wake_at == 10.0 + RETURN_SECONDS
    assert returning.is_over(10.0 + RETURN_SECONDS, there)


def test_who_has_ended_is_not_awaited() -> None:
    returning = Returning.of([FIRST, SECOND], 10.0)
    assert not returning.is_over(10.1, lambda process: process == SECOND)
    returning.came_back(SECOND, 10.2)
    assert returning.is_over(10.2 + DEVICE_SECONDS, there)


def test_a_later_process_with_the_same_number_is_another() -> None:
    ticks = start_ticks(1)
    assert ticks is not None
    assert is_there((1, ticks)) and not is_there((1, ticks + 1))
    assert start_ticks(1 << 22) is None
