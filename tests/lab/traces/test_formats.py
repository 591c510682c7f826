"""What each kind of file holds, read and, where it can be, written again."""

from __future__ import annotations

import gzip
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest

from vramkit.driver import Driver, OutOfMemoryError
from vramkit.lab.traces import read_traces, write_plain
from vramkit.resources import DirectResource, Recording

from .support import (
    RECORD_HEADER,
    RMM_HEADER,
    SEGMENT,
    event,
    events,
    snapshot,
    snapshot_file,
    written,
)

DATA = Path(__file__).resolve().parents[2] / "data"
OWN = -1

PLAIN = "+7,100,0\n+8,50,5\n-7\n+7,200,5\n-8\n-7\n"


# The plain format


@pytest.mark.parametrize("pack", [lambda content: content, gzip.compress], ids=["plain", "gzip"])
def test_a_plain_trace_is_blocks_and_streams_in_their_order(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    (trace,) = read_traces(written(tmp_path, pack(PLAIN.encode())))
    assert (trace.name, trace.source, trace.has_work) == ("some", "plain", False)
    assert trace.sizes == array("q", [100, 50, 200])
    assert events(trace) == [
        ("allocate", 0, 0, 0),
        ("allocate", 1, 1, 0),
        ("free", 0, OWN, 0),
        ("allocate", 2, 1, 0),
        ("free", 1, OWN, 0),
        ("free", 2, OWN, 0),
    ]
    assert (trace.stream_count, trace.thread_count, trace.peak_in_use) == (2, 1, 250)


@pytest.mark.parametrize("name", ["lstm_text", "continuous_batching"])
def test_a_plain_trace_is_written_again_byte_for_byte(name: str, tmp_path: Path) -> None:
    path = DATA / f"{name}.csv.gz"
    (trace,) = read_traces(path)
    again = tmp_path / f"{name}.csv.gz"
    write_plain(trace, again)
    # Unpacked: gzip writes the name and the time of the file that it packs.
    assert gzip.decompress(again.read_bytes()) == gzip.decompress(path.read_bytes())
    assert read_traces(again) == [trace]


def test_other_numbers_for_the_same_blocks_are_the_same_trace(tmp_path: Path) -> None:
    (trace,) = read_traces(written(tmp_path, PLAIN))
    write_plain(trace, tmp_path / "some.csv.gz")
    assert read_traces(tmp_path / "some.csv.gz") == [trace]


def test_a_free_on_another_stream_cannot_be_written_plain(tmp_path: Path) -> None:
    lines = "+0,64,1,0,5,0,cuMemAllocAsync\n-0,2,0,6,cuMemFreeAsync\n"
    (trace,) = read_traces(written(tmp_path, RECORD_HEADER + lines))
    with pytest.raises(ValueError, match="block 0 is freed on stream 1, not on its own"):
        write_plain(trace, tmp_path / "plain.csv.gz")
    assert not (tmp_path / "plain.csv.gz").exists()


# vramkit record


RECORDED = """\
context,0,0,1,cuDevicePrimaryCtxRetain
+0,100,0,0,10,0,cuMemAlloc_v2
+1,200,3,0,20,0,cuMemAllocAsync
launch,12,3,0,30,cuLaunchKernel
event,4,3,0,40
wait,5,4,1,50
launch,1,5,1,60,cuGraphLaunch
failed,999,3,1,65,0,cuMemAllocAsync,2
captured,cuMemAllocAsync,64,3,1,66
map,0,100,0,67
unmap,0,100,0,68
-1,5,1,70,cuMemFreeAsync
done,event,4,0,80,cuEventSynchronize
done,stream,5,0,90,cuStreamSynchronize
-0,0,0,95,cuMemFree_v2
+2,50,5,0,96,0,cuMemAllocAsync
-2,0,0,97,cuMemFree_v2
done,device,0,0,99,cuCtxSynchronize
"""


def test_a_recording_has_threads_streams_work_and_points_of_order(tmp_path: Path) -> None:
    (trace,) = read_traces(written(tmp_path, RECORD_HEADER + RECORDED))
    assert (trace.name, trace.source, trace.has_work) == ("some", "vramkit record", True)
    legacy, third, fifth = 0, 1, 2  # streams 0, 3 and 5 of the file
    assert events(trace) == [
        ("allocate", 0, legacy, 0),
        ("allocate", 1, third, 0),
        ("launch", 12, third, 0),
        ("record", 0, third, 0),
        ("wait", 0, fifth, 1),
        ("launch", 1, fifth, 1),
        ("free", 1, fifth, 1),
        ("event_done", 0, 0, 0),
        ("stream_done", 0, fifth, 0),
        ("free", 0, OWN, 0),
        ("allocate", 2, fifth, 0),
        ("free", 2, OWN, 0),  # by a call without a stream
        ("device_done", 0, 0, 0),
    ]
    assert trace.times.tolist() == [10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 96, 97, 99]
    assert trace.sizes.tolist() == [100, 200, 50]
    assert (trace.refused, trace.peak_in_use, trace.thread_count) == (1, 300, 2)


def test_a_recording_is_a_trace_for_each_process_and_device(tmp_path: Path) -> None:
    lines = """\
+0,100,1,0,10,0,cuMemAllocAsync
+1,200,2,0,20,3,cuMemAllocAsync
launch,5,1,0,30,cuLaunchKernel
launch,6,2,0,31,cuLaunchKernel
launch,7,9,0,32,cuLaunchKernel
done,device,3,0,33,cuCtxSynchronize
-0,1,0,40,cuMemFreeAsync
@8,2000,child
+2,50,1,0,5,0,cuMemAlloc_v2
@9,3000,idle
"""
    first, second, child = read_traces(written(tmp_path, RECORD_HEADER + lines))
    assert first.name == "some process 7 device 0"
    assert second.name == "some process 7 device 3"
    assert child.name == "some process 8 device 0"
    # What is on a stream without blocks may be on any device.
    assert [row[:2] for row in events(first)] == [
        ("allocate", 0),
        ("launch", 5),
        ("launch", 7),
        ("free", 0),
    ]
    assert [row[:2] for row in events(second)] == [
        ("allocate", 0),
        ("launch", 6),
        ("launch", 7),
        ("device_done", 0),
    ]
    assert child.sizes.tolist() == [50]


def test_an_event_is_of_the_device_of_its_stream(tmp_path: Path) -> None:
    lines = """\
+0,100,1,0,10,0,cuMemAllocAsync
+1,200,2,0,20,3,cuMemAllocAsync
event,4,1,0,30
done,event,4,0,40,cuEventSynchronize
done,event,5,0,50,cuEventSynchronize
"""
    first, second = read_traces(written(tmp_path, RECORD_HEADER + lines))
    assert [row[0] for row in events(first)] == ["allocate", "record", "event_done"]
    assert [row[0] for row in events(second)] == ["allocate"]


# RMM


RMM_LINES = """\
900,23:59:59.999000,allocate,0x10012400000,1048576,0x7f0a
901,23:59:59.999500,allocate failure,(nil),99999,0x7f0b
901,23:59:59.999600,allocate,(nil),0,0x7f0b
900,00:00:00.000500,free,0x10012400000,1048576,0x7f0b
901,00:00:00.001000,allocate,10012400000,512,7f0b
901,00:00:00.002000,free,10012400000,512,7f0b
"""


def test_a_log_of_rmm_has_threads_streams_and_times(tmp_path: Path) -> None:
    (trace,) = read_traces(written(tmp_path, RMM_HEADER + RMM_LINES))
    assert (trace.source, trace.has_work, trace.refused) == ("RMM", False, 1)
    assert events(trace) == [
        ("allocate", 0, 0, 0),
        ("free", 0, 1, 0),
        ("allocate", 1, 1, 1),
        ("free", 1, OWN, 1),
    ]
    start = trace.times[0]
    assert [at - start for at in trace.times] == [0, 1_500_000, 2_000_000, 3_000_000]


def test_lines_of_rmm_that_are_a_little_out_of_order_are_not_of_the_next_day(
    tmp_path: Path,
) -> None:
    lines = (
        "1,12:00:00.000500,allocate,0x100,8,0\n2,12:00:00.000400,allocate,0x200,8,0\n"
        "1,12:00:01.000500,free,0x100,8,0\n"
    )
    (trace,) = read_traces(written(tmp_path, RMM_HEADER + lines))
    assert trace.times[2] - trace.times[0] == 10**9
    assert trace.times[1] - trace.times[0] == -100_000


def test_a_log_of_rmm_may_have_seconds_since_1970(tmp_path: Path) -> None:
    lines = (
        "7,1634567890.123456,allocate,0x7f8a40000000,1024,0x0\n"
        "7,1634567890.234567,free,0x7f8a40000000,1024,0x0\n"
    )
    (trace,) = read_traces(written(tmp_path, RMM_HEADER + lines))
    assert trace.times[1] - trace.times[0] == 111_111_000


def test_addresses_and_streams_of_rmm_have_64_bits(tmp_path: Path) -> None:
    lines = (
        "1,12:00:00.000001,allocate,0x1,8,0xffffffffffffffff\n"
        "1,12:00:00.000002,allocate,0x8000000000000001,8,0x7fffffffffffffff\n"
        "1,12:00:00.000003,free,0x1,8,0xffffffffffffffff\n"
    )
    (trace,) = read_traces(written(tmp_path, RMM_HEADER + lines))
    assert events(trace) == [("allocate", 0, 0, 0), ("allocate", 1, 1, 0), ("free", 0, OWN, 0)]


# PyTorch


def test_a_snapshot_is_a_trace_for_each_device(tmp_path: Path) -> None:
    first = [
        event("segment_alloc", 100, 4096),
        event("alloc", 100, 10, time_us=5),
        event("free_requested", 100, 10, time_us=6),
        event("free_completed", 100, 10, time_us=7),
        event("alloc", 100, 30, stream=77, time_us=9),
    ]
    third = [event("alloc", 500, 5), event("snapshot", 0, 0), event("free_requested", 500, 5)]
    traces = read_traces(snapshot_file(tmp_path, snapshot(first, [], third, _100=30)))
    assert [trace.name for trace in traces] == ["torch device 0", "torch device 2"]
    assert events(traces[0]) == [("allocate", 0, 0, 0), ("free", 0, OWN, 0), ("allocate", 1, 1, 0)]
    assert traces[0].sizes.tolist() == [10, 30]
    assert traces[0].times.tolist() == [5000, 6000, 9000]
    assert [row[0] for row in events(traces[1])] == ["allocate", "free"]


def test_a_snapshot_says_what_its_own_allocator_held(tmp_path: Path) -> None:
    changes = [
        event("segment_alloc", 4096, 3 << 20),
        event("alloc", 4096, 10),
        event("segment_map", 1 << 30, 5 << 20),
        event("segment_free", 1 << 30, 7 << 20),
        event("free_requested", 4096, 10),
        {"action": "oom", "device_free": 0, "size": 9 << 30, "stream": 0, "frames": []},
    ]
    (trace,) = read_traces(snapshot_file(tmp_path, snapshot(changes)))
    assert trace.refused == 1
    assert trace.held == SEGMENT + (7 << 20)


def test_what_a_snapshot_does_not_see_allocated_was_there_before(tmp_path: Path) -> None:
    changes = [
        event("free_requested", 100, 10, stream=7),
        event("alloc", 100, 20),
        event("free_requested", 100, 20),
    ]
    (trace,) = read_traces(snapshot_file(tmp_path, snapshot(changes, _300=1000)))
    assert trace.name == "torch"
    assert trace.sizes.tolist() == [10, 1000, 20]
    assert [row[:3] for row in events(trace)] == [
        ("allocate", 0, 0),
        ("allocate", 1, 1),  # on another stream than the first
        ("free", 0, OWN),
        ("allocate", 2, 1),
        ("free", 2, OWN),
    ]
    assert trace.peak_in_use == 1020


def test_blocks_of_an_older_snapshot_have_no_addresses_and_lie_side_by_side(
    tmp_path: Path,
) -> None:
    blocks = [
        {"size": 1024, "requested_size": 1000, "state": "active_allocated"},
        {"size": 512, "state": "inactive"},
        {"size": 2048, "state": "active_allocated"},
    ]
    content = snapshot([event("alloc", 4096 + 1536, 2048)])
    content["segments"][0] |= {"address": 4096, "blocks": blocks}
    (trace,) = read_traces(snapshot_file(tmp_path, content))
    # The third is the one that was seen; the first was there before.
    assert trace.sizes.tolist() == [1000, 2048]


def test_blocks_that_wait_for_their_last_work_are_free_for_the_program(tmp_path: Path) -> None:
    blocks = [
        {"address": 100, "size": 512, "requested_size": 500, "state": state}
        for state in ("active_pending_free", "active_awaiting_free", "inactive")
    ]
    content = snapshot([event("alloc", 9000, 10)])
    content["segments"][0] |= {"address": 100, "blocks": blocks}
    (trace,) = read_traces(snapshot_file(tmp_path, content))
    assert trace.sizes.tolist() == [10]


def test_tensors_without_bytes_are_left_out_of_a_snapshot(tmp_path: Path) -> None:
    changes = [
        event("alloc", 0, 0),
        event("alloc", 0, 0),
        event("alloc", 512, 8),
        event("free_requested", 0, 0),
    ]
    (trace,) = read_traces(snapshot_file(tmp_path, snapshot(changes)))
    assert trace.sizes.tolist() == [8]


# The adaptor Recording


@pytest.mark.sim_only
@pytest.mark.sim(capacity="64MiB")
def test_what_recording_writes_is_read(driver: Driver, tmp_path: Path) -> None:
    device = driver.device()
    path = tmp_path / "calls.trace"
    with (
        DirectResource(device=device) as below,
        Recording(below, path) as recording,
        device.stream() as stream,
    ):
        first = recording.malloc(1000, stream)
        second = recording.malloc(500)
        recording.free(first)
        with pytest.raises(OutOfMemoryError):
            recording.malloc(1 << 30, stream)
        recording.free(second, 500, stream)
    (trace,) = read_traces(path)
    assert (trace.name, trace.source, trace.refused) == ("calls", "vramkit Recording", 1)
    assert events(trace) == [
        ("allocate", 0, 0, 0),
        ("allocate", 1, 1, 0),
        ("free", 0, OWN, 0),
        ("free", 1, 0, 0),
    ]
    assert trace.sizes.tolist() == [1000, 500]
    assert list(trace.times) == sorted(trace.times)
