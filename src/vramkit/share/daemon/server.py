"""The sockets: who may connect, whose bytes go where, and when the daemon ends."""

from __future__ import annotations

import asyncio
import grp
import json
import logging
import math
import os
import pwd
import socket
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from vramkit.share import paths, protocol
from vramkit.share.daemon import plausible
from vramkit.share.daemon.connection import Connection, Peer, peer_of
from vramkit.share.daemon.metrics import metrics_text
from vramkit.share.daemon.metrics_server import MetricsServer
from vramkit.share.daemon.nvml import Nvml
from vramkit.share.daemon.origin import origin_of
from vramkit.share.daemon.returning import Returning, is_there
from vramkit.share.daemon.sharing import Client, RefusedError, Sharing
from vramkit.share.protocol import Decoder, Message, ProtocolError
from vramkit.share.settings import (
    ALL_CARDS,
    SettingError,
    ShareSettings,
    changed,
    read_settings,
    write_settings,
)
from vramkit.share.status import DaemonStatus, Status

logger = logging.getLogger(__name__)

MOST_CONNECTIONS = 1024
# A connection that has not said what it is after so long is ended.
GREETING_SECONDS = 10.0
LOOK_SECONDS = 1.0
MEASURE_SECONDS = 5.0
# A process that connects again names its cards at once.
CONFIRM_SECONDS = 2.0


class Talk:
    """A connection, and what it turned out to be."""

    def __init__(self) -> None:
        self.decoder = Decoder("client")
        self.client: Client | None = None
        self.is_control = False
        self.line = bytearray()
        self.since = time.monotonic()


