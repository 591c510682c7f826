"""What the benchmark of changing shapes concludes from its rows, and how it treats failures."""

import gzip
from pathlib import Path

import changing_shapes
import children
import machine
import msgspec
import programs
import pytest
from changing_shapes_record import trace_of
from changing_shapes_rows import Measured, Report, Row, merged, verdict
from changing_shapes_table import markdown, written
from machine import Machine
from torch_programs.catalog import PROGRAMS

from vramkit.lab.traces import read_traces, write_plain

GB = 10**9


def row(allocator: str, held: float | None = None, times: tuple[float, ...] = (), **fields):
    in_use = None if held is None else GB
    made = Row("llama_training", allocator, **fields)
    made.take(
        Measured(
            milliseconds=list(times),
            peak_bytes=None if held is None else round(held * GB),
            in_use_bytes=in_use,
        ),
        1.0,
    )
    return made


def judged(*rows):
    return verdict("llama_training", {row.allocator: row for row in rows})


@pytest.mark.parametrize(
    ("native", "expandable", "ours", "held_met", "in_use_met"),
    [
        (1.4, 1.1, 1.01, True, True),
        (1.4, 1.1, 1.1, True, False),
        (1.0, 1.1, 1.02, True, True),
        (1.0, 1.1, 1.021, False, True),
        (1.5, 1.1, 1.2, False, False),
        (None, 1.1, 1.01, None, None),
        (1.4, 1.1, None, None, None),
    ],
)
def test_memory_is_judged_by_the_better_of_both_and_by_what_is_in_use(
    native, expandable, ours, held_met, in_use_met
) -> None:
    found = judged(
        row("native", native), row("native_expandable", expandable), row("vramkit", ours)
    )
    assert (found.held_met, found.in_use_met) == (held_met, in_use_met)


@pytest.mark.parametrize(
    ("ours", "met"),
    [
        ((90.0, 91.0, 92.0), True),
        ((100.0, 101.0, 102.0), True),
        ((101.0, 104.0, 110.0), True),
        ((104.0, 105.0, 106.0), False),
        ((), None),
    ],
)
def test_time_is_judged_against_the_faster_within_the_spread(ours, met) -> None:
    found = judged(
        row("native", 1.0, (120.0, 121.0, 122.0)),
        row("native_expandable", 1.0, (100.0, 101.0, 102.0)),
        row("vramkit", 1.0, ours),
    )
    assert found.time_met is met


@pytest.mark.parametrize("failed", ["native", "native_expandable", "vramkit"])
def test_a_row_that_failed_counts_for_nothing(failed: str) -> None:
    rows = [row(name, 1.0, (100.0, 101.0)) for name in ("native", "native_expandable", "vramkit")]
    for one in rows:
        one.error = "status 1" if one.allocator == failed else ""
    found = judged(*rows)
    assert (found.held_met, found.time_met) == (None, None)


def test_a_second_process_adds_times_and_can_only_raise_peaks() -> None:
    taken = row("vramkit", 2.0, (5.0, 1.0, 2.0))
    taken.take(Measured(milliseconds=[3.0, 4.0], peak_bytes=GB, in_use_bytes=3 * GB), 0.5)
    assert (taken.median, taken.p10, taken.p90) == (3.0, 1.4, 4.6)
    assert (taken.held_bytes, taken.in_use_bytes) == (2 * GB, 3 * GB)
    assert (taken.processes, taken.seconds) == (2, 1.0)


def report(*rows, **fields):
    facts = Machine("a CPU", 2, "Linux", "a card", "1", "3.11", "", "2026-11-16T00:00:00Z")
    made = Report(
        **{
            "benchmark": "changing_shapes",
            "device": "a card",
            "size": "full",
            "machine": facts,
            "packages": {"torch": "2.11"},
            "passes": 1,
            "seconds": 2.5,
            "complete": True,
            "notes": [],
            "verdicts": [],
            "rows": list(rows),
            **fields,
        }
    )
    made.judge()
    return made


