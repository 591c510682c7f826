"""Programs that share a card in a mode: alone, natively, or with others under a daemon."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import pytest

from vramkit.driver.opening import sim_folder
from vramkit.launch.gate import gate_launch

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
SECONDS = 120
"""Far above what any program here takes."""


def build_works(folder: Path) -> Path:
    found = (shutil.which(name) for name in (os.environ.get("CXX", ""), "c++", "g++") if name)
    compiler = next(filter(None, found), None)
    if compiler is None:
        pytest.skip("no C++ compiler: set CXX, or install g++")
    program = folder / "works"
    options = ["-O1", "-std=c++20", "-w", f"-I{ROOT / 'native'}", "-Wl,--no-as-needed"]
    libraries = [str(sim_folder() / "libcuda.so.1"), "-lpthread", "-ldl"]
    command = [compiler, *options, str(PROGRAMS / "works.cpp"), "-o", str(program), *libraries]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return program


@dataclass(frozen=True)
class Done:
    output: str
    log: str


class Started:
    """A program that runs, in a folder for what it writes; `mode` is None for natively."""

    def __init__(
        self,
        words: Sequence[str],
        folder: Path,
        card: str,
        mode: str | None = None,
        told: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        folder.mkdir()
        self._folder = folder
        self._stack = ExitStack()
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("VRAMKIT")},
            "KERNELS": str(ROOT / "src" / "vramkit" / "driver" / "kernels.ptx"),
            "LD_LIBRARY_PATH": str(sim_folder()),
            "VRAMKIT_DRIVER": "sim",
            "VRAMKIT_SIM": f"{card},reports={folder / 'reports'}",
        }
        if mode is not None:
            shared = {"VRAMKIT_SHARE": mode, "VRAMKIT_SHARE_LOG": str(folder / "log"), **told}
            launch = self._stack.enter_context(gate_launch(words, shared))
            environment = launch.environment(environment)
        self._process = subprocess.Popen(
            words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def runs(self) -> bool:
        return self._process.poll() is None

    def wait(self) -> Done:
        """To its end, which must be a good one, with nothing reported."""
        with self._stack:
            try:
                output, _ = self._process.communicate(timeout=SECONDS)
            finally:
                self._process.kill()
                self._process.wait()
        assert self._process.returncode == 0, f"{self._process.returncode}: {output}"
        files = sorted(self._folder.glob("reports*"))
        assert files
        for file in files:
            assert json.loads(file.read_text(encoding="utf-8"))["reports"] == []
        log = self._folder / "log"
        return Done(output, log.read_text(encoding="utf-8") if log.exists() else "")
