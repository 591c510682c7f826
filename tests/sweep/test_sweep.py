"""Tasks in processes of this machine: their order, those that fail, and those that are lost."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from cluster.nodes import until
from lab.runs import ends

from vramkit.sweep import Again, Batch, Done, Failed, PlaceError, Stopped, Stopping, Task, batches
from vramkit.sweep.local import LocalPlace
from vramkit.sweep.run import run
from vramkit.sweep.tasks import Ended, Lost

pytestmark = pytest.mark.sim_only


@pytest.fixture(autouse=True)
def found_by_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


def raw(document: object) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(document).encode())


def made(folder: Path, whats: list[str], size: int = 4) -> list[Batch]:
    tasks = [Task(number, raw([number, what])) for number, what in enumerate(whats)]
    return batches("tasks_here:work", raw(str(folder)), tasks, size)


def swept(
    folder: Path, whats: list[str], *, workers: int = 2, size: int = 4, **more: Callable[..., None]
) -> list[Ended]:
    """In the order of the tasks; each has one end."""
    found = list(run(made(folder, whats, size), LocalPlace(workers), **more))
    found.sort(key=lambda each: each.number)
    assert [each.number for each in found] == list(range(len(whats)))
    return found


def runs(folder: Path) -> list[tuple[int, int]]:
    """Number of the task and of its process, in their order."""
    lines = (folder / "runs").read_text().splitlines()
    return [(int(number), int(pid)) for number, pid in map(str.split, lines)]


def values(found: list[Ended]) -> list[int]:
    return [json.loads(bytes(each.value)) for each in found if isinstance(each, Done)]


@pytest.mark.parametrize("workers", [1, 2])
def test_each_task_ends_once_and_processes_are_used_again(tmp_path: Path, workers: int) -> None:
    found = swept(tmp_path, ["", "prints", *[""] * 18], workers=workers)
    assert values(found) == [number**2 for number in range(20)]
    assert sorted(number for number, _ in runs(tmp_path)) == list(range(20))
    pids = {pid for _, pid in runs(tmp_path)}
    assert len(pids) == workers
    assert all(ends(pid) for pid in pids)


def test_a_task_that_raises_is_told_and_not_run_again(tmp_path: Path) -> None:
    found = swept(tmp_path, ["", "raises", "", ""])
    assert found[1] == Failed(1, "KeyError: 'its own error'")
    assert values(found) == [0, 4, 9]
    assert len(runs(tmp_path)) == 4


def test_work_that_cannot_be_prepared_fails_each_task() -> None:
    batch = Batch("tasks_here:no_work", raw(0), [Task(0, raw(0)), Task(1, raw(0))])
    why = "RuntimeError: cannot be prepared"
    assert list(run([batch], LocalPlace(1))) == [Failed(0, why), Failed(1, why)]


def test_a_lost_task_is_run_again_and_its_companions_too(tmp_path: Path) -> None:
    told: list[tuple[int, str]] = []
    found = swept(
        tmp_path,
        ["", "dies once", "", ""],
        again=lambda task, why: told.append((task.number, why)),
    )
    assert values(found) == [0, 1, 4, 9]
    assert [number for number, _ in told] == [1, 2, 3]
    assert "its process was lost (ended by SIGKILL" in told[0][1]
    # What was answered before is not run again.
    assert sorted(number for number, _ in runs(tmp_path)) == [0, 1, 1, 2, 3]


def test_what_was_run_again_is_told_in_one_line(tmp_path: Path) -> None:
    again = Again()
    swept(tmp_path, ["", "dies once", "", ""], again=again)
    words = again.words("plan", "made")
    assert words.startswith("3 plans were made again: its process was lost (ended by SIGKILL")
    one = Task(7, raw(0))
    again = Again()
    assert again.words("plan", "made") == ""
    for why in ("first", "first", "second"):
        again(one, why)
    assert again.words("plan", "made") == "1 plan was made again: first; and 1 other reason"


def test_a_task_that_ends_its_worker_each_time_costs_no_other(tmp_path: Path) -> None:
    found = swept(tmp_path, ["", "dies", "", "", ""])
    assert isinstance(found[1], Lost)
    assert found[1].why.startswith("lost 3 times: its process was lost (ended by SIGKILL")
    assert values(found) == [0, 4, 9, 16]
    # Once with the others, and three times by itself.
    assert [number for number, _ in runs(tmp_path)].count(1) == 4


def test_a_worker_killed_from_outside_costs_no_answer(tmp_path: Path) -> None:
    def kill() -> None:
        until((tmp_path / "waiting").exists)
        pid = int(until((tmp_path / "waiting").read_text))
        os.kill(pid, signal.SIGKILL)
        (tmp_path / "go").touch()

    killer = threading.Thread(target=kill)
    killer.start()
    found = swept(tmp_path, ["", "waits", "", ""])
    killer.join()
    assert values(found) == [0, 1, 4, 9]


def test_a_stop_ends_the_workers_and_keeps_what_came(tmp_path: Path) -> None:
    stopping = Stopping()
    place = LocalPlace(1)
    found: list[Ended] = []

    def check() -> None:
        if (tmp_path / "waiting").exists():
            stopping.signals.append(signal.SIGINT)
        stopping.check()

    with pytest.raises(Stopped, match="interrupted"):
        for ended in run(made(tmp_path, ["", "waits", ""], 1), place, check=check):
            found.append(ended)
    assert values(found) == [0]
    assert all(ends(pid) for _, pid in runs(tmp_path))


def test_workers_that_cannot_begin_end_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(PlaceError, match="a worker process cannot begin: exit status 1"):
        list(run(made(tmp_path, [""] * 4, 1), LocalPlace(1)))


def test_the_time_limit_begins_where_the_run_does() -> None:
    now = 100.0
    stopping = Stopping(5.0, lambda: now)
    now = 200.0
    with stopping.watched():
        stopping.check()
        now = 206.0
        with pytest.raises(Stopped, match="the time limit of 5 s was reached"):
            stopping.check()
