"""Runs the `vramkit` command: as users do, in a process of its own, or here, which is quicker."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .support import SETTINGS, Done, Vramkit, VramkitHere


@pytest.fixture
def vramkit(tmp_path: Path) -> Vramkit:
    """vramkit("doctor", "--json", VRAMKIT_DRIVER="sim"): a value of None takes a variable away."""

    def run(*arguments: str, **variables: str | None) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if name not in SETTINGS}
        environment |= {name: value for name, value in variables.items() if value is not None}
        return subprocess.run(
            [sys.executable, "-m", "vramkit.cli", *arguments],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=100,
        )

    return run


@pytest.fixture
def vramkit_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> VramkitHere:
    """vramkit_here("doctor", encoding="ascii"): in this process, with streams of that encoding."""
    from vramkit.cli import main

    monkeypatch.chdir(tmp_path)
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str, encoding: str = "utf-8") -> Done:
        streams = [io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2)]
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", streams[0])
            patch.setattr(sys, "stderr", streams[1])
            status = main(arguments)
        texts = []
        for stream in streams:
            stream.flush()
            texts.append(stream.buffer.getvalue().decode())  # type: ignore[attr-defined]
        return Done(status, *texts)

    return run


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo here copies a sixteenth of the bytes, and fewer of the weights."""
    monkeypatch.setattr("vramkit.demo.overlap.GROUP_BYTES", 4 << 20)
    monkeypatch.setattr("vramkit.demo.weights.SIZES", {"attn": 1 << 20, "ffn": 2 << 20})
