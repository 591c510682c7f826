"""Chapter: two programs on a card that holds one of them and a part of the other."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import msgspec

from vramkit.demo.chapter import Chapter, ChapterResult, Context
from vramkit.report.blocks import Block, Callout, Code, Table, Text
from vramkit.report.units import bytes_text
from vramkit.share.connect import Controls, NoDaemonError
from vramkit.share.settings import ALL_CARDS, ShareSettings, write_settings
from vramkit.share.status import ProgramStatus, Status

MIB = 1 << 20
PROGRAM = Path(__file__).with_name("programs") / "counts.py"
PROGRAM_MIB = 48
BUDGET = 72 * MIB
CARD_BYTES = 160 * MIB  # of a simulated one
QUANTUM_SECONDS = 0.4
SECONDS = 2.0
PATIENCE_SECONDS = 60.0
SHOWN = """\
$ vramkit run -- python counts.py 48 2 &
$ vramkit run -- python counts.py 48 2 &
$ vramkit top
"""


class Seen(msgspec.Struct):
    """What the status said of a program last."""

    turns: int = 0
    out_bytes: int = 0
    in_bytes: int = 0
    largest_shortfall: int = 0


def run(context: Context) -> ChapterResult:
    with ExitStack() as stack:
        place = _Place(context, stack)
        programs = [place.start(stack) for _ in range(2)]
        seen = place.watch(programs)
        ends = [_end_of(program) for program in programs]
    same = all(right for _, right in ends)
    overlap = 2 * PROGRAM_MIB * MIB - BUDGET
    switches = sum(each.turns for each in seen.values())
    moved = sum(each.out_bytes for each in seen.values())
    facts: dict[str, object] = {
        "program_bytes": PROGRAM_MIB * MIB,
        "budget_bytes": BUDGET,
        "quantum_seconds": QUANTUM_SECONDS,
        "turns": switches,
        "out_bytes": moved,
        "in_bytes": sum(each.in_bytes for each in seen.values()),
        "rounds": [rounds for rounds, _ in ends],
        "same_results": same,
    }
    rows = [
        [
            f"process {pid}",
            str(each.turns),
            bytes_text(each.out_bytes),
            bytes_text(each.in_bytes),
            bytes_text(each.largest_shortfall),
        ]
        for pid, each in sorted(seen.items())
    ]
    verdict: Block = (
        Callout(
            "good",
            "Both results are right",
            f"{ends[0][0]} and {ends[1][0]} rounds, and each word was added to as often as that.",
        )
        if same
        else Callout("bad", "A result is wrong", "memory did not come back as it had left")
    )
    return ChapterResult(
        [
            Text(
                f"Two programs of {PROGRAM_MIB} MiB each may use {bytes_text(BUDGET)} of the card "
                "together. They are unmodified, and know nothing of each other. They take turns of "
                f"{QUANTUM_SECONDS:g} s; at each switch only what does not fit, "
                f"{bytes_text(overlap)}, moves to the host, while the other's comes back."
            ),
            Code("Unmodified programs", SHOWN, language="console", tone="good"),
            Table(
                ["program", "turns", "moved out", "moved in", "most that was away"],
                rows,
                numeric=[1, 2, 3, 4],
            ),
            verdict,
        ],
        facts,
    )


class _Place:
    """A daemon of its own, with a small budget, for the programs of this chapter alone."""

    def __init__(self, context: Context, stack: ExitStack) -> None:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vramkit-demo-")))
        self.socket = folder / "daemon.sock"
        settings = ShareSettings(
            quantum=QUANTUM_SECONDS, budget={ALL_CARDS: BUDGET}, idle_exit=PATIENCE_SECONDS
        )
        write_settings(folder / "vramkit" / "share.json", settings)
        self.environment = {
            **os.environ,
            "VRAMKIT_SOCKET": str(self.socket),
            "XDG_RUNTIME_DIR": str(folder),
            "XDG_CONFIG_HOME": str(folder),
        }
        if context.profile is not None:
            # One card for both, on which time passes as it does here.
            self.environment["VRAMKIT_DRIVER"] = "sim"
            self.environment["VRAMKIT_SIM"] = (
                f"card=demo-{os.getpid()},clock=wall,checker=off,capacity={CARD_BYTES},"
                f"profile={context.profile}"
            )
        stack.callback(self._stop_daemon)

    def start(self, stack: ExitStack) -> subprocess.Popen[str]:
        program = [sys.executable, str(PROGRAM), str(PROGRAM_MIB), str(SECONDS)]
        started = subprocess.Popen(
            [sys.executable, "-m", "vramkit.cli", "run", "--", *program],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        stack.callback(started.kill)
        return started

    def watch(self, programs: list[subprocess.Popen[str]]) -> dict[int, Seen]:
        """Asks for the status until the programs have ended."""
        seen: dict[int, Seen] = {}
        end = time.monotonic() + PATIENCE_SECONDS
        while any(program.poll() is None for program in programs):
            if time.monotonic() > end:
                raise RuntimeError("two programs that share the card did not end")
            for program in self._status():
                _note(seen.setdefault(program.pid, Seen()), program)
            time.sleep(0.02)
        return seen

    def _status(self) -> list[ProgramStatus]:
        try:
            with Controls(self.socket) as controls:
                return msgspec.convert(controls.ask("status"), Status).programs
        except NoDaemonError:
            return []

    def _stop_daemon(self) -> None:
        subprocess.run(
            [sys.executable, "-m", "vramkit.cli", "daemon", "stop"],
            env=self.environment,
            capture_output=True,
            check=False,
        )


def _note(seen: Seen, program: ProgramStatus) -> None:
    seen.turns = max(seen.turns, program.turns)
    for card in program.cards:
        seen.out_bytes = max(seen.out_bytes, card.out_bytes)
        seen.in_bytes = max(seen.in_bytes, card.in_bytes)
        seen.largest_shortfall = max(seen.largest_shortfall, card.swapped)


def _end_of(program: subprocess.Popen[str]) -> tuple[int, bool]:
    stdout, stderr = program.communicate()
    if program.returncode:
        raise RuntimeError(f"{PROGRAM.name} failed: {stderr}")
    rounds, word = stdout.split()
    return int(rounds), word == "right"


CHAPTER = Chapter("Two programs, one card", run)
