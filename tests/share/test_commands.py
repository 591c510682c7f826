"""run, status, top, config and daemon: as users call them, with daemons of their own."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from vramkit import share
from vramkit.cli import main
from vramkit.share import paths
from vramkit.share.connect import Controls, NoDaemonError, ensure_daemon
from vramkit.share.run import RunOptions, variables
from vramkit.share.settings import ShareSettings, changed

from .client import GIB, SECONDS, FakeClient, until
from .conftest import Running


@pytest.fixture
def own_daemon(folder: Path) -> Iterator[Path]:
    """Whatever daemon the test has started is stopped."""
    path = folder / "daemon.sock"
    yield path
    try:
        with Controls(path) as controls:
            pid = int(controls.ask("stop"))
    except NoDaemonError:
        return
    end = time.monotonic() + SECONDS
    while Path(f"/proc/{pid}").exists() and time.monotonic() < end:
        time.sleep(0.01)


def test_run_starts_the_daemon_and_tells_the_program(
    own_daemon: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["--memory", "12GiB", "--weight", "2", "--priority", "3", "--ipc", "--mode", "paged"]
    assert main(["run", *words, "--", "sh", "-c", "env; exit 5"]) == 5
    told = dict(line.split("=", 1) for line in capfd.readouterr().out.splitlines() if "=" in line)
    shared = {name: value for name, value in told.items() if name.startswith("VRAMKIT_SHARE")}
    assert shared == {
        "VRAMKIT_SHARE": "paged",
        "VRAMKIT_SHARE_SOCKET": str(own_daemon),
        "VRAMKIT_SHARE_MEMORY": str(12 * GIB),
        "VRAMKIT_SHARE_WEIGHT": "2000",
        "VRAMKIT_SHARE_PRIORITY": "3",
        "VRAMKIT_SHARE_WINDOW": "64",
        "VRAMKIT_SHARE_HOST_LIMIT": "0",
        "VRAMKIT_SHARE_IPC": "1",
    }
    assert "gate" in told["LD_PRELOAD"]
    assert main(["daemon", "status", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["socket"] == str(own_daemon)


def test_chaos_needs_no_daemon(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = folder / "log"
    assert main(["run", "--json", "--chaos", "7", "--log", str(log), "--", "env"]) == 0
    out = capfd.readouterr().out
    assert "VRAMKIT_SHARE_CHAOS=7" in out
    assert f"VRAMKIT_SHARE_LOG={log}" in out
    assert "VRAMKIT_SHARE_SOCKET" not in out
    assert '"status": 0' in out
    assert not (folder / "daemon.sock").exists()


def test_settings_reach_the_program() -> None:
    told = variables(RunOptions(), Path("/s"), ShareSettings(window=9, limit=5, host_limit=7))
    assert (told["VRAMKIT_SHARE_WINDOW"], told["VRAMKIT_SHARE_MEMORY"]) == ("9", "5")
    assert told["VRAMKIT_SHARE_HOST_LIMIT"] == "7"


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["run"], 2, "run needs a program"),
        (["run", "--nonsense", "true"], 2, "--nonsense"),
        (["run", "--memory", "much", "--", "true"], 2, "--memory is 'much'"),
        (["run", "--weight", "0", "--", "true"], 2, "--weight is 0"),
        (["run", "--priority", "5000", "--", "true"], 2, "--priority is 5000"),
        (["run", "--chaos", "-1", "--", "true"], 2, "--chaos is -1"),
        (["run", "--mode", "magic", "--", "true"], 2, "magic"),
        (["run", "--log", "/no/such/log", "--", "true"], 2, "no folder /no/such"),
        (["run", "--", "no-such-program"], 127, "no-such-program: not found"),
        (["status"], 1, "no daemon answers"),
        (["top"], 1, "no daemon answers"),
        (["top", "--interval", "0"], 2, "--interval is 0"),
        (["daemon", "stop"], 1, "no daemon answers"),
        (["daemon", "logs"], 1, "there is no log"),
        (["daemon", "dance"], 2, "dance"),
        (["daemon", "stop", "--foreground"], 2, "go with"),
        (["config", "speed", "1"], 2, "no setting speed"),
        (["config", "quantum", "never"], 2, "quantum is 'never'"),
        (["config", "budget", "-5"], 2, "-5"),
        (["config", "limit", "1GiB", "--card", "GPU-1"], 2, "only budget"),
    ],
)
def test_wrong_usage_is_one_line(
    folder: Path, words: list[str], status: int, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == status
    error = capfd.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1
    assert not (folder / "daemon.sock").exists()


@pytest.mark.parametrize("command", ["run", "status", "top", "config", "daemon"])
def test_help(command: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    assert "Exit status" in capfd.readouterr().out


def test_config_is_kept_and_applied_live(
    daemon: Running, clients: Callable[..., FakeClient], capfd: pytest.CaptureFixture[str]
) -> None:
    client = clients()
    assert main(["config", "budget", "10GiB"]) == 0
    until(lambda: client.budget == 10 * GIB, [client])
    assert main(["config", "quantum", "adaptive", "--json"]) == 0
    assert json.loads(capfd.readouterr().out.partition("\n")[2]) == {"quantum": None}
    uuid = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert main(["config", "budget", "11GiB", "--card", uuid]) == 0
    until(lambda: client.budget == 11 * GIB, [client])
    capfd.readouterr()
    daemon.stop()
    assert main(["config", "--json"]) == 0
    kept = json.loads(capfd.readouterr().out)
    assert kept["budget"] == {"all": 10 * GIB, uuid: 11 * GIB}
    assert main(["config", "budget", "none"]) == 0
    assert main(["config", "budget", "none", "--card", uuid]) == 0
    assert main(["config"]) == 0
    assert "budget = total less the reserve" in capfd.readouterr().out


def test_a_damaged_settings_file_is_named(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = paths.settings_file(system=False)
    file.parent.mkdir(parents=True)
    file.write_text('{"quantum": "long"}')
    assert main(["config"]) == 2
    assert str(file) in capfd.readouterr().err
    assert main(["daemon", "start"]) == 1
    assert str(file) in capfd.readouterr().err


def test_status_top_and_metrics_show_where_memory_is(
    daemon: Running, clients: Callable[..., FakeClient], capfd: pytest.CaptureFixture[str]
) -> None:
    daemon.configure(budget="20GiB", quantum="1h")
    first, second = clients(name='a "name"'), clients(name="other")
    first.start(12 * GIB)
    until(lambda: first.running_said, [first])
    second.start(12 * GIB)
    until(lambda: second.resident == 8 * GIB, [first, second])
    second.usage()
    until(lambda: True, [first, second])
    capfd.readouterr()
    assert main(["status", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    states = {program["name"]: program["state"] for program in found["programs"]}
    assert states == {'a "name"': "running", "other": "waiting"}
    assert found["cards"][0]["free"] == 0
    assert main(["status"]) == 0
    shown = capfd.readouterr().out
    assert "20 GiB for programs, 20 GiB held, 0 B free" in shown
    assert "running" in shown and "12 GiB" in shown
    assert main(["top", "--count", "2", "--interval", "0.1"]) == 0
    assert capfd.readouterr().out.count("PROGRAM") == 2
    assert main(["top", "--count", "2", "--interval", "0.1", "--json"]) == 0
    assert len([json.loads(line) for line in capfd.readouterr().out.splitlines()]) == 2
    assert main(["daemon", "metrics"]) == 0
    text = capfd.readouterr().out
    uuid = found["cards"][0]["uuid"]
    node = socket.gethostname()
    assert f'vramkit_card_budget_bytes{{node="{node}",card="{uuid}"}} {20 * GIB}' in text
    assert r'name="a \"name\""' in text


def test_labels_of_a_program_stay_as_they_were_when_it_came(
    daemon: Running,
    clients: Callable[..., FakeClient],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its control group is not to be read any more when it ends between two reads."""
    from vramkit.share.daemon import server

    found = [{"slurm_job": "1"}, {"slurm_job": "2"}, {}, {}]
    monkeypatch.setattr(server, "origin_of", lambda pid: found.pop(0))
    clients(name="first")
    second = clients(name="second")
    until(lambda: len(found) == 2, [second])
    for _ in range(2):
        capfd.readouterr()
        assert main(["daemon", "metrics"]) == 0
        lines = capfd.readouterr().out.splitlines()
        turns = [line for line in lines if line.startswith("vramkit_program_turns_total{")]
        assert [("first" in line, 'slurm_job="1"' in line) for line in turns] == [
            (True, True),
            (False, False),
        ]
        assert 'slurm_job="2"' in turns[1] and len(found) == 2
    for _ in range(2):
        clients(name="passing").bye()
        until(lambda: len(daemon.server.sharing.clients) == 2, [second])
    # Those of programs that have ended are not kept.
    assert found == [] and len(daemon.server._origins) == 3


