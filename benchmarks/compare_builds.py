"""Compares two builds of the engine on one machine, interleaved in one run.

Compiles the allocator benchmark of both source trees with a C++ compiler alone, runs their rows in
turn, and says of each row whether the new build is slower beyond the spread. With --packages the
rows from Python are compared too. Status 0: no row is slower and all ran; 1: a row is slower, or
something failed, and the table says which; 2: nothing could be compared.
"""

import os
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import machine
import msgspec
import programs
from alternation import BUILDS, Alternation, Part, Pass
from build_verdicts import Comparison, Comparisons, markdown
from compile_tree import CompileError, Tree, compile_trees
from frameworks_rows import last_words
from rows import Row, timed_out

# One repetition of these takes seconds: one a pass is enough.
SLOW = {"fragmentation", "beside_kernel", "burst", "phases"}
# For a native program to end by itself, with its file written, before it is killed.
GRACE_S = 5


class Build(msgspec.Struct):
    """Which code was measured: a name, a digest of its sources, the version of its package."""

    name: str
    sources: str
    package: str = ""


class Report(msgspec.Struct):
    benchmark: str
    simulated: bool
    machine: machine.Machine
    old: Build
    new: Build
    settings: dict[str, Any]
    complete: bool
    missing: list[str]
    """Parts that did not run as often as asked, and why."""
    comparisons: list[Comparison]


class Found(msgspec.Struct):
    """What both the native program and python_allocators.py write."""

    rows: list[Row]


class Refused(Exception):
    """Nothing can be compared; the text says why and what to do."""


def attempt(
    command: list[str], result: Path, limit_s: float, environment: dict[str, str] | None = None
) -> Pass:
    """Runs one process. Status 1 is a row that failed: it has its error in the file."""
    result.unlink(missing_ok=True)
    try:
        ended = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
            env=os.environ | (environment or {}),
        )
    except subprocess.TimeoutExpired:
        return Pass(wrong=timed_out(limit_s))
    if ended.returncode not in (0, 1) or not result.is_file():
        words = last_words(ended.stderr) or last_words(ended.stdout)
        return Pass(wrong=f"status {ended.returncode}: {words}")
    return Pass(msgspec.json.decode(result.read_bytes(), type=Found).rows)


def family_globs(cases: list[str]) -> dict[str, str]:
    """A glob for each family among cases, ALLOCATOR/FAMILY[/MORE]."""
    plain: dict[str, set[bool]] = {}
    for case in cases:
        _, family, *more = case.split("/", 2)
        plain.setdefault(family, set()).add(not more)
    ends = {(True,): "", (False,): "/*", (False, True): "*"}
    return {name: f"*/{name}{ends[tuple(sorted(has))]}" for name, has in plain.items()}


class NativePrograms:
    """The two compiled programs."""

    def __init__(self, paths: dict[str, Path], options: Namespace, folder: Path) -> None:
        self._paths = paths
        self._options = options
        self._result = folder / "native.json"
        self._gpu = ["--driver", options.driver, "--kernels", str(options.kernels)]
        if options.driver == "sim":
            self._gpu += ["--sim-library", str(options.sim_library)]

    def parts(self) -> list[Part]:
        """One a family of workloads, or one a given glob."""
        globs: dict[str, str] = {glob: glob for glob in self._options.only}
        if not globs:
            old, new = (self._families(build) for build in BUILDS)
            globs = {name: glob for name, glob in new.items() if name in old}
            for name in sorted(old.keys() ^ new.keys()):
                print(f"{name} is in the {'old' if name in old else 'new'} build alone")
        return [Part(name, self._runner(glob, name in SLOW)) for name, glob in globs.items()]

    def _families(self, build: str) -> dict[str, str]:
        command = [str(self._paths[build]), *self._gpu, "--list"]
        try:
            listed = subprocess.run(
                command, capture_output=True, text=True, timeout=60, check=True
            ).stdout
        except subprocess.TimeoutExpired as error:
            raise Refused(f"the {build} build did not list its rows in 60 s") from error
        except subprocess.CalledProcessError as error:
            raise Refused(f"the {build} build: {last_words(error.stderr)}") from error
        return family_globs(listed.split())

    def _runner(self, glob: str, slow: bool) -> Callable[[str, float], Pass]:
        numbers = {
            "--repetitions": 1 if slow else self._options.repetitions,
            "--milliseconds": self._options.milliseconds,
        }
        fixed = [word for name, value in numbers.items() for word in (name, str(value))]

        def run(build: str, limit_s: float) -> Pass:
            command = [str(self._paths[build]), *self._gpu, *fixed, "--only", glob]
            command += ["--time-limit", str(max(1, int(limit_s)))]
            command += ["--json", str(self._result)]
            return attempt(command, self._result, limit_s + GRACE_S)

        return run


