"""A daemon for each test: in this process on a thread of its own, or as a process."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from vramkit.share.connect import Controls, NoDaemonError
from vramkit.share.daemon.connection import peer_of
from vramkit.share.daemon.server import Server

from .client import SECONDS, FakeClient
from .machine import Machine
from .works import build_works, run_natively


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runtime and settings folder of this test; a socket's path must be short."""
    folder = tmp_path_factory.mktemp("d")
    folder.chmod(0o700)
    monkeypatch.setenv("VRAMKIT_SOCKET", str(folder / "daemon.sock"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
    return folder


class Running:
    """A server on a thread of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.peer = peer_of
        self._thread: threading.Thread | None = None

    def start(self, **options: object) -> None:
        ready = threading.Event()
        problem: list[BaseException] = []

        async def serve() -> None:
            self.server = Server(self.path, peer=lambda sock: self.peer(sock), **options)  # type: ignore[arg-type]
            self.loop = asyncio.get_running_loop()
            await self.server.run(ready.set)

        def run() -> None:
            try:
                asyncio.run(serve())
            except BaseException as error:
                problem.append(error)
                ready.set()

        self._thread = threading.Thread(target=run)
        self._thread.start()
        assert ready.wait(SECONDS)
        if problem:
            raise problem[0]

    def stop(self) -> None:
        if self._thread is not None:
            self.loop.call_soon_threadsafe(self.server.stop)
            self._thread.join(SECONDS)
            assert not self._thread.is_alive()
            self._thread = None

    def configure(self, **settings: str) -> None:
        with Controls(self.path) as controls:
            for name, value in settings.items():
                controls.ask("configure", name=name, value=value)


@pytest.fixture
def daemon(folder: Path) -> Iterator[Running]:
    running = Running(folder / "daemon.sock")
    running.start()
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture
def clients(folder: Path) -> Iterator[Callable[..., FakeClient]]:
    """Makes clients of the test's daemon, connected; each has start ticks of its own."""
    made: list[FakeClient] = []

    def make(**options: object) -> FakeClient:
        client = FakeClient(folder / "daemon.sock", ticks=1000 + len(made), **options)  # type: ignore[arg-type]
        client.connect()
        made.append(client)
        return client

    yield make
    for client in made:
        client.close()


@pytest.fixture
def daemon_process(folder: Path) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Starts daemons as processes, one after the other."""
    started: list[subprocess.Popen[bytes]] = []
    source = (
        "import sys; from pathlib import Path\n"
        "from vramkit.share.daemon.process import serve_in_foreground\n"
        "serve_in_foreground(Path(sys.argv[1]), system=False)\n"
    )

    def start() -> subprocess.Popen[bytes]:
        path = folder / "daemon.sock"
        process = subprocess.Popen(
            [sys.executable, "-c", source, str(path)], stderr=subprocess.DEVNULL, env=os.environ
        )
        started.append(process)
        end = time.monotonic() + SECONDS
        while True:
            try:
                Controls(path).close()
                return process
            except NoDaemonError:
                assert time.monotonic() < end and process.poll() is None
                time.sleep(0.01)

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def works(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """programs/works.cpp, built."""
    return build_works(tmp_path_factory.mktemp("works"))


@pytest.fixture
def machine(folder: Path, works: Path) -> Iterator[Machine]:
    """A simulated card; the test starts its daemon and its programs."""
    machine = Machine(folder, works)
    try:
        yield machine
    finally:
        machine.finish()
    machine.check_nothing_is_left()


@pytest.fixture(scope="session")
def natively(works: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """What works prints, with these words, when it has a card of its own."""
    known: dict[tuple[str, ...], str] = {}

    def output(*words: object) -> str:
        key = tuple(map(str, words))
        if key not in known:
            folder = tmp_path_factory.mktemp("native")
            done = run_natively([str(works), *key], folder, "capacity=2GiB")
            assert done.status == 0, done
            known[key] = done.output
        return known[key]

    return output
