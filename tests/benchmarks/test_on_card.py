"""What runs everything on a card: its parts, and that nothing of a part is left."""

import json
import subprocess
import sys
import zipfile
from argparse import Namespace
from pathlib import Path

import pytest

SLEEPS = "import time; time.sleep(600)"
STARTS_ANOTHER = (
    "import subprocess, sys; from pathlib import Path\n"
    f"other = subprocess.Popen([sys.executable, '-c', {SLEEPS!r}], start_new_session=True)\n"
    "Path(sys.argv[1]).write_text(str(other.pid))\n"
    "print('started', flush=True)\n"
)


CONFTEST = "def pytest_addoption(parser): parser.addoption('--driver')\n"
TESTS = """
from pathlib import Path

import pytest


def test_passes():
    with Path("ran").open("a") as file:
        file.write("passes\\n")


def test_passes_later():
    assert Path("again").exists()


@pytest.mark.parametrize("name", ["cupy", "jax"])
def test_framework(name):
    if not Path(name).exists():
        pytest.skip(f"needs a card and {name}")


def test_of_the_simulated_gpu():
    pytest.skip("needs the simulated GPU")
"""


def options(folder: Path) -> Namespace:
    return Namespace(folder=folder, driver="sim", mark=folder.name, again=False)


def run_tests(folder: Path, driver: str, *more: str) -> subprocess.CompletedProcess[str]:
    import on_card

    program = on_card.ROOT / "benchmarks" / "on_card_tests.py"
    words = [str(folder / "one_tests.json"), f"--driver={driver}", "-p", "no:cacheprovider", *more]
    return subprocess.run(
        [sys.executable, str(program), *words, "test_it.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("hangs", [False, True])
def test_nothing_of_a_part_is_left(tmp_path: Path, monkeypatch, hangs: bool) -> None:
    """A process in a session of its own too, whether the part ends or its time does."""
    import on_card

    monkeypatch.setattr(on_card, "GRACE", 1.0)
    source = STARTS_ANOTHER + (SLEEPS if hangs else "")
    words = [sys.executable, "-c", source, str(tmp_path / "pid")]
    part = on_card.Part("part", 2, lambda _: words)
    found = on_card.run(part, options(tmp_path), 2)
    assert found["status"] == (None if hangs else 0)
    assert "started" in (tmp_path / "part.log").read_text()
    other = Path("/proc") / (tmp_path / "pid").read_text()
    assert not other.exists() or ") Z " in (other / "stat").read_text()


def test_a_part_that_fails_does_not_end_the_rest_and_is_tried_again(
    tmp_path: Path, monkeypatch, capsys
) -> None:
    import on_card

    fails = [sys.executable, "-c", "import sys; print('why'); sys.exit(3)"]
    works = [sys.executable, "-c", "print('fine')"]
    parts = [on_card.Part("one", 60, lambda _: fails), on_card.Part("two", 60, lambda _: works)]
    monkeypatch.setattr(on_card, "PARTS", parts)
    monkeypatch.setattr(sys, "argv", ["on_card.py", str(tmp_path)])
    assert on_card.main() == 1
    done = json.loads((tmp_path / "on_card.json").read_text())
    assert {name: each["status"] for name, each in done.items()} == {"one": 3, "two": 0}
    said = capsys.readouterr().out
    assert "why" in said and "fine" in said
    monkeypatch.setattr(on_card, "PARTS", [on_card.Part("one", 60, lambda _: works), parts[1]])
    assert on_card.main() == 0
    assert "two: done before" in capsys.readouterr().out


def writes(path: Path, stopped: str) -> list[str]:
    """In place of `vramkit lab`."""
    source = "import sys; from pathlib import Path; Path(sys.argv[1]).write_text(sys.argv[2])"
    return [sys.executable, "-c", source, str(path), json.dumps({"stopped": stopped})]


def test_a_part_of_the_lab_is_done_when_its_result_is_whole(
    tmp_path: Path, monkeypatch, capsys
) -> None:
    import on_card

    part = on_card.lab("fragmentation")
    output = tmp_path / "lab_fragmentation.json"
    asked = []

    def run(stopped: str) -> int:
        def command(options: Namespace) -> list[str]:
            asked.append(part.command(options))
            return writes(output, stopped)

        monkeypatch.setattr(on_card, "PARTS", [part._replace(command=command)])
        return int(on_card.main())

    monkeypatch.setattr(sys, "argv", ["on_card.py", str(tmp_path)])
    assert run("the time limit of 505 s was reached") == 1
    done = json.loads((tmp_path / "on_card.json").read_text())
    limit = "to be continued: the time limit of 505 s was reached"
    assert done["lab_fragmentation"]["status"] == limit
    assert run("") == 0
    assert run("") == 0 and "lab_fragmentation: done before" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["on_card.py", str(tmp_path), "--again"])
    assert run("") == 0
    first, second, again = ([str(word) for word in words] for words in asked)
    assert first[first.index("--output") + 1] == str(output) and "--continue" not in first
    assert second[second.index("--continue") + 1] == str(output) and "--output" not in second
    assert "--output" in again and "--continue" not in again


def test_parts_start_only_with_time_for_them(tmp_path: Path, monkeypatch) -> None:
    import on_card

    part = on_card.Part("one", 60, lambda _: ["false"])
    monkeypatch.setattr(on_card, "PARTS", [part])
    monkeypatch.setattr(sys, "argv", ["on_card.py", str(tmp_path), "--time-limit", "20"])
    assert on_card.main() == 1
    assert json.loads((tmp_path / "on_card.json").read_text())["one"]["status"] == "not started"


def test_what_the_parts_run_is_there(tmp_path: Path) -> None:
    import on_card

    for part in on_card.PARTS:
        for word in part.command(options(tmp_path)):
            if word.endswith((".py", ".cpp")) or word.startswith("tests/"):
                assert (on_card.ROOT / word).exists(), word


@pytest.mark.parametrize("processes", [[], ["-p", "xdist", "-n", "2"]], ids=["one", "several"])
def test_tests_go_on_where_they_stopped(tmp_path: Path, processes: list[str]) -> None:
    """Those that failed, and those for which something was missing, are tried again."""
    import on_card

    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "jax").touch()
    part = on_card.Part("one", 60, lambda _: [])
    first = run_tests(tmp_path, "cuda", *processes)
    assert first.returncode == 1, first.stdout
    assert on_card.outcomes(tmp_path, part) == {
        "passed": 2,
        "others": {
            "test_it.py::test_passes_later": "failed",
            "test_it.py::test_framework[cupy]": "skipped: needs a card and cupy",
        },
    }
    (tmp_path / "again").touch()
    second = run_tests(tmp_path, "cuda", *processes)
    assert second.returncode == 1, second.stdout
    assert "skipped: needs a card and cupy: test_it.py::test_framework[cupy]" in second.stdout
    assert (tmp_path / "ran").read_text() == "passes\n"
    (tmp_path / "cupy").touch()
    for _ in range(2):
        again = run_tests(tmp_path, "cuda", *processes)
        assert again.returncode == 0, again.stdout
        assert on_card.outcomes(tmp_path, part) == {"passed": 4, "others": {}}


