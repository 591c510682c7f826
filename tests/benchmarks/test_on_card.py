"""What runs everything on a card: its parts, and that nothing of a part is left."""

import json
import sys
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


def options(folder: Path) -> Namespace:
    return Namespace(folder=folder, driver="sim", mark=folder.name, again=False)


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
            if word.endswith((".py", ".cpp")):
                assert (on_card.ROOT / word).is_file(), word
