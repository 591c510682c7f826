"""idle() and lease(): by the library of the program if it is loaded, else nothing happens."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from vramkit.share import idle, lease

SOURCE = """
#include <stdio.h>
int vramkitShareIdle(void) { puts("idle"); fflush(stdout); return 1; }
int vramkitShareLease(int begin) { printf("lease %d\\n", begin); fflush(stdout); return begin; }
"""
PROGRAM = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
from vramkit.share import idle, lease
print(idle(), flush=True)
try:
    with lease() as got:
        print(got, flush=True)
        raise KeyError
except KeyError:
    pass
"""


def test_without_the_library_nothing_happens() -> None:
    assert idle() is False
    with lease() as got:
        assert got is False


def test_the_loaded_library_is_told(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    source, library = tmp_path / "share.c", tmp_path / "libvramkit_share.so"
    source.write_text(SOURCE)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, library], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.splitlines() == ["idle", "True", "lease 1", "True", "lease 0"], done.stderr
