"""What on_card.py finds: is all there that its parts need? Status 1: without it none can run."""

import importlib
import os
import re
import resource
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path

import machine

OPTIONAL = (
    "torch", "transformers", "accelerate", "diffusers", "cupy", "rmm", "jax", "ray", "pytest",
    "xdist", "hypothesis", "numpy", "cuda.bindings", "cuda.core",
)  # fmt: skip
DRIVER = (
    "import vramkit; driver = vramkit.driver.open(); device = driver.device(); "
    "print(driver.path, device, device.memory_info(), device.compute_capability)"
)
missing: list[str] = []


def say(name: str, words: object) -> None:
    print(f"{name:24} {words}", flush=True)


def modules() -> None:
    for name in OPTIONAL:
        try:
            found = find_spec(name) is not None
        except (ImportError, ValueError):
            found = False
        say(name, "there" if found else "missing")
    for package in ("torch", "transformers", "cupy-cuda13x", "cuda-bindings", "pytest"):
        try:
            say(f"{package} (version)", version(package))
        except PackageNotFoundError:
            continue


def vramkit() -> None:
    try:
        package = importlib.import_module("vramkit")
        from vramkit.launch.gate import gate_library

        say("vramkit", package.__file__)
        library = gate_library()
        say("gate", library if library.is_file() else "missing")
        if not library.is_file():
            missing.append("the gate")
    except Exception as error:
        say("vramkit", f"{type(error).__name__}: {error}")
        missing.append("vramkit")
        return
    for line in requires("vramkit") or []:
        name = re.split(r"[<>=!~ ;\[]", line)[0]
        if "extra ==" in line:
            continue
        try:
            say(f"needs {name}", version(name))
        except PackageNotFoundError:
            say(f"needs {name}", "missing")
            missing.append(name)
    # Processes of their own: a card that does not answer ends them by their time limit alone.
    run = ["-m", "vramkit.cli", "run", "--chaos", "1", "--", sys.executable, "-c", DRIVER]
    for name, words in (("driver", ["-c", DRIVER]), ("driver, shared", run)):
        command = [sys.executable, *words]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        except subprocess.TimeoutExpired:
            say(name, "no answer within 30 s")
            answered = False
        else:
            say(name, f"status {done.returncode}: {(done.stdout + done.stderr).strip()[-400:]}")
            answered = done.returncode == 0
        # Without sharing there is still much that can be measured.
        if not answered and name == "driver":
            missing.append(name)


def main() -> int:
    found = machine.collect()
    for name in found.__struct_fields__:
        say(name, getattr(found, name))
    for program in ("nvcc", "g++", "nvidia-smi"):
        say(program, shutil.which(program) or "missing")
    say("may lock", resource.getrlimit(resource.RLIMIT_MEMLOCK))
    say("open files", resource.getrlimit(resource.RLIMIT_NOFILE))
    for line in Path("/proc/meminfo").read_text("utf-8").splitlines():
        if line.startswith(("MemTotal", "MemAvailable", "HugePages_Total")):
            say(*line.split(":", 1))
    for folder in ("/tmp", "/dev/shm"):
        say(folder, f"{shutil.disk_usage(folder).free >> 20} MiB free")
    for variable in ("CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH"):
        say(variable, os.environ.get(variable, ""))
    modules()
    vramkit()
    if missing:
        print(f"missing: {', '.join(missing)}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
