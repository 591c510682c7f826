"""What the gate's library exports and needs."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache

import pytest

from vramkit.launch.gate import gate_library

from .support import NATIVE

pytestmark = pytest.mark.skipif(shutil.which("nm") is None, reason="needs nm (binutils)")


@cache
def symbols(which: str) -> set[str]:
    command = ["nm", "-D", f"--{which}-only", str(gate_library())]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {line.split()[-1].partition("@")[0] for line in text.splitlines()}


def exports() -> list[str]:
    text = (NATIVE / "gate" / "exports.def").read_text(encoding="utf-8")
    return re.findall(r"^VRAMKIT_EXPORT\((\w+)\)$", text, re.MULTILINE)


def rows(path: str, macro: str) -> list[tuple[str, str]]:
    """Symbol and per-thread suffix of each row."""
    text = (NATIVE / path).read_text(encoding="utf-8")
    found = re.findall(rf"^{macro}\((\w+), (\w+), \d+, (?:\w+, )?(none|ptsz|ptds), ", text, re.M)
    return [(symbol, suffix) for _, symbol, suffix in found]


def test_every_name_of_the_list_is_exported_and_nothing_else() -> None:
    names = exports()
    assert len(names) == len(set(names)) == 682
    assert symbols("defined") == {*names, "gateDriver", "gateKeepsMemory"}


def test_the_list_has_every_call_that_vramkit_knows() -> None:
    known = rows("driver/manifest.def", "VRAMKIT_CALL") + rows("gate/hooks.def", "VRAMKIT_HOOK")
    known += rows("share/hooks.def", "VRAMKIT_HOOK")
    assert len(known) > 150
    names = {symbol for symbol, _ in known}
    names |= {f"{symbol}_{suffix}" for symbol, suffix in known if suffix != "none"}
    assert names <= set(exports())


def test_it_needs_libc_alone() -> None:
    text = subprocess.run(
        ["readelf", "-d", str(gate_library())], capture_output=True, text=True, check=True
    ).stdout
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", text))
    assert {name.partition(".")[0] for name in needed} <= {"libc", "ld-linux-x86-64", "libdl"}
    assert "SONAME" in text
    assert "[libcuda.so.1]" in text


def test_no_code_of_it_can_lock_print_or_end_the_program() -> None:
    unwanted = re.compile(
        r"pthread_mutex|pthread_rwlock|pthread_cond|sem_|futex|printf|puts|stderr|stdout|"
        r"^abort$|^_?exit$|assert|terminate|throw"
    )
    assert [name for name in symbols("undefined") if unwanted.search(name)] == []