def test_the_table_shows_lost_and_failed_rows_like_won_ones() -> None:
    lost = [
        row("native", 1.3, (100.0, 101.0)),
        row("native_expandable", 1.1, (100.0, 101.0)),
        row("vramkit", 1.2, (120.0, 121.0), equal=False, difference="figure 3 of 9"),
    ]
    failed = [row("native", 1.3), row("native_expandable", 1.1), row("vramkit")]
    failed[2].error = "ended by SIGSEGV\nSegmentation | fault"
    for one in failed:
        one.program = "lstm_text"
    table = markdown(report(*lost, *failed))
    lines = {line.split(" | ")[0]: line for line in table.splitlines() if line.startswith("| ")}
    assert "| 1.20 (1.20), above 1.03 | 1.091, **lost** |" in table
    assert "120 (120 to 121), slower | no |" in table
    assert lines["| LSTM, lengths 10 to 400"].count("failed") == 2  # memory and time
    assert "0 of 2 rows: vramkit holds at most 1.02" in table
    assert "- llama_training, vramkit: figure 3 of 9" in table
    assert "- lstm_text, vramkit: ended by SIGSEGV: Segmentation | fault" in table
    widths = {line.count("|") for line in table.splitlines() if line.startswith("|")}
    assert widths == {11}


def test_memory_of_the_card_that_no_allocator_admits_to_is_shown() -> None:
    rows = [row(name, 1.0) for name in ("native", "native_expandable", "vramkit")]
    for one, more in zip(rows, (0.5, 0.6, 0.9), strict=True):
        one.card_bytes = round((1.0 + more) * GB)
    table = markdown(report(*rows))
    assert "beside what is held, against native: vramkit +0.40 GB" in table


def test_a_program_that_uses_more_memory_under_vramkit_is_shown() -> None:
    rows = [row(name, 1.0) for name in ("native", "native_expandable", "vramkit")]
    rows[2].in_use_bytes = round(1.02 * GB)
    assert "in use with" not in markdown(report(*rows))
    rows[2].in_use_bytes = round(1.03 * GB)
    assert "- llama_training: in use with vramkit 1.03 GB, 1.00 without" in markdown(report(*rows))


def test_a_later_run_replaces_whole_programs() -> None:
    first = [row("native", 1.0), row("vramkit", error="status 1")]
    other = row("native", 5.0)
    other.program = "lstm_text"
    again = [row("native", 2.0), row("vramkit", 3.0)]
    joined = merged([report(*first, other, complete=False), report(*again)])
    found = {(one.program, one.allocator): one.held_bytes for one in joined.rows}
    assert found == {
        ("llama_training", "native"): 2 * GB,
        ("llama_training", "vramkit"): 3 * GB,
        ("lstm_text", "native"): 5 * GB,
    }
    assert joined.complete
    with pytest.raises(ValueError, match="differ in device: a card and another"):
        merged([report(), report(device="another")])


def test_the_docs_show_the_result_file() -> None:
    document = changing_shapes.DOCUMENT.read_text("utf-8")
    table = "Not measured yet."
    if changing_shapes.RESULT.is_file():
        table = markdown(msgspec.json.decode(changing_shapes.RESULT.read_bytes(), type=Report))
    assert written(document, table) == document
    with pytest.raises(ValueError, match="lacks the lines"):
        written("a page without marks", table)


def test_every_program_of_the_catalogue_has_a_file() -> None:
    folder = programs.ROOT / "benchmarks" / "torch_programs"
    files = {path.stem for path in folder.glob("*.py") if "def build(" in path.read_text("utf-8")}
    assert files == set(PROGRAMS)


def event(action: str, address: int, size: int = 0, stream: int = 0) -> dict[str, object]:
    return {"action": action, "addr": address, "size": size, "stream": stream, "time_us": 0}


def test_what_pytorch_recorded_becomes_a_trace(tmp_path: Path) -> None:
    events = [
        event("segment_alloc", 100, 2 << 20),
        event("alloc", 100, 1000),
        event("alloc", 1124, 3000, stream=94_000),
        event("free_requested", 100, 1000),
        event("free_completed", 100, 1000),
        event("alloc", 100, 500),  # the same address again is another block
        event("free_requested", 1124, 3000, stream=94_000),
        event("snapshot", 0),
    ]
    left = {"address": 100, "size": 512, "requested_size": 500, "state": "active_allocated"}
    segment = {"device": 1, "stream": 0, "total_size": 2 << 20, "blocks": [left]}
    snapshot = {"device_traces": [[], events], "segments": [segment]}
    trace = trace_of("work", snapshot, 1)
    assert (trace.stream_count, trace.peak_in_use) == (2, 4000)
    for name in ("work.csv.gz", "again.csv.gz"):
        write_plain(trace, tmp_path / name)
    written = (tmp_path / "work.csv.gz").read_bytes()
    lines = gzip.decompress(written).decode().splitlines()
    assert lines == ["+0,1000,0", "+1,3000,1", "-0", "+2,500,0", "-1"]
    # No time and no name in it: the same trace is the same file.
    assert (tmp_path / "again.csv.gz").read_bytes() == written
    assert written[3:8] == bytes(5)
    (again,) = read_traces(tmp_path / "work.csv.gz")
    assert (again.kinds, again.what, again.sizes) == (trace.kinds, trace.what, trace.sizes)
    assert (again.streams, again.peak_in_use) == (trace.streams, trace.peak_in_use)


