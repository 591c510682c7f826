"""What the replay of traces reads, in which order it runs, and what it says of bad files."""

from __future__ import annotations

import gzip
import json
import pickle
import random
import threading
from collections.abc import Callable
from pathlib import Path

import churn
import held
import pytest
from replay import Player, dealt, replay
from traces import Trace, TraceBuilder, TraceError, read_traces

from vramkit import Pool
from vramkit.driver import Device, Driver, OutOfMemoryError

MIB = 1 << 20

on_sim = [pytest.mark.sim_only, pytest.mark.sim(data=False, checker=False, capacity="1GiB")]

TRACE = "+7,100,0\n+8,50,5\n-7\n+7,200,5\n-8\n-7\n"


@pytest.fixture
def device(driver: Driver) -> Device:
    return driver.device()


def written(folder: Path, content: str | bytes, name: str = "some.csv") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


# Files


@pytest.mark.parametrize("pack", [lambda content: content, gzip.compress], ids=["plain", "gzip"])
def test_a_trace_is_blocks_and_streams_in_their_order(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    (trace,) = read_traces(written(tmp_path, pack(TRACE.encode())))
    assert trace == Trace(
        name="some",
        sizes=[100, 50, 200],
        streams=[0, 1, 1],
        events=[0, 1, ~0, 2, ~1, ~2],
        stream_count=2,
        peak_in_use=250,
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "the file is empty"),
        ("+1,2,0\n+1,2\n", r"line 2: '\+1,2' is neither \+id,bytes,stream nor -id"),
        ("+1,2,0\n\n", "line 2: '' is neither"),
        ("+1,-2,0\n", "line 1: '.*' is neither"),
        ("-1,3\n", "line 1: '-1,3' is neither"),
        ("*1,3,0\n", "line 1: .* is neither"),
        ("+1,0,0\n", r"line 1: block 1 has 0 bytes; it may have 1 to 2\^40"),
        (f"+1,{1 << 41},0\n", r"line 1: block 1 has \d+ bytes; it may have 1 to 2\^40"),
        ("+1,2,0\n+1,2,0\n", "line 2: block 1 is allocated again before it is freed"),
        ("+1,2,0\n-1\n-1\n", "line 3: block 1 is freed, but not in use"),
        (b"\xff\xfe", "neither a trace nor a PyTorch memory snapshot"),
        (gzip.compress(TRACE.encode(), mtime=0)[:-9], "cannot be read: Compressed file ended"),
    ],
)
def test_a_bad_file_is_named_with_its_line(
    tmp_path: Path, content: str | bytes, words: str
) -> None:
    with pytest.raises(TraceError, match=rf"some\.csv(, |: ){words}"):
        read_traces(written(tmp_path, content))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"none\.csv: cannot be read: No such file"):
        read_traces(tmp_path / "none.csv")


# Snapshots of PyTorch


def event(action: str, address: int, size: int, stream: int = 0) -> dict[str, object]:
    return {"action": action, "addr": address, "size": size, "stream": stream, "frames": []}


def snapshot_file(folder: Path, *devices: list[dict[str, object]], **left: int) -> Path:
    """Of these events; `_address=size` are blocks of device 0 that are in use at the end."""
    blocks = [
        {"address": int(address[1:]), "requested_size": size, "state": "active_allocated"}
        for address, size in left.items()
    ]
    free = {"address": 1, "requested_size": 0, "state": "inactive"}
    segment = {"device": 0, "stream": 0, "blocks": [*blocks, free]}
    content = {"segments": [segment], "device_traces": list(devices)}
    return written(folder, pickle.dumps(content), "torch.pickle")


def test_a_snapshot_is_a_trace_for_each_device(tmp_path: Path) -> None:
    first = [
        event("segment_alloc", 100, 4096),
        event("alloc", 100, 10),
        event("free_requested", 100, 10),
        event("free_completed", 100, 10),
        event("alloc", 100, 30, stream=77),
    ]
    third = [event("alloc", 500, 5), event("snapshot", 0, 0), event("free_requested", 500, 5)]
    traces = read_traces(snapshot_file(tmp_path, first, [], third, _100=30))
    assert [trace.name for trace in traces] == ["torch:0", "torch:2"]
    assert traces[0].events == [0, ~0, 1]
    assert (traces[0].sizes, traces[0].streams) == ([10, 30], [0, 1])
    assert traces[1].events == [0, ~0]


