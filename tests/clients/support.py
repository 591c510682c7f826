"""Runs the scenarios of a program, each in a process of its own, on the simulated GPU."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

from vramkit.driver.opening import sim_folder

PROGRAMS = Path(__file__).parent / "programs"
SECONDS = 120


def scenarios(program: str, programs: Path = PROGRAMS) -> list[str]:
    """The functions of a program, without importing it: it opens the driver it finds."""
    tree = ast.parse((programs / f"{program}.py").read_text(encoding="utf-8"))
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [name for name in functions if not name.startswith("_")]


def run_scenario(
    program: str, scenario: str, folder: Path, programs: Path = PROGRAMS, **environment: str
) -> None:
    """Fails with what the process wrote where it failed, or where the checker has a report."""
    reports = folder / "reports.json"
    # Any value of the caller's would decide what is simulated, or whether anything is.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("VRAMKIT_")}
    settings = f"profile=h200,devices=2,capacity=256MiB,reports={reports}"
    done = subprocess.run(
        [sys.executable, "-c", f"import {program}; {program}.{scenario}()"],
        env={
            **kept,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(programs), kept.get("PYTHONPATH")])),
            "LD_LIBRARY_PATH": str(sim_folder()),
            "VRAMKIT_SIM": settings,
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    written = list(folder.glob("reports.json.*"))
    assert len(written) == 1, f"the program made no call of the simulated GPU: {done.stderr}"
    assert json.loads(written[0].read_text(encoding="utf-8"))["reports"] == []
