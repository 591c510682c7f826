"""Recorded programs: the pool holds hardly more than they use. See tests/data/README.md."""

from __future__ import annotations

from array import array
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from lab.played import stats_of

from vramkit.driver import Device
from vramkit.lab.program import Program
from vramkit.lab.traces import Trace, read_traces
from vramkit.lab.traces.programs import as_program, dealt

pytestmark = [
    pytest.mark.sim_only,
    pytest.mark.sim(data=False, checker=False, capacity="140GiB"),
]

DATA = Path(__file__).resolve().parents[1] / "data"

# Peak held by PyTorch with expandable_segments on a card, in GB with two digits.
EXPANDABLE_GB = {
    "continuous_batching": 1.95,
    "llama_serve": 5.45,
    "llama_train": 10.23,
    "llama_train_checkpointed": 13.42,
    "lstm_text": 14.10,
    "resnet_train": 9.12,
    "segmentation_multiscale": 16.23,
}
ROUNDING_GB = 0.005
TRACES = sorted(EXPANDABLE_GB)

# Held / peak in use, at most; and held / what expandable_segments held.
MOST = dict.fromkeys(TRACES, 1.06) | {"continuous_batching": 1.12}
MOST_OF_EXPANDABLE = 1.02
# ... with the blocks dealt at random over 4 streams, and over 4 threads.
MOST_DEALT = dict.fromkeys(TRACES, 1.08) | {"continuous_batching": 1.17}
# The smaller ones, on two threads with turns of so many events.
TAKING_TURNS = ("continuous_batching", "lstm_text", "segmentation_multiscale")
TURN = 1000
EVENT_NS = 20_000
# A limit with which the trace still runs to its end, of what was held without one.
ROOM = 1.02


@cache
def recorded(name: str) -> Trace:
    (trace,) = read_traces(DATA / f"{name}.csv.gz")
    return trace


@cache
def without_work(name: str) -> Program:
    return as_program(recorded(name), kernel_ns=0)


_without_limit: dict[str, int] = {}


def held(name: str, device: Device) -> int:
    """Played once in this process: every fresh simulated GPU gives the same figures."""
    if name not in _without_limit:
        _without_limit[name] = stats_of(without_work(name), device).peak_reserved
    return _without_limit[name]


@pytest.mark.parametrize("name", TRACES)
def test_held_is_hardly_more_than_in_use(name: str, device: Device) -> None:
    assert held(name, device) <= MOST[name] * recorded(name).peak_in_use


@pytest.mark.parametrize("name", TRACES)
def test_held_is_hardly_more_than_with_expandable_segments(name: str, device: Device) -> None:
    most = MOST_OF_EXPANDABLE * (EXPANDABLE_GB[name] + ROUNDING_GB) * 1e9
    assert held(name, device) <= most


@pytest.mark.parametrize("name", TRACES)
def test_a_limit_just_above_what_was_held_is_enough(name: str, device: Device) -> None:
    limit = int(ROOM * held(name, device))
    assert stats_of(without_work(name), device, limit=limit).peak_reserved <= limit


@pytest.mark.parametrize("name", TRACES)
def test_blocks_on_several_streams_and_threads(name: str, device: Device) -> None:
    """As fast as an allocation or a free every 20 us; the programs took longer for theirs."""
    trace = dealt(recorded(name), streams=4, threads=4)
    trace = replace(trace, times=array("q", range(0, EVENT_NS * len(trace), EVENT_NS)))
    program = as_program(trace, kernel_ns=0, paced=True)
    assert program.thread_count == 4
    most = MOST_DEALT[name] * trace.peak_in_use
    assert stats_of(program, device).peak_reserved <= most


@pytest.mark.parametrize("name", TAKING_TURNS)
def test_two_threads_that_take_turns_on_one_stream(name: str, device: Device) -> None:
    """As PyTorch's main thread and that of autograd do: each frees blocks of the other."""
    program = as_program(dealt(recorded(name), threads=2, turn=TURN), kernel_ns=0)
    assert (program.stream_count, program.thread_count) == (1, 2)
    most = MOST[name] * program.peak_in_use
    assert stats_of(program, device).peak_reserved <= most
