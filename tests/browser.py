"""A headless Chromium for tests of pages, spoken to over its DevTools pipe: no package needed.

    with Browser(executable) as browser:
        page = browser.open(path, width=375, dark=True)
        assert page.console == [] and page.requests == [path.as_uri()]
        assert page.evaluate("document.title") == "..."

Everything has a time limit, and the browser ends with the block, whatever happens in it.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "google-chrome", "google-chrome-stable", "chromium-browser")
MISSING = "no browser on PATH; to run this test: apt-get install chromium"
SECONDS = 30.0  # for any one answer; a machine that builds at the same time is slow
SECONDS_TO_END = 5.0

OPTIONS = [
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-gpu",
    "--disable-sync",
    "--hide-scrollbars",
    "--mute-audio",
]


class BrowserError(Exception):
    """The browser did not start, did not answer in time, or says that a command failed."""


def find_browser() -> str | None:
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    def __init__(self, executable: str) -> None:
        self._executable = executable
        self._events: list[dict[str, Any]] = []
        self._buffer = b""
        self._last_id = 0
        self.process = 0

    def __enter__(self) -> Browser:
        self._cleanup = contextlib.ExitStack()
        with contextlib.ExitStack() as started:
            folder = tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True)
            self.folder = Path(started.enter_context(folder))
            self._log = self.folder / "log"
            started.callback(self._end)
            self._start(started)
            self.send("Browser.getVersion")
            self._cleanup = started.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    def open(self, path: Path, width: int = 1280, *, dark: bool = False, height: int = 900) -> Page:
        """The page after it has loaded, on a screen of this width; a phone's if it is narrow."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        page = Page(self, target, attached["sessionId"])
        page._load(path.resolve().as_uri(), width, height, dark)
        return page

    def send(self, method: str, session: str = "", **parameters: Any) -> Any:
        """A command's result. Events that arrive meanwhile wait for Page._take."""
        self._last_id += 1
        wanted = self._last_id
        message = {"id": wanted, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        try:
            os.write(self._commands, json.dumps(message).encode() + b"\0")
        except BrokenPipeError:
            raise BrowserError(f"the browser has ended: {self._said()}") from None
        limit = time.monotonic() + SECONDS
        while True:
            answer = self._receive(limit, method)
            if answer.get("id") == wanted:
                break
            self._events.append(answer)
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error'].get('message')}")
        return answer["result"]

    def _start(self, started: contextlib.ExitStack) -> None:
        # The browser reads commands from descriptor 3 and writes to 4: ours are above those.
        pipes = [*os.pipe(), *os.pipe()]
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in pipes]
        for end in pipes:
            os.close(end)
        its_input, self._commands, self._answers, its_output = ends
        started.callback(os.close, self._commands)
        started.callback(os.close, self._answers)
        options = [*OPTIONS, f"--user-data-dir={self.folder / 'profile'}"]
        if os.geteuid() == 0:
            options.append("--no-sandbox")  # its sandbox refuses to start as root
        log = os.open(self._log, os.O_WRONLY | os.O_CREAT, 0o600)
        null = os.open(os.devnull, os.O_RDONLY)
        copies = [(null, 0), (log, 1), (log, 2), (its_input, 3), (its_output, 4)]
        try:
            self.process = os.posix_spawn(
                self._executable,
                [self._executable, *options],
                {**os.environ, "HOME": str(self.folder)},
                file_actions=[(os.POSIX_SPAWN_DUP2, old, new) for old, new in copies],
                setsid=True,
            )
        finally:
            for end in (null, log, its_input, its_output):
                os.close(end)

    def _end(self) -> None:
        """Politely, then with its whole process group; also where it never came up."""
        if not self.process:
            return
        with contextlib.suppress(BrowserError, OSError):
            os.write(self._commands, b'{"id":0,"method":"Browser.close"}\0')
        limit = time.monotonic() + SECONDS_TO_END
        handle = os.pidfd_open(self.process)
        try:
            select.select([handle], [], [], max(0.0, limit - time.monotonic()))
        finally:
            os.close(handle)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        self.process = 0

    def _receive(self, limit: float, waiting_for: str) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, limit - time.monotonic()))
            if not ready:
                raise BrowserError(f"no answer to {waiting_for} in {SECONDS:g} s: {self._said()}")
            data = os.read(self._answers, 1 << 16)
            if not data:
                raise BrowserError(f"the browser has ended: {self._said()}")
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))

    def _said(self) -> str:
        with contextlib.suppress(OSError):
            return self._log.read_text("utf-8", "replace")[-2000:].strip() or "it said nothing"
        return "it said nothing"


class Page:
    """An open page; what it wrote to the console and which addresses it asked for are kept."""

    def __init__(self, browser: Browser, target: str, session: str) -> None:
        self._browser, self._target, self._session = browser, target, session
        self._console: list[str] = []
        self._requests: list[str] = []
        self._loaded = False

    @property
    def console(self) -> list[str]:
        """Messages of any level, warnings of the browser, and uncaught exceptions."""
        self._take()
        return self._console

    @property
    def requests(self) -> list[str]:
        self._take()
        return self._requests

    def evaluate(self, script: str) -> Any:
        """The value of an expression, as JSON would carry it; a promise is waited for."""
        answer = self._send(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise BrowserError(_exception(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def screenshot(self, path: Path, part: str = "html") -> None:
        """A PNG of the element that the selector names; the whole page without one."""
        box = self.evaluate(
            f"(() => {{ const box = document.querySelector({json.dumps(part)})"
            ".getBoundingClientRect(); return {x: box.x + scrollX, y: box.y + scrollY,"
            " width: box.width, height: box.height, scale: 1}; })()"
        )
        picture = self._send("Page.captureScreenshot", clip=box, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(picture["data"]))

    def close(self) -> None:
        self._browser.send("Target.closeTarget", targetId=self._target)

    def _load(self, address: str, width: int, height: int, dark: bool) -> None:
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._send(f"{domain}.enable")
        self._send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._send("Emulation.setEmulatedMedia", features=[scheme])
        answer = self._send("Page.navigate", url=address)
        if "errorText" in answer:
            raise BrowserError(f"{address}: {answer['errorText']}")
        limit = time.monotonic() + SECONDS
        self._take()
        while not self._loaded:
            self._browser._events.append(self._browser._receive(limit, f"loading {address}"))
            self._take()
        self.evaluate("document.fonts.ready.then(() => null)")

    def _send(self, method: str, **parameters: Any) -> Any:
        return self._browser.send(method, self._session, **parameters)

    def _take(self) -> None:
        """This page's events out of the browser's."""
        others = []
        for event in self._browser._events:
            if event.get("sessionId") == self._session:
                self._note(event["method"], event["params"])
            else:
                others.append(event)
        self._browser._events[:] = others

    def _note(self, method: str, event: dict[str, Any]) -> None:
        match method:
            case "Page.loadEventFired":
                self._loaded = True
            case "Network.requestWillBeSent":
                self._requests.append(event["request"]["url"])
            case "Runtime.exceptionThrown":
                self._console.append(_exception(event["exceptionDetails"]))
            case "Log.entryAdded":
                entry = event["entry"]
                self._console.append(f"{entry['level']}: {entry['text']}")
            case "Runtime.consoleAPICalled":
                words = " ".join(str(each.get("value", "")) for each in event["args"])
                self._console.append(f"{event['type']}: {words}")


def _exception(details: dict[str, Any]) -> str:
    thrown = details.get("exception", {})
    return f"exception: {thrown.get('description', details.get('text'))}"