class Packages:
    """The two installed packages, each a folder for PYTHONPATH, under the same Python rows."""

    def __init__(self, folders: dict[str, Path], driver: str, folder: Path) -> None:
        self._result = folder / "python.json"
        self._environments = {}
        for build, site in folders.items():
            path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
            self._environments[build] = {"PYTHONPATH": path}
            if driver == "sim":
                self._environments[build]["VRAMKIT_DRIVER"] = "sim"
            self._require(build, site)

    def _require(self, build: str, site: Path) -> None:
        """An editable install of vramkit would come before any PYTHONPATH, unnoticed."""
        code = "import vramkit; print(vramkit.__file__)"
        asked = self._ask(build, code)
        if asked.returncode != 0:
            raise Refused(f"{site} has no vramkit that can be used: {last_words(asked.stderr)}")
        if not Path(asked.stdout.strip()).resolve().is_relative_to(site.resolve()):
            raise Refused(
                f"this Python imports vramkit from {asked.stdout.strip()}, not from {site}; "
                "use one in which vramkit is not installed"
            )

    def version(self, build: str) -> str:
        code = "from importlib.metadata import version; print(version('vramkit'))"
        return self._ask(build, code).stdout.strip()

    def _ask(self, build: str, code: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=os.environ | self._environments[build],
        )

    def part(self) -> Part:
        program = str(Path(__file__).with_name("python_allocators.py"))
        command = [sys.executable, program, "--part", "vramkit", "--output", str(self._result)]

        def run(build: str, limit_s: float) -> Pass:
            return attempt(command, self._result, limit_s, self._environments[build])

        return Part("python", run)


def table(report: Report) -> str:
    where = f"{report.machine.gpu or 'no card'}, {report.machine.cpu}"
    if report.simulated:
        where = f"simulated GPU, {report.machine.cpu}: host time includes the simulation"
    slower = sum(each.failed for each in report.comparisons)
    lines = [
        f"{where}, {report.machine.date[:10]}. Old: {report.old.name} ({report.old.sources}), new: "
        f"{report.new.name} ({report.new.sources}). {slower} of {len(report.comparisons)} rows "
        "are slower beyond the spread or failed.",
        "",
        markdown(report.comparisons),
    ]
    if report.missing:
        lines += ["", "Missing: " + "; ".join(report.missing) + "."]
    return "\n".join(lines)


def native_parts(trees: list[Tree], options: Namespace, folder: Path) -> list[Part]:
    print("compiling both builds", flush=True)
    paths = compile_trees(trees, folder, options.compiler, options.time_limit / 2)
    return NativePrograms(dict(zip(BUILDS, paths, strict=True)), options, folder).parts()


def python_parts(builds: list[Build], options: Namespace, folder: Path) -> list[Part]:
    if options.packages is None:
        return []
    packages = Packages(dict(zip(BUILDS, options.packages, strict=True)), options.driver, folder)
    for name, build in zip(BUILDS, builds, strict=True):
        build.package = packages.version(name)
    return [packages.part()]