class Server:
    def __init__(
        self,
        path: Path,
        *,
        system: bool = False,
        fixed: bool = False,
        settings_file: Path | None = None,
        peer: Callable[[socket.socket], Peer] = peer_of,
        nvml: Nvml | None = None,
    ) -> None:
        """`fixed`: nobody may configure or stop it over the socket, which root of any container
        could. `peer`: how the other end of a connection is known. Raises SettingError.
        """
        self.path, self.system, self.fixed = path, system, fixed
        self._settings_file = settings_file or paths.settings_file(system)
        self._peer = peer
        self._nvml = nvml or Nvml()
        self.sharing = Sharing(
            read_settings(self._settings_file), time.monotonic, self._nvml, system=system
        )
        self.sharing.refuse = self._refuse_client
        self._talks: dict[Connection, Talk] = {}
        self._pidfds: dict[int, int] = {}
        self._listening: socket.socket | None = None
        self._inode = 0
        self._timer: asyncio.TimerHandle | None = None
        self._settling = False
        self._ended = asyncio.Event()
        self._started = self._last_there = time.monotonic()
        self._refused = 0
        self._returning = Returning()
        self._origins: dict[int, dict[str, str]] = {}
        """Of each client as it was when it came: labels that change would be another series."""
        self._node = os.environ.get("VRAMKIT_NODE") or socket.gethostname()
        self._metrics = MetricsServer(lambda: self._metrics_of(Peer(0, os.getuid(), 0)))
        self._background: set[asyncio.Task[None]] = set()

    # Life

    async def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Serves until `stop`, or until nobody has been there for a while."""
        self._await_former_clients()
        self._listen()
        await self._serve_metrics()
        looking = asyncio.create_task(self._look_around())
        logger.info("listening at %s", self.path)
        ready()
        try:
            await self._ended.wait()
        finally:
            looking.cancel()
            self._close()

    def stop(self) -> None:
        self._ended.set()

    def _close(self) -> None:
        self._remember_clients()
        if self._timer is not None:
            self._timer.cancel()
        self._metrics.close()
        for connection in list(self._talks):
            connection.close()
        for client in list(self.sharing.clients.values()):
            self._forget_process(client)
            client.page.close()
        if self._listening is not None:
            self._stop_listening(self._listening)
        with suppress(OSError):
            if self.path.stat().st_ino == self._inode:
                self.path.unlink()
        logger.info("ended")

    # The socket

    def _listen(self) -> None:
        paths.make_folder(self.path.parent, self.system)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            # The lock is ours, so a socket that is there belongs to a daemon that has died.
            with suppress(FileNotFoundError):
                if not stat.S_ISSOCK(self.path.lstat().st_mode):
                    raise paths.PlaceError(f"{self.path} is there and is no socket; remove it")
                self.path.unlink()
            before = os.umask(0o111 if self.system else 0o177)
            try:
                listening.bind(str(self.path))
            finally:
                os.umask(before)
            listening.listen(128)
            listening.setblocking(False)
        except OSError:
            listening.close()
            raise
        self._inode = self.path.stat().st_ino
        asyncio.get_running_loop().add_reader(listening.fileno(), self._accept, listening)
        self._listening = listening

    def _stop_listening(self, listening: socket.socket) -> None:
        asyncio.get_running_loop().remove_reader(listening.fileno())
        listening.close()

    def _listen_again(self, listening: socket.socket) -> None:
        if listening is self._listening and not self._ended.is_set():
            asyncio.get_running_loop().add_reader(listening.fileno(), self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        try:
            sock, _ = listening.accept()
        except BlockingIOError:
            return
        except OSError as error:
            # Too many descriptors: it stays readable, and is looked at again later.
            logger.warning("a connection could not be taken: %s", error)
            loop = asyncio.get_running_loop()
            loop.remove_reader(listening.fileno())
            loop.call_later(LOOK_SECONDS, self._listen_again, listening)
            return
        try:
            peer = self._peer(sock)
        except OSError as error:
            logger.warning("a connection without credentials: %s", error)
            sock.close()
            return
        text = self._why_refused(peer)
        if text:
            self._refused += 1
            logger.warning("refused process %d of user %d: %s", peer.pid, peer.uid, text)
            with suppress(OSError):
                sock.setblocking(False)
                sock.send(protocol.encode(protocol.Refuse(text)))
            sock.close()
            return
        self._talks[Connection(sock, peer, self._received, self._connection_ended)] = Talk()
        self._last_there = time.monotonic()

    def _why_refused(self, peer: Peer) -> str:
        """Empty: it may connect."""
        if not (self.system or peer.uid in (0, os.getuid())):
            return f"this daemon serves user {os.getuid()} only"
        # A process that was lost takes as much of the daemon as one that is connected.
        lost = [each.uid for each in self.sharing.clients.values() if each.send is None]
        users = [connection.peer.uid for connection in self._talks] + lost
        own = users.count(peer.uid)
        if plausible.has_place(own, len(users), MOST_CONNECTIONS):
            return ""
        return f"there are too many connections: {own} of user {peer.uid}, {len(users)} of all"

    def _may_configure(self, peer: Peer) -> bool:
        if peer.uid in (0, os.getuid()):
            return True
        group = self.sharing.settings.admin_group
        if not self.system or not group:
            return False
        try:
            found = grp.getgrnam(group)
            user = pwd.getpwuid(peer.uid).pw_name
        except KeyError:
            return False
        return peer.gid == found.gr_gid or user in found.gr_mem

    # What comes in

    def _received(self, connection: Connection, data: bytes) -> None:
        talk = self._talks[connection]
        try:
            if not talk.is_control:
                talk.decoder.feed(data)
                for message in talk.decoder.messages():
                    self._message(connection, talk, message)
                    if connection.closed:
                        return
                    if talk.is_control:
                        data = talk.decoder.rest()
                        break
            if talk.is_control:
                self._control(connection, talk, data)
        except (ProtocolError, RefusedError) as error:
            self._refuse(connection, str(error))

    def _message(self, connection: Connection, talk: Talk, message: Message) -> None:
        if talk.client is not None:
            logger.debug("from %d: %s", talk.client.number, message)
            self.sharing.receive(talk.client, message)
            if isinstance(message, protocol.Bye):
                self._forget_process(talk.client)
                talk.client = None
                connection.close_after_sending()
        elif isinstance(message, protocol.Control):
            talk.is_control = True
        elif isinstance(message, protocol.Hello):
            self._hello(connection, talk, message)
        else:
            raise RefusedError(f"{type(message).__name__.lower()} comes before hello")
        self._settle_soon()

    def _hello(self, connection: Connection, talk: Talk, hello: protocol.Hello) -> None:
        peer = connection.peer

        def send(message: Message, descriptors: tuple[int, ...]) -> None:
            connection.send(protocol.encode(message), descriptors)

        # A process of another PID namespace has the number 0 here.
        pid = peer.pid or hello.pid
        before = self.sharing.find(peer.uid, pid, hello.start_ticks)
        talk.client = self.sharing.welcome(
            pid,
            peer.uid,
            hello,
            send,
            administers=self._may_configure(peer) and not self.fixed,
            seen=peer.pid != 0,
        )
        if before is not None:
            self._forget_process(before)
        self._origins = {
            number: labels
            for number, labels in self._origins.items()
            if number in self.sharing.clients
        }
        self._origins[talk.client.number] = origin_of(pid) if talk.client.seen else {}
        if self.sharing.scheduler.held_back:
            self._returning.came_back((peer.pid, hello.start_ticks), time.monotonic())
        if peer.pid:
            self._watch_process(talk.client)
        client = talk.client
        asyncio.get_running_loop().call_later(CONFIRM_SECONDS, self.sharing.confirm, client)
        self._remember_clients()

    def _refuse(self, connection: Connection, text: str) -> None:
        self._refused += 1
        logger.warning("refused process %d: %s", connection.peer.pid, text)
        message = protocol.Refuse(protocol.cut(text, 248))
        connection.send(protocol.encode(message))
        connection.close_after_sending()

    def _refuse_client(self, number: int, text: str) -> None:
        for connection, talk in list(self._talks.items()):
            if talk.client is not None and talk.client.number == number:
                self._refuse(connection, text)

    def _connection_ended(self, connection: Connection) -> None:
        talk = self._talks.pop(connection)
        self._last_there = time.monotonic()
        client = talk.client
        if client is None or client.number not in self.sharing.clients:
            return
        if client.number in self._pidfds:
            self.sharing.lose(client)
        else:
            self._client_ended(client)
        self._settle_soon()

    # Processes

    def _watch_process(self, client: Client) -> None:
        try:
            number = os.pidfd_open(client.pid)
        except OSError as error:
            # Of another container, or gone already: the connection's end is its end.
            logger.info("client %d: no pidfd (%s)", client.number, error)
            return
        self._pidfds[client.number] = number
        loop = asyncio.get_running_loop()
        loop.add_reader(number, self._process_ended, client)

    def _process_ended(self, client: Client) -> None:
        self._client_ended(client)
        for connection, talk in list(self._talks.items()):
            if talk.client is client:
                connection.close()
        self._settle_soon()

    def _client_ended(self, client: Client) -> None:
        self._forget_process(client)
        self.sharing.remove(client)
        self._remember_clients()

    def _forget_process(self, client: Client) -> None:
        number = self._pidfds.pop(client.number, None)
        if number is not None:
            asyncio.get_running_loop().remove_reader(number)
            os.close(number)

    def _remember_clients(self) -> None:
        """For the next daemon, which waits for those who hold memory."""
        found = [[client.pid, client.hello.start_ticks] for client in self.sharing.clients.values()]
        path = paths.clients_file(self.path, self.system)
        with suppress(OSError):
            path.write_text(json.dumps(found), encoding="utf-8")

    def _await_former_clients(self) -> None:
        try:
            text = paths.clients_file(self.path, self.system).read_text(encoding="utf-8")
            rows = msgspec.json.decode(text, type=list[tuple[int, int]])
        except (OSError, msgspec.DecodeError):
            return
        there = [row for row in rows if is_there(row)]
        if there:
            logger.info("waiting for %d programs of before", len(there))
            self._returning = Returning.of(there, time.monotonic())
            self.sharing.scheduler.held_back = True
            self._settle_soon()

    # Time

    def _settle_soon(self) -> None:
        if not self._settling:
            self._settling = True
            asyncio.get_running_loop().call_soon(self._settle)

    def _settle(self) -> None:
        self._settling = False
        if self._ended.is_set():
            return
        scheduler = self.sharing.scheduler
        if scheduler.held_back:
            scheduler.held_back = not self._returning.is_over(time.monotonic(), is_there)
        wake = self.sharing.settle()
        if scheduler.held_back:
            wake = min(wake, self._returning.wake_at)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if wake < math.inf:
            delay = max(0.0, wake - time.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay, self._settle)

    async def _look_around(self) -> None:
        measured = time.monotonic()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = time.monotonic()
            self._look_at_socket()
            for connection, talk in list(self._talks.items()):
                silent = talk.client is None and not talk.is_control
                if silent and now > talk.since + GREETING_SECONDS:
                    connection.close()
            if self._nvml.there and now > measured + MEASURE_SECONDS:
                measured = now
                self.sharing.measure_others()
            if self.sharing.scheduler.held_back or self.sharing.clients:
                self._settle_soon()
            there = self._talks or self.sharing.clients
            if there:
                self._last_there = now
            elif not self.system and now > self._last_there + self.sharing.settings.idle_exit:
                logger.info("nobody was here for a while")
                self.stop()

    def _look_at_socket(self) -> None:
        with suppress(OSError):
            if self.path.stat().st_ino == self._inode:
                return
        logger.warning("%s was removed, and is made again", self.path)
        if self._listening is not None:
            self._stop_listening(self._listening)
            self._listening = None
        try:
            self._listen()
        except OSError as error:
            logger.error("%s cannot be made: %s", self.path, error)

    # Control

    def _control(self, connection: Connection, talk: Talk, data: bytes) -> None:
        talk.line += data
        while not connection.closed:
            line, end, rest = talk.line.partition(b"\n")
            if len(line) > protocol.LARGEST_LINE:
                raise RefusedError(f"a request is longer than {protocol.LARGEST_LINE} bytes")
            if not end:
                return
            talk.line = rest
            answer = self._answer(connection.peer, bytes(line))
            connection.send(msgspec.json.encode(answer) + b"\n")

    def _answer(self, peer: Peer, line: bytes) -> dict[str, object]:
        try:
            request = msgspec.json.decode(line, type=dict[str, str])
        except msgspec.DecodeError as error:
            return {"error": f"the request is no JSON object of texts: {error}"}
        command = request.get("command", "")
        if command == "status":
            return {"status": self.status(peer)}
        if command == "metrics":
            return {"text": self._metrics_of(peer)}
        if command == "settings":
            return {"settings": self.sharing.settings}
        if command not in ("configure", "stop"):
            return {"error": f"there is no command {command!r}"}
        if self.fixed:
            return {"error": "this daemon was started with --fixed: change the file of settings"}
        if not self._may_configure(peer):
            return {"error": "only root and the members of the group admin_group may do that"}
        if command == "stop":
            asyncio.get_running_loop().call_later(0.05, self.stop)
            return {"pid": os.getpid()}
        return self._configure(request)

    def _configure(self, request: dict[str, str]) -> dict[str, object]:
        try:
            settings = changed(
                self.sharing.settings,
                request.get("name", ""),
                request.get("value", ""),
                request.get("card", ALL_CARDS),
            )
            write_settings(self._settings_file, settings)
        except (SettingError, OSError) as error:
            return {"error": str(error)}
        self._apply(settings)
        return {"settings": settings}

    def _apply(self, settings: ShareSettings) -> None:
        logger.info("settings: %s", settings)
        self.sharing.apply(settings)
        self._settle_soon()
        task = asyncio.create_task(self._serve_metrics())
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _serve_metrics(self) -> None:
        """For whoever reaches the port, all programs."""
        settings = self.sharing.settings
        await self._metrics.serve(settings.metrics_host, settings.metrics_port)

    def _metrics_of(self, peer: Peer) -> str:
        return metrics_text(self.status(peer), self._node, self._origins)

    def status(self, peer: Peer) -> Status:
        """A user sees only his own programs; who may configure sees all."""
        uid = None if self._may_configure(peer) else peer.uid
        scheduler = self.sharing.scheduler
        return Status(
            daemon=DaemonStatus(
                pid=os.getpid(),
                socket=str(self.path),
                version=version(),
                system=self.system,
                uptime_seconds=time.monotonic() - self._started,
                quantum_seconds=scheduler.quantum.seconds(scheduler.settings),
                switch_seconds=scheduler.quantum.switch_seconds,
                refused=self._refused,
            ),
            cards=self.sharing.card_statuses(uid),
            programs=self.sharing.program_statuses(uid),
        )


def version() -> str:
    from importlib.metadata import version as of_package

    return of_package("vramkit")
