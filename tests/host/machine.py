"""A machine laid out in a folder, for readers that take `root`."""

from __future__ import annotations

from pathlib import Path


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def write_meminfo(root: Path, **kib: int) -> None:
    write(root, "proc/meminfo", "".join(f"{name}:  {value} kB\n" for name, value in kib.items()))