def compare(options: Namespace, folder: Path) -> Report:
    """Throws Refused where neither the native rows nor those from Python can be compared."""
    end = time.monotonic() + options.time_limit
    trees = [Tree(options.baseline.resolve()), Tree(options.tree.resolve())]
    builds = [Build(tree.folder.name, tree.digest()) for tree in trees]
    parts: list[Part] = []
    notes: list[str] = []
    for make in (partial(native_parts, trees), partial(python_parts, builds)):
        try:
            parts += make(options, folder)
        except (CompileError, Refused) as error:
            print(error, file=sys.stderr)
            notes.append(last_words(str(error)))
    if not parts:
        raise Refused("nothing to compare")
    report = Report(
        benchmark="compare_builds",
        simulated=options.driver == "sim",
        machine=machine.collect(options.compiler),
        old=builds[0],
        new=builds[1],
        settings={
            "alternations": options.alternations,
            "repetitions": options.repetitions,
            "milliseconds": options.milliseconds,
            "only": options.only,
        },
        complete=False,
        missing=[],
        comparisons=[],
    )
    found = Comparisons()
    alternation = Alternation(options.alternations, options.part_limit, end)
    started = time.monotonic()
    for build, part, each in alternation.passes(parts):
        found.add(build, each.rows)
        print(f"{time.monotonic() - started:6.1f} s  {part.name}, {build}", flush=True)
        report.comparisons = found.judged()
        report.missing = notes + alternation.notes
        # With every pass: a run that is ended from outside leaves what it measured.
        programs.write(report, options.output)
    report.missing = notes + alternation.notes
    report.complete = not report.missing
    return report


def parse() -> Namespace:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument(
        "--baseline",
        type=Path,
        required=True,
        help="the older source tree: a folder with native/ and benchmarks/native/",
    )
    parser.add_argument(
        "--tree", type=Path, default=programs.ROOT, help="the newer one (default: this one)"
    )
    parser.add_argument(
        "--packages",
        type=Path,
        nargs=2,
        metavar=("OLD", "NEW"),
        help="two folders with an installed vramkit each, for the rows from Python",
    )
    parser.add_argument("--driver", choices=["cuda", "sim"], default="cuda")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="GLOB",
        help="rows whose name matches, for example '*/pair/small/*'; may be given several times",
    )
    parser.add_argument(
        "--alternations", type=at_least_one, default=6, help="of both builds (default: %(default)s)"
    )
    parser.add_argument(
        "--repetitions",
        type=at_least_one,
        default=3,
        help="of a row in one pass (default: %(default)s); slow rows have one",
    )
    parser.add_argument(
        "--milliseconds",
        type=at_least_one,
        default=30,
        help="of one repetition of the rows that can run for any time (default: %(default)s)",
    )
    parser.add_argument(
        "--time-limit",
        type=at_least_one,
        default=480,
        help="seconds for all (default: %(default)s)",
    )
    parser.add_argument(
        "--part-limit",
        type=at_least_one,
        default=60,
        help="seconds for one process (default: %(default)s)",
    )
    parser.add_argument("--compiler", default="g++", help="default: %(default)s")
    programs.add_files(parser, "compare_builds.json")
    return parser.parse_args()


def at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"'{text}' is given; it takes a whole number from 1 on")
    return int(text)


def main() -> int:
    options = parse()
    programs.require_files(options.kernels)
    if options.driver == "sim":
        programs.require_files(options.sim_library)
    with tempfile.TemporaryDirectory() as folder:
        try:
            report = compare(options, Path(folder))
        except Refused as error:
            print(error, file=sys.stderr)
            return 2
    words = table(report)
    programs.publish(report, words, options.output)
    options.output.with_suffix(".md").write_text(words + "\n", "utf-8")
    failed = any(each.failed for each in report.comparisons)
    return 1 if failed or not report.complete else 0


if __name__ == "__main__":
    sys.exit(main())
