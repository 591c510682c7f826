"""What a node announces, and how Ray is started with it. No Ray needed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from host.machine import write_meminfo

from vramkit.cli.app import main
from vramkit.cluster.cards import Card, cards_here, host_shortage
from vramkit.integrations.ray import node
from vramkit.share.settings import ALL_CARDS, SettingError, ShareSettings, changed

MIB = 1 << 20
GIB = 1 << 30

pytestmark = pytest.mark.sim_only


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No daemon, and settings of this test alone."""
    monkeypatch.setenv("VRAMKIT_SOCKET", str(tmp_path / "daemon.sock"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("VRAMKIT_DRIVER", "sim")
    monkeypatch.delenv(node.PLUGINS_VARIABLE, raising=False)
    return tmp_path


@pytest.mark.sim(devices=2, capacity=4 * GIB)
def test_cards_announce_their_budgets_times_the_factor(driver: object) -> None:
    reserve = 512 * MIB
    first, second = cards_here(ShareSettings(oversubscription=1.5))
    assert first.uuid != second.uuid
    assert (first.total, first.budget) == (4 * GIB, 4 * GIB - reserve)
    assert first.announced == second.announced == (4 * GIB - reserve) * 3 // 2
    chosen = ShareSettings(budget={ALL_CARDS: 3 * GIB, second.uuid: 1 * GIB})
    assert [card.announced for card in cards_here(chosen)] == [3 * GIB, 1 * GIB]


def test_more_than_the_host_could_hold_is_said(tmp_path: Path) -> None:
    """What is announced beyond the budget would be there."""
    write_meminfo(tmp_path, MemTotal=64 << 20, MemAvailable=32 << 20)
    settings = ShareSettings(reserve=0, oversubscription=1.5)
    cards = [Card.of(name, 32 * GIB, settings) for name in "ab"]
    assert host_shortage(cards, tmp_path) == ""
    cards.append(Card.of("c", GIB, ShareSettings(reserve=0, oversubscription=3.0)))
    said = host_shortage(cards, tmp_path)
    assert said.startswith("up to 34 GiB of what is announced") and "32 GiB are left" in said, said
    assert "available RAM (of 64 GiB)" in said and "config oversubscription" in said


@pytest.mark.parametrize("text", ["0.9", "17", "-1", "much", "1.5x", ""])
def test_factor_out_of_range_is_refused(text: str) -> None:
    with pytest.raises(SettingError, match=r"oversubscription is .*; it may be 1 to 16"):
        changed(ShareSettings(), "oversubscription", text)


@pytest.mark.sim(devices=2, capacity=4 * GIB)
def test_resources_are_what_ray_start_takes(
    driver: object, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["config", "oversubscription", "1.5"]) == 0
    capsys.readouterr()
    assert main(["cluster", "resources", "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == {"vram_mib": 2 * 3584 * 3 // 2} and said.out.count("\n") == 1
    assert "Ray ignores memory limits" in said.err
    assert main(["cluster", "resources", "--json", "--oversubscription", "2"]) == 0
    assert json.loads(capsys.readouterr().out) == {"vram_mib": 4 * 3584}
    # With the variable that it names there is nothing more to say.
    monkeypatch.setenv(*next(iter(node.node_environment({}).items())))
    assert main(["cluster", "resources", "--json"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["cluster", "resources"]) == 0
    assert "3.50 GiB for programs, 5.25 GiB announced" in capsys.readouterr().out
    assert main(["cluster", "resources", "--oversubscription", "99"]) == 2


def test_other_plugins_of_the_node_are_kept() -> None:
    other = {"class": "somebody.Else", "priority": 3}
    found = node.node_environment({node.PLUGINS_VARIABLE: json.dumps([other])})
    assert json.loads(found[node.PLUGINS_VARIABLE]) == [other, {"class": node.PLUGIN}]
    assert node.node_environment(found) == found
    assert node.understands_options(found) and not node.understands_options({})


def test_command_that_starts_ray(driver: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "find_spec", lambda name: object())
    monkeypatch.setattr(node, "node_resources", lambda factor: {"vram_mib": int(100 * factor)})
    joining = node.start_command("10.0.0.1:6379", oversubscription=2.0, arguments=["--block"])
    assert joining[1:] == [
        "-m", "ray.scripts.scripts", "start", "--address=10.0.0.1:6379",
        '--resources={"vram_mib": 200}', "--block",
    ]  # fmt: skip
    head = node.start_command(oversubscription=1.0, resources={"disk": 3})
    assert "--head" in head and '--resources={"disk": 3, "vram_mib": 100}' in head
    with pytest.raises(ValueError, match="give resources= and address="):
        node.start_command(arguments=["--resources={}"])


def test_ray_that_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(node, "find_spec", lambda name: None)
    assert main(["cluster", "start"]) == 1
    assert "install vramkit[ray]" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["top", "--cluster"]) == 1
    assert "install vramkit[ray]" in capsys.readouterr().err


def test_links_of_programs_that_outlive_their_starter_are_their_users(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place))
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    place.chmod(0o700)
    try:
        assert main(["cluster", "environment", "--memory=1GiB"]) == 0
        lines = capsys.readouterr().out.splitlines()
        (folder,) = [line.split("=")[1] for line in lines if "LD_LIBRARY_PATH" in line]
        assert Path(folder).parent == place / "vramkit"
        assert {each.stat().st_mode & 0o777 for each in (Path(folder), Path(folder).parent)} == {
            0o700
        }
        Path(folder).parent.chmod(0o777)
        assert main(["cluster", "environment", "--memory=1GiB"]) == 1
        assert "may be written by others" in capsys.readouterr().err
    finally:
        main(["daemon", "stop"])


def test_environment_of_a_program_that_somebody_else_starts(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line each, which a shell and Slurm understand; what is there already is kept."""
    monkeypatch.setenv("LD_LIBRARY_PATH", "/there/before")
    links = place / "links"
    links.mkdir()
    place.chmod(0o700)
    words = ["--memory=1GiB", "--weight=2", f"--links={links}"]
    try:
        assert main(["cluster", "environment", *words]) == 0
        lines = capsys.readouterr().out.splitlines()
        told = dict(line.removeprefix("export ").split("=", 1) for line in lines)
        assert told["VRAMKIT_SHARE_MEMORY"] == str(GIB)
        assert told["VRAMKIT_SHARE_WEIGHT"] == "2000"
        assert told["VRAMKIT_SHARE_SOCKET"] == str(place / "daemon.sock")
        assert Path(told["LD_PRELOAD"]).is_file()
        assert told["LD_LIBRARY_PATH"] == f"{links}:/there/before"
        assert sorted(each.name for each in links.iterdir()) == ["libcuda.so", "libcuda.so.1"]
        assert main(["daemon", "stop"]) == 0
        assert main(["cluster", "environment", "--memory=much"]) == 2
        assert "--memory is 'much'" in capsys.readouterr().err
    finally:
        main(["daemon", "stop"])