def test_what_a_snapshot_does_not_see_allocated_was_there_before(tmp_path: Path) -> None:
    events = [
        event("free_requested", 100, 10),
        event("alloc", 100, 20),
        event("free_requested", 100, 20),
    ]
    (trace,) = read_traces(snapshot_file(tmp_path, events, _300=1000))
    assert trace.sizes == [10, 1000, 20]
    assert trace.events == [0, 1, ~0, 2, ~2]
    assert trace.peak_in_use == 1020


class Harmful:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, ("raise SystemExit",)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (pickle.dumps({"device_traces": [Harmful()]}), "it needs builtins.exec; a snapshot has on"),
        (pickle.dumps({"device_traces": [threading.Lock]}), "it needs _thread.allocate_lock"),
        (pickle.dumps({"segments": []}), "KeyError: 'device_traces'"),
        (pickle.dumps([1, 2]), "TypeError"),
        (pickle.dumps({"device_traces": [[{"action": "alloc"}]]}), "KeyError: 'addr'"),
        (pickle.dumps({"device_traces": []})[:-3], "not a PyTorch memory snapshot"),
        (pickle.dumps({"device_traces": [[], []]}), "no events; call torch.cuda.memory._record_me"),
    ],
)
def test_other_pickles_are_refused(tmp_path: Path, content: bytes, words: str) -> None:
    with pytest.raises(TraceError, match=r"torch\.pickle: ") as caught:
        read_traces(written(tmp_path, content, "torch.pickle"))
    assert words in str(caught.value)


# The replay


def random_trace(blocks: int = 300) -> Trace:
    builder, generator = TraceBuilder("random"), random.Random(3)
    for block in range(blocks):
        builder.allocate(block, generator.randrange(1, MIB), 0)
        if block > 20:
            builder.free(generator.choice(list(builder.live)))
    return builder.build()


