"""Runs one snippet from standard input in a process of its own: `python -m conformance.child`.

What the snippet notes is printed at once, a JSON object a line, so that a crash loses nothing.
Names it sees: cu, ok, name, note, scope, kernels (after the call), Raw, ctypes and the sizes.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from typing import Any

from .kernels import Kernels
from .scope import Scope
from .support import GIB, KIB, MIB, Raw, create_context, name, ok, open_driver


def note(key: str, value: Any) -> None:
    print(json.dumps({key: value}), flush=True)


def main(spec: str, start: str) -> None:
    source = sys.stdin.read()
    cu = open_driver(spec)
    names: dict[str, Any] = {
        "cu": cu,
        "ok": ok,
        "name": name,
        "note": note,
        "Raw": Raw,
        "ctypes": ctypes,
        "create_context": lambda: create_context(cu, 0),
        "kernels": lambda: Kernels(cu),
        "scope": Scope(cu, 0),
        "KIB": KIB,
        "MIB": MIB,
        "GIB": GIB,
    }
    if start == "initialised":
        ok(cu.cuInit(0))
        names["primary"] = ok(cu.cuDevicePrimaryCtxRetain(0))
        ok(cu.cuCtxSetCurrent(names["primary"]))
    exec(compile(source, "<snippet>", "exec"), names)
    sys.stdout.flush()
    # Without tearing the interpreter down: what is observed is the snippet, not the exit.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
