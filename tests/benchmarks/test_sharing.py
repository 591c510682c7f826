"""What the sharing benchmark reads from logs, what it concludes, and that it runs on a simulated
card, from the daemon's start to its end."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

MS = 1_000_000


def log(pid: int, *steps: tuple[float, float]):
    from sharing_steps import Log, Step

    return Log(pid, [Step("step", int(begin * MS), int(end * MS)) for begin, end in steps])


def test_a_switch_is_the_time_between_the_last_kernel_of_one_and_the_first_of_the_other() -> None:
    from sharing_steps import switches

    one = log(1, (0, 10), (10, 20), (20, 330), (330, 340))
    other = log(2, (5, 150), (150, 160), (160, 170))
    found = switches([one, other])
    # 20 to 150, less a step of 10; 170 to 330, less another one.
    assert [(each.outgoing, each.incoming) for each in found] == [(0, 1), (1, 0)]
    assert [each.nanoseconds / MS for each in found] == [120, 150]
    assert [each.steps for each in found] == [2, 3]


def test_programs_side_by_side_are_told_from_turns() -> None:
    from sharing_steps import together

    one = log(1, *((at, at + 10) for at in range(0, 100, 10)))
    assert together([one, log(2, *((at + 5, at + 15) for at in range(0, 100, 10)))]) > 0.9
    assert together([one, log(2, *((at, at + 10) for at in range(200, 300, 10)))]) == 0.0


def test_bytes_belong_to_the_switch_before_which_they_were_not_counted() -> None:
    from sharing_cases import moved
    from sharing_session import Sample
    from sharing_steps import switches

    one = log(1, (0, 10), (20, 330), (330, 340), (340, 600))
    other = log(2, (5, 150), (150, 160), (160, 500))
    counted = [(5, 1, 0, 0), (8, 2, 0, 0), (155, 1, 64, 0), (335, 2, 32, 0), (337, 1, 64, 48)]
    samples = [Sample(at * MS, pid, out, into, 0, 0, 0) for at, pid, out, into in counted]
    assert moved(switches([one, other]), [one, other], samples) == [(64, 0), (32, 48), (0, 0)]


def test_a_log_that_is_being_written(tmp_path: Path) -> None:
    from sharing_steps import read

    assert read(tmp_path / "steps").steps == []
    (tmp_path / "steps").write_text("pid 7 0\nstep 1 2\nstep 2 ")
    assert read(tmp_path / "steps").pid == 7
    assert [tuple(step) for step in read(tmp_path / "steps").steps] == [("step", 1, 2)]


@pytest.mark.parametrize(
    ("name", "value", "met"),
    [
        ("switch_full", 0.33, True),
        ("switch_full", 0.34, False),
        ("efficiency_long", 0.99, True),
        ("efficiency_long", 0.98, False),
        ("mode_paged", 9.0, None),
    ],
)
def test_goals(name: str, value: float, met: bool | None) -> None:
    from sharing_report import Row

    row = Row(name)
    row.take(value)
    assert row.met is met


def test_the_docs_show_the_result_file() -> None:
    import sharing
    from sharing_report import DOCUMENT, document_table, written

    document = DOCUMENT.read_text("utf-8")
    assert written(document, document_table(sharing.RESULT)) == document


def test_the_simulated_link_is_as_much_slower_as_the_programs_are_smaller() -> None:
    from sharing_scale import LINK, SCALES

    small = SCALES["small"]
    (rate,) = (
        float(line.partition("=")[2])
        for line in small.profile().splitlines()
        if line.startswith("host_to_device")
    )
    assert small.program / rate == pytest.approx(SCALES["full"].program / LINK)


@pytest.mark.sim_only
def test_two_programs_on_a_simulated_card(tmp_path: Path) -> None:
    """And once more: what is in the file is not measured again."""
    import sharing
    from sharing_report import Report

    result = tmp_path / "result.json"
    words = ["--driver", "sim", "--scale", "small", "--json", str(result), "--only", "switch_third"]
    command = [sys.executable, sharing.__file__, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    report = msgspec.json.decode(result.read_bytes(), type=Report)
    assert report.simulated
    (row,) = report.rows
    assert row.error == ""
    assert row.value is not None and row.value > 0
    # 20 of 24 have room: each time 8 MiB of 48 are missing, in chunks of 2 MiB and no more.
    small = sharing.SCALES["small"]
    missing = row.details["shortfall_bytes"]
    assert missing == pytest.approx(small.program / 3, rel=0.1)
    for way in ("out", "in"):
        assert missing <= row.details[f"later_moved_{way}"] + (2 << 20) <= missing + (6 << 20)
    again = [*command[:-2], "--time-limit", "0"]
    second = subprocess.run(again, capture_output=True, text=True, timeout=120, check=False)
    assert "switch_third: known" in second.stderr
    assert "alone: not started" in second.stderr
    assert second.returncode == 1
