"""Builds the programs once."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from vramkit.driver.opening import sim_folder

from .support import PROGRAMS, Programs


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    found = (shutil.which(name) for name in (os.environ.get("CXX", ""), "c++", "g++") if name)
    compiler = next(filter(None, found), None)
    if compiler is None:
        pytest.skip("no C++ compiler: set CXX, or install g++")
    folder = tmp_path_factory.mktemp("gate")
    (folder / "fake").mkdir()
    built = Programs(folder / "calls", folder / "allocates", folder / "fake" / "libcuda.so.1")
    library = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-Wl,-Bsymbolic"]

    def build(source: str, output: Path, *options: str) -> None:
        command = [compiler, "-w", str(PROGRAMS / source), "-o", str(output), *options]
        subprocess.run(command, check=True, capture_output=True, text=True)

    build("fake_driver.cpp", built.fake_driver, *library)
    build("calls.cpp", built.calls, "-ldl", "-lpthread")
    build("allocates.cpp", built.allocates, str(sim_folder() / "libcuda.so.1"), "-lpthread")
    return built