class Processes:
    """In place of real ones: each row says how it ends, and what it had written by then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, failing: dict[str, int | None]) -> None:
        from machine import Machine

        self.failing = failing
        self.started: list[str] = []
        self.rounds: list[str] = []
        self.seconds = 0.0
        facts = Machine("", 1, "", "a card", "", "", "", "2026-11-16T00:00:00Z")
        monkeypatch.setattr(machine, "collect", lambda: facts)
        monkeypatch.setattr(children, "run", self.run)

    def run(self, command, log, environment, most):
        from changing_shapes_rows import Measured

        if "child" not in command:
            return 0, "vramkit cannot be imported: ImportError"
        place = command.index("child")
        path, program, allocator = command[place + 1 : place + 4]
        name = f"{program}/{allocator}"
        self.started.append(name)
        self.rounds.append(command[command.index("--rounds") + 1])
        status = self.failing.get(name, 0)
        measured = Measured(
            milliseconds=[1.0] * 4,
            rounds=4,
            peak_bytes=GB,
            in_use_bytes=GB,
            digest="" if status else "same",
        )
        if status != 1:
            Path(path).write_bytes(msgspec.json.encode(measured))
        return status, "Traceback:\nMemoryError: in /home/me/x.py"


def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str):
    monkeypatch.setattr("sys.argv", ["changing_shapes.py", "measure", str(tmp_path), *arguments])
    status = changing_shapes.main()
    written = (tmp_path / "changing_shapes.json").read_bytes()
    return status, msgspec.json.decode(written, type=Report)


def test_a_row_that_fails_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = {"lstm_text/native": 1, "lstm_text/vramkit": -11, "diffusion/native_expandable": None}
    processes = Processes(monkeypatch, failing)
    only = ("--only", "lstm_text", "diffusion", "adapters")
    status, found = measured(tmp_path, monkeypatch, *only, "--passes", "2")
    assert status == 1 and not found.complete
    rows = {f"{one.program}/{one.allocator}": one for one in found.rows}
    assert len(rows) == 9
    assert rows["lstm_text/native"].error == "status 1\nMemoryError: in x.py"
    assert rows["lstm_text/vramkit"].error.startswith("ended by SIGSEGV")
    assert rows["diffusion/native_expandable"].error.startswith("did not end within")
    assert rows["diffusion/native_expandable"].held_bytes == GB  # written before it hung
    assert rows["adapters/vramkit"].equal is True
    assert rows["adapters/vramkit"].processes == 2
    # Failed rows are not tried again; the second pass turns the order of allocators around.
    assert processes.started[9:] == [
        "lstm_text/native_expandable",
        "diffusion/vramkit",
        "diffusion/native",
        "adapters/vramkit",
        "adapters/native_expandable",
        "adapters/native",
    ]
    # The first row of a program chooses how many rounds all have.
    assert processes.rounds[6:9] == ["0", "4", "4"]
    assert found.notes == ["vramkit cannot be imported: ImportError"]
    assert [verdict.held_met for verdict in found.verdicts] == [None, None, True]


def test_rows_beyond_the_time_limit_are_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = Processes(monkeypatch, {})
    status, found = measured(
        tmp_path, monkeypatch, "--only", "lstm_text", "--time-limit", "1", "--passes", "2"
    )
    assert status == 1
    assert processes.started == []
    assert {one.error for one in found.rows} == {"not started: the time limit of 1 s is used up"}


def test_a_trace_that_fails_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(command, log, environment, most):
        if "record-child" not in command:
            return 0, ""
        path, program = command[command.index("record-child") + 1 :][:2]
        if program == "lstm_text":
            return 1, "RuntimeError: no card"
        Path(path).write_text("+0,5000000000,0\n-0\n", "ascii")
        return 0, "a warning at the end"

    monkeypatch.setattr(children, "run", run)
    only = ["--only", "lstm_text", "adapters"]
    monkeypatch.setattr("sys.argv", ["changing_shapes.py", "record", str(tmp_path), *only])
    assert changing_shapes.main() == 1
    said = capsys.readouterr().err
    assert "RuntimeError: no card\nlstm_text: status 1" in said
    assert "adapters: 2 events, in use 5.00 GB" in said
