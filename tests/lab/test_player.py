"""The players: order, times, held memory, and what is left after a failure."""

from __future__ import annotations

import pytest

from lab.support import MIB, Noted, Plain, handed_over, pairs
from vramkit import Pool
from vramkit.driver import Device, Driver, OutOfMemoryError
from vramkit.lab.player import play
from vramkit.lab.program import ProgramBuilder


@pytest.fixture
def device(driver: Driver) -> Device:
    return driver.device()


@pytest.mark.sim_only
def test_times_are_split_by_what_the_host_did(device: Device) -> None:
    with Pool(device=device, background=False) as pool:
        all_of_it = play(pairs(10), Plain(pool), device).section("all")
    assert (all_of_it.allocations, all_of_it.frees, all_of_it.launches) == (10, 10, 20)
    parts = all_of_it.allocate_ns + all_of_it.free_ns + all_of_it.launch_ns + all_of_it.wait_ns
    assert all_of_it.wall_ns == pytest.approx(parts + all_of_it.host_ns)
    assert all_of_it.launch_ns > 0
    assert all_of_it.wait_ns > 0


@pytest.mark.sim_only
def test_held_memory_is_peak_average_and_end(device: Device) -> None:
    with Pool(device=device, background=False) as pool:
        played = play(pairs(10), Plain(pool), device, measure="memory")
    assert played.peak_in_use == MIB
    assert played.peak_held is not None and played.average_held is not None
    assert MIB <= played.average_held <= played.peak_held
    assert played.end_held == played.peak_held


@pytest.mark.parametrize("in_turns", [True, False])
@pytest.mark.parametrize("raw_streams", [True, False])
def test_threads_hand_blocks_over(device: Device, in_turns: bool, raw_streams: bool) -> None:
    with Pool(device=device, background=False) as pool:
        program = handed_over(50, in_turns=in_turns, threads=3)
        played = play(program, Plain(pool), device, raw_streams=raw_streams)
    assert played.total.allocations == played.total.frees == played.total.launches == 50


def test_threads_in_turns_keep_the_order_of_the_steps(device: Device) -> None:
    builder = ProgramBuilder("turns", in_turns=True)
    blocks = [builder.allocate(size, thread=size % 3) for size in range(1, 40)]
    for block in blocks:
        builder.free(block, thread=block % 4)
    noted = Noted(device)
    play(builder.build(), noted, device)
    sizes = list(range(1, 40))
    assert noted.calls == [("allocate", n) for n in sizes] + [("free", n) for n in sizes]


def test_a_failure_frees_everything_and_says_the_step(device: Device) -> None:
    builder = ProgramBuilder("short")
    for size in (100, 200, 300):
        builder.allocate(size)
    builder.free_all()
    noted = Noted(device, fail_at=2)
    with pytest.raises(OutOfMemoryError, match=r"step 2 of 'short'.*ALLOCATE 2 \(300 bytes\)"):
        play(builder.build(), noted, device)
    assert not noted.live
