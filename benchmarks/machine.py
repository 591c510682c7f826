"""Facts about the machine a benchmark ran on, for its result file."""

import os
import platform
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import msgspec


class Machine(msgspec.Struct, frozen=True):
    """Empty texts where the machine does not have the thing or does not say."""

    cpu: str
    cores: int
    kernel: str
    gpu: str
    nvidia_driver: str
    python: str
    compiler: str
    date: str


def collect(compiler: str = "c++") -> Machine:
    """Asks the machine; starts nvidia-smi and the compiler where they exist, for a moment each."""
    gpu, _, driver = _first_line(
        "nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"
    ).partition(", ")
    return Machine(
        cpu=_cpu_model(),
        cores=os.cpu_count() or 0,
        kernel=f"{platform.system()} {platform.release().partition('-')[0]}",
        gpu=gpu,
        nvidia_driver=driver,
        python=platform.python_version(),
        compiler=_first_line(compiler, "--version"),
        date=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.processor()


def _first_line(program: str, *arguments: str) -> str:
    path = shutil.which(program)
    if path is None:
        return ""
    try:
        answer = subprocess.run(
            [path, *arguments], capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout.partition("\n")[0].strip()