class Recorder:
    """Stands in for a pool: which thread did what, in which order."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []
        self.fail_at = -1

    def note(self, what: int) -> None:
        if len(self.calls) == self.fail_at:
            raise KeyError(what)
        self.calls.append((threading.get_ident(), what))

    def malloc(self, size: int, stream: object) -> int:
        self.note(size)
        return size

    def free(self, address: int) -> None:
        self.note(-address)


def test_threads_keep_the_order_of_the_trace_and_their_own_blocks() -> None:
    trace = random_trace()
    alone, together = Recorder(), Recorder()
    Player(trace, alone, [None]).play_all()  # type: ignore[arg-type, list-item]
    thread_of = dealt(trace, 4, seed=1)
    player = Player(trace, together, [None])  # type: ignore[arg-type, list-item]
    player.play_on_threads(thread_of, 4)
    assert [what for _, what in together.calls] == [what for _, what in alone.calls]
    owners = [thread_of[event if event >= 0 else ~event] for event in trace.events]
    pairs = set(zip(owners, (thread for thread, _ in together.calls), strict=True))
    assert len(pairs) == len(set(owners)) == 4


def test_threads_take_turns_in_the_order_of_the_trace() -> None:
    trace = random_trace()
    alone, together = Recorder(), Recorder()
    Player(trace, alone, [None]).play_all()  # type: ignore[arg-type, list-item]
    player = Player(trace, together, [None])  # type: ignore[arg-type, list-item]
    player.play_in_turns(100, 2)
    assert [what for _, what in together.calls] == [what for _, what in alone.calls]
    threads = [thread for thread, _ in together.calls]
    first, second = threads[0], threads[100]
    assert first != second
    assert threads == [(first, second)[index // 100 % 2] for index in range(len(threads))]


@pytest.mark.parametrize("fail_at", [0, 1, 200])
def test_an_error_on_a_thread_ends_all_of_them_and_is_raised(fail_at: int) -> None:
    trace, pool = random_trace(), Recorder()
    pool.fail_at = fail_at
    before = threading.active_count()
    player = Player(trace, pool, [None])  # type: ignore[arg-type, list-item]
    with pytest.raises(KeyError):
        player.play_on_threads(dealt(trace, 4, seed=1), 4)
    assert threading.active_count() == before
    assert len(pool.calls) == fail_at


class TestOnTheSimulatedGpu:
    pytestmark = on_sim

    @pytest.mark.parametrize("threads", [1, 3])
    @pytest.mark.parametrize("work_every", [None, 10])
    def test_a_replay_counts_and_leaves_nothing(
        self, device: Device, threads: int, work_every: int | None
    ) -> None:
        trace = random_trace()  # which does not free all
        result = replay(trace, device, streams=2, threads=threads, work_every=work_every)
        assert (result.events, result.streams, result.threads) == (len(trace.events), 2, threads)
        assert result.peak_in_use == trace.peak_in_use <= result.peak_held
        assert result.growths > 0
        launches = len(trace.sizes) if work_every else 0
        assert result.driver_calls >= 3 * result.growths + launches

    def test_a_trace_that_does_not_fit_raises_and_leaves_nothing(self, device: Device) -> None:
        for threads in (1, 3):
            with pytest.raises(OutOfMemoryError):
                replay(random_trace(), device, threads=threads, limit=4 * MIB)

    @pytest.mark.parametrize("handles", churn.HANDLES)
    def test_rounds_of_threads_and_streams_leave_nothing(
        self, device: Device, handles: churn.Handles
    ) -> None:
        program = churn.Program("small", 2, 2, churn.pairs, 256, 4096)
        result = churn.run(program, device, handles)
        assert (result.threads, result.streams) == (2, 4)
        assert 0 < result.peak_in_use <= result.peak_held
        assert result.bound == int(1.25 * result.peak_in_use) + 6 * 4 * MIB

    def test_the_programs_of_threads_that_come_and_go_are_chosen_by_name(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert churn.main(["pairs_small/1", "--handles", "own", "--steps", "1"]) == 0
        assert (
            capsys.readouterr().out.splitlines()[-1].startswith("| pairs_small/1 | own | 1 | 1 |")
        )
        with pytest.raises(SystemExit, match="2"):
            churn.main(["none"])
        assert "no program is called none; there are pairs_small/16," in capsys.readouterr().err

    def test_the_program_prints_a_row_or_an_object_for_each_replay(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = str(written(tmp_path, TRACE))
        assert held.main([path, "--limit-percent", "2"]) == 0
        table = capsys.readouterr().out.splitlines()
        assert len(table) == 4
        assert len({line.count("|") for line in table}) == 1
        assert held.main([path, "--limit-percent", "2", "--json"]) == 0
        first, second = map(json.loads, capsys.readouterr().out.splitlines())
        assert first["limit"] is None
        assert second["limit"] == int(first["peak_held"] * 1.02)
        assert first["peak_in_use"] == second["peak_in_use"] == 250

    def test_the_program_says_which_trace_ran_out_of_memory(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = str(written(tmp_path, f"+1,{2 << 30},0\n"))
        assert held.main([path, "--card-gib", "1"]) == 1
        heading, _, row = capsys.readouterr().out.splitlines()
        assert row.startswith("| some |  |  | out of memory: ")
        assert row.count("|") == heading.count("|")

    def test_the_program_refuses_bad_files_and_options(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert held.main([str(written(tmp_path, "oh"))]) == 2
        assert "line 1: 'oh' is neither" in capsys.readouterr().err
        for option, value in (("--streams", "0"), ("--threads", "x"), ("--limit-percent", "-1")):
            with pytest.raises(SystemExit, match="2"):
                held.main(["file", option, value])
            assert f"{value!r}; it may be a number from" in capsys.readouterr().err


def test_a_pool_is_closed_after_its_blocks(driver: Driver) -> None:
    """release() frees what an interrupted replay left in use."""
    device = driver.device()
    with device.stream() as stream, Pool(device=device, background=False) as pool:
        player = Player(random_trace(), pool, [stream])
        player.play(0, 10)
        assert pool.stats().current_usage > 0
        player.release()
        assert pool.stats().current_usage == 0
