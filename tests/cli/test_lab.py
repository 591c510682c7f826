"""`vramkit lab`: running, showing, comparing, and what Ctrl-C leaves."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.runs import NAME, PROGRAMS, ends, report, row

from vramkit.cli.lab.options import Options
from vramkit.cli.lab.run import Keeper
from vramkit.lab.result import Report, load, save

from .support import SETTINGS, VramkitHere

pytestmark = pytest.mark.sim_only


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(PROGRAMS))
    monkeypatch.syspath_prepend(PROGRAMS)


@pytest.mark.usefixtures("driver")
def test_a_run_writes_its_files_and_prints_the_report(
    vramkit_here: VramkitHere, tmp_path: Path
) -> None:
    done = vramkit_here(
        *("lab", NAME, "--driver", "sim", "--subjects", "good,raises,absent", "--cases", "middle"),
        *("--repetitions", "2", "--seed", "5", "--set", "rounds=4"),
        *("--output", "a.json", "--html", "a.html"),
    )
    assert done.status == 0, done.stderr
    assert "3 rows have figures." in done.stdout
    assert "a subject's own error" in done.stdout
    assert "simulated, h200" in done.stdout.splitlines()[0]
    assert "vramkit lab: the result is in a.json" in done.stderr
    found = load(tmp_path / "a.json")
    assert (found.stopped, found.seed, found.repetitions, found.simulated) == ("", 5, 2, "h200")
    assert found.settings == {"rounds": 4, "shape": "flat", "note": "", "wait": ""}
    assert found.card_bytes == 12 << 30
    assert found.versions["vramkit"] and found.machine.cores > 0
    assert [(each.subject, each.arm, each.outcome) for each in found.rows] == [
        ("good", "plain", "measured"),
        ("good", "locked", "measured"),
        ("raises", "plain", "failed"),
        ("raises", "locked", "measured"),
        ("absent", "plain", "not here"),
        ("absent", "locked", "not here"),
    ]
    assert found.command == (
        f"vramkit lab {NAME} --driver sim --seed 5 --repetitions 2 "
        "--subjects good,raises,absent --cases middle --set rounds=4 --case-limit 120"
    )
    page = (tmp_path / "a.html").read_text()
    assert page.startswith("<!doctype html>") and "simulated · h200" in page

    again = vramkit_here("lab", "show", "a.json")
    assert again.status == 0 and again.stdout == done.stdout
    assert vramkit_here("lab", "show", "a.json", "--html", "b.html").stdout == ""
    assert (tmp_path / "b.html").read_text() == page
    assert json.loads(vramkit_here("lab", "show", "a.json", "--json").stdout) == json.loads(
        (tmp_path / "a.json").read_text()
    )


@pytest.mark.usefixtures("driver")
def test_the_command_in_a_result_measures_the_same_again(
    vramkit_here: VramkitHere, tmp_path: Path
) -> None:
    given = ("lab", NAME, "--driver", "sim", "--subjects", "good")
    cases = ("--cases", "first", "--cases", "last")
    first = vramkit_here(*given, *cases, "--repetitions", "1", "--seed", "9", "--json")
    command = json.loads(first.stdout)["command"].split()[1:]
    second = vramkit_here(*command, "--json", "--output", "b.json")
    rows = [json.loads(done.stdout)["rows"] for done in (first, second)]
    assert [row["workload"] for row in rows[0]] == ["first", "last"]
    assert rows[0] == rows[1] and rows[0][0]["values"]["time"]
    assert vramkit_here("lab", "show", "b.json", "--json").stdout == second.stdout


def without_the_last(path: Path) -> None:
    """The file, as it was before the last repetition of each row but the first."""
    found = load(path)
    for each in found.rows[1:]:
        each.repetitions -= 1
        each.values = {name: values[:-1] for name, values in each.values.items()}
    found.stopped = "interrupted"
    save(found, path)


@pytest.mark.usefixtures("driver")
def test_a_result_is_continued_as_it_began(vramkit_here: VramkitHere, tmp_path: Path) -> None:
    given = ("--subjects", "good,raises", "--cases", "middle,last", "--repetitions", "2")
    given = (*given, "--seed", "9", "--set", "rounds=4")
    here = ("lab", NAME, "--driver", "sim")
    vramkit_here(*here, *given, "--output", "a.json")
    whole = load(tmp_path / "a.json")
    without_the_last(tmp_path / "a.json")
    done = vramkit_here(*here, "--continue", "a.json")
    assert done.status == 0, done.stderr
    assert "the result is in a.json" in done.stderr
    found = load(tmp_path / "a.json")
    (date,) = found.continued
    found.continued = []
    assert date >= found.date and found == whole

    more = vramkit_here(*here, "--continue", "a.json", "--cases", "first", "--output", "b.json")
    assert more.status == 0, more.stderr
    both = load(tmp_path / "b.json")
    assert both.rows[1:4] == whole.rows[:3] and len(both.rows) == 8 and both.stopped == ""
    command = both.command.replace(" 'first,middle/plain", " first,middle/plain")
    assert command == (
        f"vramkit lab {NAME} --driver sim --seed 9 --repetitions 2 --subjects good,raises "
        "--cases first,middle/plain,middle/locked,last --set rounds=4 --case-limit 120"
    )
    assert load(tmp_path / "a.json").rows == whole.rows


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--continue", "b.json"), "--continue b.json: there is no such file; --output b.json"),
        (("--continue", "x.json"), "x.json: no result of vramkit lab"),
        (("--continue", "o.json"), "--continue o.json: that is a result of allocators"),
        (("--continue", "a.json", "--on", "ray"), "--continue is for this machine"),
        (("--continue", "a.json", "--html", "a.json"), "--output and --html are both a.json"),
        (("--continue", "a.json", "--seed", "1"), "--continue a.json: a run goes on only with"),
        (("--continue", "a.json", "--seed", "1"), "seed was 0 and is 1"),
        (("--continue", "a.json", "--set", "rounds=9"), "setting rounds was 3 and is 9"),
        (("--continue", "a.json", "--repetitions", "1"), "it has 2 repetitions, and 1 are wanted"),
    ],
)
def test_what_cannot_be_continued_is_one_line_and_no_measurement(
    vramkit_here: VramkitHere, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    here = ("lab", NAME, "--driver", "sim")
    only = ("--subjects", "good", "--cases", "last", "--repetitions", "2")
    assert vramkit_here(*here, *only, "--output", "a.json").status == 0
    without_the_last(tmp_path / "a.json")
    save(report(experiment="allocators"), tmp_path / "o.json")
    (tmp_path / "x.json").write_text("{}")
    before = (tmp_path / "a.json").read_bytes()
    done = vramkit_here(*here, *arguments)
    assert (done.status, done.stdout) == (2, "")
    assert words in done.stderr and len(done.stderr.splitlines()) == 1
    assert (tmp_path / "a.json").read_bytes() == before


def test_the_command_names_the_card_and_what_the_environment_has_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = ["vramkit", "lab", "it"]
    options = Options(device=1, cases=["a b"], set=["note=x y"])
    words = "vramkit lab it --driver {} --seed 0 --repetitions 5 --device 1 --cases 'a b' "
    words += "--set 'note=x y' --case-limit 120"
    monkeypatch.delenv("VRAMKIT_SIM", raising=False)
    assert options.command(start, "sim") == words.format("sim")
    monkeypatch.setenv("VRAMKIT_SIM", "devices=2,card=my card")
    assert options.command(start, "sim:x") == (
        "VRAMKIT_SIM='devices=2,card=my card' " + words.format("sim:x")
    )
    assert options.command(start, "cuda") == words.format("cuda")


@pytest.mark.usefixtures("driver")
def test_the_experiment_of_the_documentation_runs(
    vramkit_here: VramkitHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "lab.md").read_text("utf-8")
    (tmp_path / "my_lab.py").write_text(page.partition("```python\n")[2].partition("```")[0])
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    chosen = ("--driver", "sim", "--repetitions", "2", "--set", "size=64KiB", "--json")
    done = vramkit_here("lab", "my_lab:FILLS", *chosen)
    assert done.status == 0, done.stderr
    document = json.loads(done.stdout)
    times = {(row["workload"], row["subject"]): row["values"]["time"] for row in document["rows"]}
    assert len(times) == 4 and document["settings"] == {"size": 64 << 10}
    for subject in ("call", "kernel"):
        once, many = times["once", subject], times["many", subject]
        # The virtual clock repeats exactly.
        assert once[0] == once[1] and many[0] == many[1] and once[0] < many[0]


@pytest.mark.usefixtures("driver")
def test_nothing_measured_is_a_problem(vramkit_here: VramkitHere) -> None:
    only = ("lab", NAME, "--driver", "sim", "--cases", "middle/plain", "--repetitions", "1")
    assert vramkit_here(*only, "--subjects", "raises").status == 1
    done = vramkit_here(*only, "--subjects", "absent")
    assert (done.status, done.stdout) == (1, "")
    assert "no subject can take part here: absent: its package is not installed" in done.stderr


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--repetitions", "0"), "--repetitions is 0; it may be 1 or more"),
        (("--seed", "-1"), "--seed is -1"),
        (("--device", "7"), "--device is 7; it may be 0 to 0"),
        (("--time-limit", "0"), "--time-limit is 0.0; it may be a number of seconds above 0"),
        (("--case-limit", "nan"), "--case-limit is nan"),
        (("--subjects", "nobody"), "no subject is called 'nobody'; there are: good, raises"),
        (("--cases", "none*"), "no case is called 'none*'; there are: first, middle/plain"),
        (("--set", "rounds=11"), "rounds is '11'; it may be a whole number from 1 to 10"),
        (("--set", "colour=red"), "no setting is called 'colour'"),
        (("--set", "shape=deep", "--set", "rounds=1"), "a deep shape needs two rounds"),
        (("--output", "no/folder.json"), "--output no/folder.json: there is no folder no"),
        (("--html", "."), "--html .: that is a folder"),
        (("--output", "x", "--html", "x"), "--output and --html are both x"),
        (("--driver", "rocm"), "the driver is 'rocm'"),
        (("--bogus",), "--bogus"),
    ],
)
def test_wrong_usage_is_one_line_before_anything_runs(
    vramkit_here: VramkitHere, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    chosen = () if "--driver" in arguments else ("--driver", "sim")
    done = vramkit_here("lab", NAME, *chosen, "--output", "unused.json", *arguments)
    if "--output" in arguments:
        done = vramkit_here("lab", NAME, *chosen, *arguments)
    assert done.status == 2
    assert words in done.stderr and len(done.stderr.splitlines()) == 1
    assert done.stdout == "" and list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("driver")
def test_a_result_does_not_take_the_place_of_a_pipe(
    vramkit_here: VramkitHere, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    done = vramkit_here("lab", NAME, "--driver", "sim", "--output", "pipe")
    assert done.status == 2 and "--output pipe: that is no file" in done.stderr
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.usefixtures("driver")
def test_help_and_list_say_what_there_is(vramkit_here: VramkitHere) -> None:
    from vramkit.lab.catalog import EXPERIMENTS

    overview = vramkit_here("lab", "--help")
    assert overview.status == 0
    for name in (*EXPERIMENTS, "list", "show", "compare"):
        assert f"│ {name} " in overview.stdout
    own = " ".join(vramkit_here("lab", NAME, "--help").stdout.split())
    assert "subjects that misbehave" in own and "[misbehaves]" in own
    assert "--set rounds=3: how many; a whole number from 1 to 10" in own
    assert "130: Ctrl-C" in own

    listed = vramkit_here("lab", "list", NAME, "--driver", "sim")
    assert "its package is not installed" in listed.stdout
    assert re.search(r"^  middle +plain; locked *$", listed.stdout, re.MULTILINE)
    document = json.loads(vramkit_here("lab", "list", NAME, "--driver", "sim", "--json").stdout)
    (experiment,) = document["experiments"]
    assert document["simulated"] is True
    assert experiment["subjects"]["absent"] == "its package is not installed"
    assert experiment["cases"] == ["first", "middle/plain", "middle/locked", "last"]
    assert experiment["settings"][1]["allowed"] == "flat, deep"
    everything = vramkit_here("lab", "list", "--driver", "sim", "--json")
    names = [each["name"] for each in json.loads(everything.stdout)["experiments"]]
    assert names == list(EXPERIMENTS)


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        (("lab", "allocator"), "vramkit lab"),
        (("lab", "compare", "a.json"), "vramkit lab compare"),
        (("lab", "allocators", "--repetitions", "many"), "vramkit lab allocators"),
        (("advise",), "vramkit advise"),
        (("replay", "--nope"), "vramkit replay"),
        (("advice",), "vramkit"),
    ],
)
def test_wrong_words_name_the_help_that_says_more(
    vramkit_here: VramkitHere, arguments: tuple[str, ...], where: str
) -> None:
    done = vramkit_here(*arguments)
    assert done.status == 2 and done.stderr.endswith(f" See `{where} --help`.\n"), done.stderr


@pytest.mark.parametrize("name", ["nothing", "no.module:HERE"])
def test_an_unknown_experiment_is_wrong_usage(vramkit_here: VramkitHere, name: str) -> None:
    done = vramkit_here("lab", name)
    assert done.status == 2 and name in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", [("show", "a.json"), ("compare", "a.json", "a.json")])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", "a.json: no result of vramkit lab"),
        ('{"experiment": "x", "format": 99}', "written in format 99; this vramkit reads format 1"),
    ],
)
def test_a_file_that_is_no_result_is_wrong_usage(
    vramkit_here: VramkitHere, tmp_path: Path, command: tuple[str, ...], text: str, words: str
) -> None:
    (tmp_path / "a.json").write_text(text)
    done = vramkit_here("lab", *command)
    assert done.status == 2 and words in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_result_that_is_not_there_is_a_problem(vramkit_here: VramkitHere) -> None:
    done = vramkit_here("lab", "show", "nowhere.json")
    assert done.status == 1 and "nowhere.json" in done.stderr


def test_a_result_of_an_experiment_that_is_not_here_is_told(
    vramkit_here: VramkitHere, tmp_path: Path
) -> None:
    save(report(experiment="of_tomorrow"), tmp_path / "a.json")
    done = vramkit_here("lab", "show", "a.json")
    assert done.status == 2 and "a.json: no experiment is called 'of_tomorrow'" in done.stderr


def test_compare_says_what_is_worse_and_fails_only_if_asked(
    vramkit_here: VramkitHere, tmp_path: Path
) -> None:
    fast, slow = [1.0, 1.1, 1.2, 1.3, 1.4], [2.0, 2.1, 2.2, 2.3, 2.4]
    save(report(rows=[row("pool", time=fast)]), tmp_path / "old.json")
    save(report(rows=[row("pool", time=slow)]), tmp_path / "new.json")
    done = vramkit_here("lab", "compare", "old.json", "new.json")
    assert (done.status, done.stderr) == (0, "")
    assert "1 figure: 1 worse" in done.stdout and "simulated" in done.stdout.splitlines()[0]
    failing = ("lab", "compare", "--fail-if-worse")
    assert vramkit_here(*failing, "old.json", "new.json").status == 1
    assert vramkit_here(*failing, "new.json", "old.json").status == 0
    assert vramkit_here(*failing, "old.json", "old.json").status == 0
    document = json.loads(vramkit_here("lab", "compare", "old.json", "new.json", "--json").stdout)
    assert (document["worse"], document["changes"][0]["judgement"]) == (1, "worse")
    assert vramkit_here("lab", "compare", "old.json", "new.json", "--html", "c.html").stdout == ""
    assert "worse" in (tmp_path / "c.html").read_text()
    save(report(simulated=None), tmp_path / "real.json")
    refused = vramkit_here("lab", "compare", "old.json", "real.json")
    assert refused.status == 2 and "a simulated card, the second from a real" in refused.stderr


@pytest.mark.usefixtures("driver")
def test_a_full_disk_does_not_end_the_run(
    vramkit_here: VramkitHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("vramkit.lab.result.save", full)
    done = vramkit_here(
        *("lab", NAME, "--driver", "sim", "--subjects", "good", "--repetitions", "1"),
        *("--output", "a.json"),
    )
    assert done.status == 1
    assert "4 rows have figures." in done.stdout
    assert "the last figures are not in a.json: [Errno 28] No space left" in done.stderr


def test_writing_takes_a_twentieth_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    kept: list[int] = []

    def slow_save(report: Report, path: Path) -> None:
        nonlocal now
        now += 2.0
        kept.append(report.seed)

    monkeypatch.setattr("vramkit.lab.result.save", slow_save)
    keeper = Keeper(tmp_path / "a.json", lambda: now)
    for seed in range(100):
        keeper.keep(report(seed=seed))
        now += 1.0
    assert kept == [0, 38, 76]
    keeper.keep_now(report(seed=100))
    assert kept[-1] == 100


# The end of a run from outside: real processes


def hanging(tmp_path: Path) -> list[str]:
    return [
        *(sys.executable, "-m", "vramkit.cli", "lab", NAME, "--driver", "sim"),
        *("--subjects", "hangs", "--repetitions", "3", "--set", f"wait={tmp_path / 'wait'}"),
        *("--output", str(tmp_path / "a.json"), "--html", str(tmp_path / "a.html")),
    ]


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    return kept | {"TERM": "xterm", "COLUMNS": "100"}


def pids_of_the_hanging_subject(tmp_path: Path) -> list[int]:
    wait = tmp_path / "wait"
    limit = time.monotonic() + 60
    while not wait.exists():
        assert time.monotonic() < limit, "the subject did not begin"
        time.sleep(0.01)
    return [int(pid) for pid in wait.read_text().split()]


def must_be_kept(tmp_path: Path, stopped: str) -> None:
    found = load(tmp_path / "a.json")
    assert found.stopped == stopped
    outcomes = {(each.workload, each.arm): each.outcome for each in found.rows}
    assert outcomes == {
        ("first", ""): "measured",
        ("middle", "plain"): "not run",
        ("middle", "locked"): "not run",
        ("last", ""): "not run",
    }
    assert [len(each.values.get("time", [])) for each in found.rows] == [1, 0, 0, 0]


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    ours, theirs = pty.openpty()
    yield ours, theirs
    os.close(ours)


def test_ctrl_c_keeps_what_was_measured_and_leaves_no_process(
    tmp_path: Path, terminal: tuple[int, int]
) -> None:
    ours, theirs = terminal

    def own_terminal() -> None:
        os.setsid()
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        hanging(tmp_path),
        env=environment(),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        preexec_fn=own_terminal,
    )
    os.close(theirs)
    pids = pids_of_the_hanging_subject(tmp_path)
    os.write(ours, b"\x03")
    shown = b""
    while True:
        try:
            read = os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
        if not read:
            break
        shown += read
    assert process.wait(timeout=30) == 130
    text = " ".join(shown.decode().split())
    assert "interrupted; 1 of 4 rows have figures" in text
    assert f"the result is in {tmp_path}" in text.replace("a. json", "a.json")
    assert "This run ended early: interrupted." in text
    must_be_kept(tmp_path, "interrupted")
    assert "ended early: interrupted" in (tmp_path / "a.html").read_text()
    assert all(ends(pid) for pid in pids)


def test_a_service_manager_s_stop_keeps_what_was_measured(tmp_path: Path) -> None:
    process = subprocess.Popen(
        hanging(tmp_path),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    pids = pids_of_the_hanging_subject(tmp_path)
    process.send_signal(signal.SIGTERM)
    _, shown = process.communicate(timeout=30)
    assert process.returncode == 143
    assert "ended by SIGTERM; 1 of 4 rows have figures" in shown
    must_be_kept(tmp_path, "ended by SIGTERM")
    assert all(ends(pid) for pid in pids)


def test_a_killed_run_leaves_a_file_that_says_so_and_no_process(tmp_path: Path) -> None:
    process = subprocess.Popen(
        hanging(tmp_path),
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    pids = pids_of_the_hanging_subject(tmp_path)
    process.kill()
    process.wait()
    assert all(ends(pid) for pid in pids)
    must_be_kept(tmp_path, "the run has not ended")
