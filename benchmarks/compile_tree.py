"""Compiles the allocator benchmark of a source tree with nothing but a C++ compiler."""

import hashlib
import os
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
from frameworks_rows import last_words

FLAGS = ["-std=c++20", "-O2", "-DNDEBUG"]
# The Python extension needs nanobind, the C interface is not used, and the simulated GPU is a
# library of its own.
LEFT_OUT = {"bindings", "capi", "sim"}
PROGRAM = Path("benchmarks") / "native" / "allocators.cpp"


class CompileError(Exception):
    """The program could not be made; the text says of which file and why."""


class Tree(msgspec.Struct, frozen=True):
    """Sources of one revision: a folder with native/ and benchmarks/native/."""

    folder: Path

    def sources(self) -> list[Path]:
        """The program and whatever the engine has, in subfolders too: file names may differ."""
        native = self.folder / "native"
        program = self.folder / PROGRAM
        if not program.is_file() or not native.is_dir():
            raise CompileError(
                f"{self.folder} has no {PROGRAM} or no native/; it must be a source tree"
            )
        engine = [
            path
            for path in sorted(native.rglob("*.cpp"))
            if path.relative_to(native).parts[0] not in LEFT_OUT
        ]
        return [program, *engine]

    def digest(self) -> str:
        """Names the sources where there is no git: equal digests, equal builds."""
        seen = hashlib.sha256()
        for top in (self.folder / "native", self.folder / PROGRAM.parent):
            for path in sorted(top.rglob("*")):
                if path.suffix in {".cpp", ".h", ".hpp", ".def"}:
                    seen.update(str(path.relative_to(self.folder)).encode() + b"\0")
                    seen.update(path.read_bytes())
        return seen.hexdigest()[:12]

    def compile_commands(self, compiler: str, build: Path) -> list[list[str]]:
        includes = [f"-I{self.folder / 'native'}", f"-I{self.folder / PROGRAM.parent}"]
        return [
            [compiler, *FLAGS, *includes, "-c", str(source), "-o", str(self._object(source, build))]
            for source in self.sources()
        ]

    def _object(self, source: Path, build: Path) -> Path:
        return build / ("_".join(source.relative_to(self.folder).with_suffix("").parts) + ".o")

    def link_commands(self, compiler: str, build: Path) -> list[list[str]]:
        """An archive first: the linker takes from it what the program needs, and no more."""
        program, *engine = [str(self._object(source, build)) for source in self.sources()]
        archive = str(build / "libengine.a")
        # A source that did not compile matters only if the program needs it: the linker says so.
        made = [path for path in engine if Path(path).is_file()]
        return [
            ["ar", "rcs", archive, *made],
            [compiler, program, archive, "-ldl", "-lpthread", "-o", str(build / "allocators")],
        ]


def compile_trees(trees: list[Tree], build: Path, compiler: str, limit_s: float) -> list[Path]:
    """A program of each tree, all sources of all trees side by side. Throws CompileError."""
    end = time.monotonic() + limit_s
    folders = [build / str(number) for number in range(len(trees))]
    commands = []
    for tree, folder in zip(trees, folders, strict=True):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        commands += tree.compile_commands(compiler, folder)

    def attempt(command: list[str]) -> str:
        return _wrong(command, end)

    with ThreadPoolExecutor(os.cpu_count()) as workers:
        failed = list(filter(None, workers.map(attempt, commands)))
    for tree, folder in zip(trees, folders, strict=True):
        for command in tree.link_commands(compiler, folder):
            if wrong := _wrong(command, end):
                raise CompileError("; ".join([f"{tree.folder.name}: {wrong}", *failed]))
    return [folder / "allocators" for folder in folders]


def _wrong(command: list[str], end: float) -> str:
    """What went wrong with a command, empty where nothing did."""
    name = next(
        (Path(word).name for word in command if word.endswith(".cpp")), Path(command[-1]).name
    )
    try:
        subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=True,
            timeout=max(0, end - time.monotonic()),
        )
    except FileNotFoundError:
        return f"there is no {command[0]}"
    except subprocess.TimeoutExpired:
        return f"{name} was not done when the time to compile was over"
    except subprocess.CalledProcessError as error:
        errors = [
            line for line in error.stderr.splitlines() if "error" in line or "undefined" in line
        ]
        return f"{name}: {last_words((errors or [error.stderr])[0])}"
    return ""
