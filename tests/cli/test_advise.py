"""`vramkit advise` from a file to words, on the simulated GPU."""

from __future__ import annotations

import json
import pickle
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from vramkit.cli import main
from vramkit.record import record_program

DATA = Path(__file__).parents[1] / "data"
TRACE = DATA / "lstm_text.csv.gz"
MIB = 1 << 20


def advised(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert main(["advise", *arguments, "--json"]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


def topics(one: dict[str, Any]) -> dict[str, str]:
    return {advice["topic"]: advice["verdict"] for advice in one["advice"]}


def test_a_program_that_fits_its_card_hears_so(capsys):
    (one,) = advised(capsys, str(TRACE))
    assert topics(one)["card"] == "no need"
    assert "batch" not in topics(one)
    assert one["observed"]["peak"] <= one["pooled"]["held"] < 1.02 * one["observed"]["peak"]


def test_a_smaller_card_is_told_how_far_it_is_too_small(capsys):
    (one,) = advised(capsys, str(TRACE), "--card", "8GiB")
    assert topics(one)["card"] == "do"
    assert one["card"]["nbytes"] == 8 << 30
    assert {"offload", "batch"} & set(topics(one))


def scattered(path: Path) -> int:
    """A cache of blocks of any size, which a pool with room holds in more than is in use. Returns
    the peak in use."""
    chance = random.Random(1)
    live: list[tuple[int, int]] = []
    lines, total, peak = [], 0, 0
    for block in range(6000):
        size = int(2 ** chance.uniform(12, 25))
        while total + size > 500 * MIB:
            freed, nbytes = live.pop(chance.randrange(len(live)))
            lines.append(f"-{freed}\n")
            total -= nbytes
        lines.append(f"+{block},{size},0\n")
        live.append((block, size))
        total += size
        peak = max(peak, total)
    path.write_text("".join(lines))
    return peak


def test_a_card_with_less_than_a_pool_takes_where_there_is_room(capsys, tmp_path):
    trace = tmp_path / "cache.csv"
    peak = scattered(trace)
    (one,) = advised(capsys, str(trace), "--card", "1320MiB")
    room = 720 * MIB
    held = one["pooled"]["held"]
    assert held * 1.05 > room > 1.3 * peak
    assert held > one["pooled"]["on_card"]
    assert one["pooled"]["on_card"] * 1.05 <= room
    assert topics(one)["card"] == "no need"
    (small,) = advised(capsys, str(trace), "--card", f"{600 + peak // MIB + 2}MiB")
    assert small["pooled"]["on_card"] is None
    assert topics(small)["card"] == "do"


def segment(size: int, live: int) -> dict[str, Any]:
    block = {
        "address": 1 << 40,
        "size": live,
        "requested_size": live,
        "state": "active_allocated",
    }
    return {"device": 0, "stream": 0, "total_size": size, "blocks": [block]}


def snapshot_file(folder: Path) -> Path:
    """Of a program with 40 MiB in use whose allocator held 100 MiB for a while, 60 at the end."""
    events: list[dict[str, Any]] = []

    def tell(action: str, address: int, size: int) -> None:
        events.append(
            {"action": action, "addr": address, "size": size, "stream": 0, "time_us": len(events)}
        )

    tell("segment_alloc", 1 << 40, 60 * MIB)
    tell("alloc", 1 << 40, 40 * MIB)
    tell("segment_alloc", 1 << 41, 40 * MIB)
    tell("segment_free", 1 << 41, 40 * MIB)
    snapshot = {"device_traces": [events], "segments": [segment(60 * MIB, 40 * MIB)]}
    path = folder / "snapshot.pickle"
    path.write_bytes(pickle.dumps(snapshot))
    return path


def test_a_snapshot_says_what_its_program_held(capsys, tmp_path):
    (one,) = advised(capsys, str(snapshot_file(tmp_path)))
    assert one["observed"]["held"] == 100 * MIB
    (memory,) = [a for a in one["advice"] if a["topic"] == "allocator" and a["verdict"] == "do"]
    assert {each["what"] for each in memory["predicted"]} == {"held by the pool", "less than now"}


def test_the_page_and_the_words_say_the_same(capsys, tmp_path):
    page = tmp_path / "advice.html"
    assert main(["advise", str(TRACE), "--card", "8GiB", "--html", str(page)]) == 0
    said = capsys.readouterr()
    assert "It does not fit a card of 8 GiB" in " ".join(said.out.split())
    assert "1 thing to do" in said.err
    assert "It does not fit a card of 8 GiB" in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.csv"], "nowhere.csv"),
        ([str(TRACE), "--card", "8 giraffes"], "--card"),
        ([str(TRACE), "--card", "1KiB"], "a card of 1 KiB"),
        ([str(TRACE), "--profile", "no_such"], "no_such"),
        ([str(TRACE), "--html", "/nowhere/page.html"], "/nowhere"),
        ([str(Path(__file__))], "neither"),
    ],
)
def test_what_cannot_be_used_is_one_line(capsys, arguments, words):
    assert main(["advise", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert len(error.splitlines()) == 1


PROGRAM = """
import vramkit
device = vramkit.driver.open().device()
with device.stream() as stream:
    for _ in range(20):
        with device.alloc(1 << 20) as memory:
            device.fill(memory, 1, stream=stream)
            device.kernels.spin(1_000_000, stream=stream)
            stream.synchronize()
"""


def test_a_recorded_program_hears_of_its_times(capsys, tmp_path, monkeypatch):
    """20 allocations with a kernel each: what the driver was asked for, and when."""
    monkeypatch.setenv("VRAMKIT_DRIVER", "sim")
    trace = tmp_path / "trace.csv.gz"
    done = record_program([sys.executable, "-c", PROGRAM], trace, capture=True)
    assert done.status == 0, done.stderr
    (one,) = advised(capsys, str(trace))
    seen = one["observed"]
    assert seen["level"] == "driver"
    assert seen["timing"]["allocations"] == 19  # a pool needs the first one too
    assert seen["timing"]["frees"] == 19
    assert seen["timing"]["launches"] >= 20
    assert seen["timing"]["seconds"] > 0
    assert one["pooled"] is None
    assert topics(one)["card"] == "no need"