def test_metrics_over_http_on_loopback_only(daemon: Running) -> None:
    import urllib.request

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    daemon.configure(metrics_port=str(port))
    end = time.monotonic() + SECONDS
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                assert "vramkit_uptime_seconds" in answer.read().decode()
            break
        except urllib.error.URLError:
            assert time.monotonic() < end
            time.sleep(0.01)
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/other")


def test_top_ends_quietly_at_ctrl_c_in_a_terminal(daemon: Running) -> None:
    ours, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "vramkit.cli", "top"], stdout=terminal, stderr=subprocess.PIPE
    )
    os.close(terminal)
    shown = b""
    while b"no program is connected" not in shown:
        shown += os.read(ours, 4096)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert process.stderr.read() == b""
    assert process.wait(SECONDS) == 0
    process.stderr.close()
    os.close(ours)


def test_many_starts_at_the_same_moment_make_one_daemon(own_daemon: Path) -> None:
    source = (
        "import sys; from pathlib import Path\n"
        "from vramkit.share.connect import Controls, ensure_daemon\n"
        "path = Path(sys.argv[1]); ensure_daemon(path)\n"
        "print(Controls(path).status().daemon.pid)\n"
    )
    command = [sys.executable, "-c", source, str(own_daemon)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    said = {process.communicate(timeout=60)[0].strip() for process in started}
    assert len(said) == 1 and said.pop().isdigit()


def test_logs_are_the_last_lines_of_the_daemon(
    own_daemon: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of one that runs, and of one that has ended."""
    ensure_daemon(own_daemon)
    assert main(["config", "quantum", "7"]) == 0
    capfd.readouterr()
    assert main(["daemon", "logs"]) == 0
    whole = capfd.readouterr().out
    assert f"listening at {own_daemon}" in whole
    assert "quantum=7.0" in whole.splitlines()[-1]
    assert main(["daemon", "stop"]) == 0
    until(lambda: "ended" in paths.log_file(own_daemon, False).read_text(), [])
    capfd.readouterr()
    assert main(["daemon", "logs", "--lines", "1"]) == 0
    last = capfd.readouterr().out
    assert len(last.splitlines()) == 1 and "ended" in last


def test_a_daemon_ends_when_nobody_is_there(own_daemon: Path) -> None:
    assert main(["config", "idle_exit", "100ms"]) == 0
    ensure_daemon(own_daemon)
    until(lambda: not own_daemon.exists(), [])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_the_daemon_orderly(own_daemon: Path, number: signal.Signals) -> None:
    ensure_daemon(own_daemon)
    with Controls(own_daemon) as controls:
        pid = controls.status().daemon.pid
    os.kill(pid, number)
    until(lambda: not own_daemon.exists(), [])
    until(lambda: "ended" in paths.log_file(own_daemon, False).read_text(), [])


def test_a_socket_of_a_daemon_that_was_killed_is_replaced(own_daemon: Path) -> None:
    ensure_daemon(own_daemon)
    with Controls(own_daemon) as controls:
        pid = controls.status().daemon.pid
    os.kill(pid, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{pid}/fd/0").exists(), [])
    assert own_daemon.exists()
    ensure_daemon(own_daemon)
    with Controls(own_daemon) as controls:
        assert controls.status().daemon.pid != pid


def test_system_daemon_that_another_process_is_starting_is_awaited(
    own_daemon: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It holds the lock, and does not serve yet: so of two at once, both succeed."""
    from vramkit.share.daemon import process

    monkeypatch.setattr(paths, "SYSTEM_FOLDER", own_daemon.parent)
    lock = process.take_lock(paths.lock_file(own_daemon, False))

    def serve() -> None:
        os.close(lock)
        command = [sys.executable, "-m", "vramkit.share.daemon.process", str(own_daemon)]
        subprocess.run(command, check=True)

    later = threading.Timer(0.5, serve)

    def in_background(path: Path, *, system: bool) -> None:
        later.start()

    monkeypatch.setattr(process, "serve_in_background", in_background)
    try:
        assert main(["daemon", "start", "--system"]) == 0
    finally:
        later.join()
    assert f"at {own_daemon}" in capsys.readouterr().out


def test_where_the_socket_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("VRAMKIT_SOCKET", raising=False)
    monkeypatch.setattr(paths, "SYSTEM_FOLDER", tmp_path / "none")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert paths.chosen_socket() == Path("/run/user/7/vramkit/daemon.sock")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert paths.chosen_socket() == Path(f"/tmp/vramkit-{os.getuid()}/daemon.sock")
    monkeypatch.setenv("VRAMKIT_SOCKET", "/x/y.sock")
    assert paths.chosen_socket() == Path("/x/y.sock")


def test_the_unit_makes_the_folders_and_may_listen_wherever_metrics_may_be() -> None:
    unit = (Path(share.__path__[0]) / "vramkit.service").read_text()
    lines = dict(line.split("=", 1) for line in unit.splitlines() if "=" in line)
    socket = paths.system_socket()
    folders = [socket.parent, paths.private_folder(socket, system=True)]
    assert [Path("/run") / each for each in lines["RuntimeDirectory"].split()] == folders
    changed(ShareSettings(), "metrics_host", "::1")
    assert {"AF_UNIX", "AF_INET", "AF_INET6"} == set(lines["RestrictAddressFamilies"].split())