def test_a_file_that_is_skipped_as_a_whole_is_not_done(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(
        "import pytest\n\npytest.importorskip('not_here')\n\n\ndef test_one(): pass\n"
    )
    found = run_tests(tmp_path, "cuda")
    assert found.returncode != 0
    assert "skipped: could not import 'not_here'" in found.stdout


def test_what_needs_a_card_is_not_missing_on_the_simulated_one(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "again").touch()
    found = run_tests(tmp_path, "sim")
    assert found.returncode == 1
    assert "skipped: needs the simulated GPU: test_it.py::test_of_the_simulated" in found.stdout
    assert "cupy" not in found.stdout.partition("skipped:")[2]


def test_programs_in_wheels_can_run(tmp_path: Path, monkeypatch) -> None:
    import on_card

    monkeypatch.setattr(on_card, "WHEELS", tmp_path)
    monkeypatch.setattr(on_card, "SITE", tmp_path / "site")
    with zipfile.ZipFile(tmp_path / "one.whl", "w") as wheel:
        for name, mode in (("one/program", 0o100755), ("one/text", 0o100644)):
            each = zipfile.ZipInfo(name)
            each.external_attr = mode << 16
            wheel.writestr(each, "")
    on_card.unpack()
    modes = {each.name: each.stat().st_mode & 0o111 for each in (tmp_path / "site/one").iterdir()}
    assert modes["program"] == 0o111
    assert modes["text"] == 0


def test_parts_on_demand_run_only_by_name(tmp_path: Path, monkeypatch, capsys) -> None:
    import on_card

    works = [sys.executable, "-c", "print('fine')"]
    one = on_card.Part("one", 60, lambda _: works)
    two = on_card.Part("two", 60, lambda _: works, on_demand=True)
    monkeypatch.setattr(on_card, "PARTS", [one, two])
    for words, done in (([], {"one"}), (["--only", "two"], {"one", "two"})):
        monkeypatch.setattr(sys, "argv", ["on_card.py", str(tmp_path), *words])
        assert on_card.main() == 0
        assert set(json.loads((tmp_path / "on_card.json").read_text())) == done
