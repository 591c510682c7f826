"""Everything that needs a card, in order of worth, each part with a time limit and a log.

    python3 benchmarks/on_card.py FOLDER                      # at most 570 s
    python3 benchmarks/on_card.py FOLDER --only sharing gate
    python3 benchmarks/on_card.py FOLDER --driver sim         # small, on the simulated GPU: a trial

From the root of the repository, with a Python that has vramkit or with wheels in .gpu (vramkit's
and those that Python lacks), which are unpacked first. Writes FOLDER/NAME.log for each part, the
parts' own results and on_card.json, after each part. A part that fails or takes too long does not
end the rest; called again, it does what is not done yet, and a part of the lab goes on where its
time had ended. Status 0: every part went well, and is whole.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
import zipfile
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

# No import but Python's own: the wheels are unpacked by this program.
ROOT = Path(__file__).resolve().parent.parent
WHEELS = ROOT / ".gpu"
SITE = WHEELS / "site"
MARK = "VK_ON_CARD"
LAST_LINES = 12
TESTS = "_tests.json"
"""Behind the name of a part: what became of each of its tests."""
GRACE = 15.0  # seconds to end in good order
START = 10.0  # seconds of a part that its own time limit does not count
LAB_SECONDS = 520


class Part(NamedTuple):
    """`seconds`: at most. `@LEFT@` in the command becomes its own time limit."""

    name: str
    seconds: float
    command: Callable[[Namespace], list[str]]
    needed: bool = False
    """Nothing else can run without it."""
    on_demand: bool = False
    """Only with --only: it takes most of a command, or needs what is prepared for it."""
    card_only: bool = False
    """Nothing of it runs on the simulated GPU."""
    lacks: Callable[[Namespace], str] = lambda options: ""
    """What a part that ended well has still to do, when it is called again."""


def python(*words: object) -> list[str]:
    return [sys.executable, *map(str, words)]


def tests(name: str, seconds: float, *words: object, processes: int = 0) -> Part:
    """`processes`: where pytest-xdist is there, and if the tests do not need one process."""

    def command(options: Namespace) -> list[str]:
        every = ["-v", "-ra", "--tb=short", "-p", "no:cacheprovider", f"--driver={options.driver}"]
        # Versions there are others than those that are developed with.
        every += ["-o", "filterwarnings=default"]
        if processes and (find_spec("xdist") or (SITE / "xdist").is_dir()):
            every += ["-p", "xdist", "-n", str(min(processes, os.cpu_count() or 1))]
        result = options.folder / f"{name}{TESTS}"
        return python("benchmarks/on_card_tests.py", result, *every, *words)

    return Part(name, seconds, command)


def build(options: Namespace) -> list[str]:
    """As CMake builds it, without CMake."""
    sources = [ROOT / "benchmarks" / "native" / "gate_launch.cpp"]
    for folder in ("driver", "base"):
        sources += sorted((ROOT / "native" / folder).glob("*.cpp"))
    flags = ["-std=c++20", "-O2", "-DNDEBUG", "-Inative", "-Ibenchmarks/native"]
    words = ["g++", *flags, *map(str, sources), "-ldl", "-lpthread"]
    return [*words, "-o", str(options.folder / "gate_launch")]


def gate(options: Namespace) -> list[str]:
    words = ["--driver", options.driver, "--binary", options.folder / "gate_launch"]
    words += ["--rounds", 3, "--output", options.folder / "gate.json"]
    words += ["--batches", 100 if options.driver == "sim" else 400]
    return python("benchmarks/gate.py", *words)


def sharing(options: Namespace) -> list[str]:
    words = ["--driver", options.driver, "--time-limit", "@LEFT@"]
    if options.driver == "sim":
        words += ["--scale", "small", "--repetitions", 2]
    words += ["--json", options.folder / "sharing.json"]
    return python("benchmarks/sharing.py", *words)


def managed(options: Namespace) -> list[str]:
    words = ["--driver", options.driver, "--json", options.folder / "managed_memory.json"]
    return python("benchmarks/managed_memory.py", *words)


def ray(options: Namespace) -> list[str]:
    words = ["--json", options.folder / "ray_actors.json"]
    if options.driver == "sim":
        words += ["--budget", "64MiB", "--seconds", 2, "--quantum", 0.1]
    return python("benchmarks/ray_actors.py", *words)


# Rows that were slower than 1.1 times the build before, within a spread too wide to tell.
UNSURE = (
    "vramkit/pair/large/[148]",
    "vramkit_raw/pair/small/1",
    "vramkit_raw/pair/large/1",
    "vramkit/producer_consumer/1",
    "vramkit_raw/producer_consumer/*",
    "vramkit/random_allocations",
)


def slower_rows(options: Namespace) -> list[str]:
    words = ["--baseline", WHEELS / "old", "--alternations", 12, "--time-limit", "@LEFT@"]
    words += [word for glob in UNSURE for word in ("--only", glob)]
    words += ["--output", options.folder / "slower_rows.json"]
    return python("benchmarks/compare_builds.py", *words)


def lab(name: str, *words: object, card_only: bool = False) -> Part:
    """`vramkit lab`: it ends by its own time limit, and keeps what it has. The result is on disk
    after each measurement, and the part goes on with it."""

    def result(options: Namespace) -> Path:
        return options.folder / f"lab_{name}.json"

    def command(options: Namespace) -> list[str]:
        output = result(options)
        goes_on = output.exists() and not options.again
        every = ["--driver", options.driver, "--time-limit", "@LEFT@"]
        every += ["--continue" if goes_on else "--output", output]
        every += ["--html", output.with_suffix(".html")]
        if options.driver == "sim":
            every += ["--repetitions", 1]
        experiment = name.partition("_")[0]
        return python("-m", "vramkit.cli", "lab", experiment, *words, *every)

    def lacks(options: Namespace) -> str:
        stopped = json.loads(result(options).read_text("utf-8"))["stopped"]
        return str(stopped)

    return Part(f"lab_{name}", LAB_SECONDS, command, card_only=card_only, lacks=lacks)


def lab_goals(name: str) -> Callable[[Namespace], list[str]]:
    """A program of this folder that compares what the lab says with real runs. It goes on with
    what its folder has."""

    def command(options: Namespace) -> list[str]:
        words = [options.folder / name, "--driver", options.driver, "--time-limit", "@LEFT@"]
        words += ["--again"] if options.again else []
        return python(f"benchmarks/{name}.py", *words)

    return command


# Whether sharing works at all comes first, then its figures, in the order of their own worth. What
# is left of the time goes to the rest of them.
NEVER_ASKED = ("copies_of_boxes", "copy_batches", "peers", "managed_memory", "pitched_memory")
FILES = [f"tests/conformance/test_{name}.py" for name in (*NEVER_ASKED, "memsets", "copies")]
PARTS = [
    Part("machine", 90, lambda _: python("benchmarks/on_card_machine.py"), needed=True),
    # Each test has up to four programs with a framework at once.
    tests("sharing_tests", 270, "tests/share/test_on_card.py", "--maxfail=8", processes=4),
    Part("build", 60, build),
    Part("gate", 50, gate),
    Part("sharing", 240, sharing),
    tests("conformance", 60, *FILES),
    Part("managed_memory", 40, managed),
    tests("weights", 240, "tests/weights/test_on_card.py", processes=4),
    tests("integrations", 240, "tests/integrations/test_on_card.py", processes=2),
    # One process: some of them fill the card.
    tests("pool", 300, "tests/pool", "tests/resources"),
    Part("ray", 540, ray, on_demand=True),
    Part("slower_rows", 540, slower_rows, on_demand=True, card_only=True),
    Part("sharing_rest", 300, sharing),
    # Each of these takes most of a command, or several: --only NAME, one at a time.
    Part("lab_replay", 480, lab_goals("lab_replay")),
    Part("lab_advice", 400, lab_goals("lab_advice")),
    lab("allocators_native", "--set", "engine=native"),
    lab("allocators_python", "--set", "engine=python"),
    lab("allocators_cupy", "--set", "engine=cupy", card_only=True),
    # A free list that is searched from its head takes minutes for a million blocks. Those that can
    # have them in a result of their own; the others time out there, once.
    lab("fragmentation", "--set", "blocks=100000"),
    lab("fragmentation_million", "--cases", "small_blocks", "--case-limit", 60, card_only=True),
    lab("weights"),
]


def environment(options: Namespace) -> dict[str, str]:
    paths = [str(SITE)] if SITE.is_dir() else []
    paths += filter(None, [os.environ.get("PYTHONPATH")])
    return {
        **os.environ,
        **({"VRAMKIT_DRIVER": "sim"} if options.driver == "sim" else {}),
        MARK: options.mark,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # whatever that Python has of them
        "VRAMKIT_OBSERVATIONS": str(options.folder / "observations.json"),
    }


def unpack() -> None:
    """The wheels, where there are any and they are newer than what was unpacked."""
    wheels = sorted(WHEELS.glob("*.whl")) if WHEELS.is_dir() else []
    stamp = SITE / ".unpacked"
    if not wheels or (
        stamp.exists() and stamp.stat().st_mtime > max(each.stat().st_mtime for each in wheels)
    ):
        return
    shutil.rmtree(SITE, ignore_errors=True)
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for each in archive.infolist():
                path = Path(archive.extract(each, SITE))
                if each.external_attr >> 16 & 0o111 and path.is_file():
                    path.chmod(0o755)  # Ray's own programs
    stamp.touch()


def run(part: Part, options: Namespace, most: float) -> dict[str, object]:
    left = str(max(1, int(most - GRACE - START)))
    command = [word.replace("@LEFT@", left) for word in part.command(options)]
    log = options.folder / f"{part.name}.log"
    begin = time.monotonic()
    with log.open("ab") as written:
        written.write(f"\n==> {' '.join(command)}\n".encode())
        written.flush()
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment(options),
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        status: int | str | None = wait(process, most, options.mark)
    if status == 0 and (why := part.lacks(options)):
        status = f"to be continued: {why}"
    return {"status": status, "seconds": round(time.monotonic() - begin, 1)}


def outcomes(folder: Path, part: Part) -> dict[str, object]:
    """Of the tests of a part, those of earlier commands among them."""
    path = folder / f"{part.name}{TESTS}"
    if not path.exists():
        return {}
    found = json.loads(path.read_text("utf-8"))
    others = {name: outcome for name, outcome in found.items() if outcome != "passed"}
    return {"passed": len(found) - len(others), "others": others}


def wait(process: subprocess.Popen[bytes], most: float, mark: str) -> int | None:
    """The status; None where it took too long. Nothing that it started is left."""
    try:
        return process.wait(max(1.0, most - GRACE))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)  # what cleans up after itself does so
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        end_marked(mark)


def end_marked(mark: str) -> None:
    """Ends what has this run's mark in its environment, in whatever session, and waits for it."""
    wanted = f"{MARK}={mark}\0".encode()
    said: set[str] = set()
    end = time.monotonic() + GRACE
    while time.monotonic() < end:
        found = False
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it ends meanwhile, or is another user's
                if wanted in (folder / "environ").read_bytes():
                    found = True
                    os.kill(int(folder.name), signal.SIGKILL)
                    if folder.name not in said:
                        print(f"    ends process {folder.name}, which was left", flush=True)
                    said.add(folder.name)
        if not found:
            return
        time.sleep(0.01)


def tail(path: Path, lines: int) -> str:
    text = path.read_text("utf-8", "replace").splitlines()[-lines:]
    return "\n".join(f"    {line[:200]}" for line in text)


def parse() -> Namespace:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--driver", choices=("cuda", "sim"), default="cuda")
    parser.add_argument("--only", nargs="+", choices=[part.name for part in PARTS])
    parser.add_argument("--again", action="store_true", help="also parts that went well before")
    parser.add_argument(
        "--time-limit", type=float, default=570, help="seconds of the whole (default: %(default)s)"
    )
    options = parser.parse_args()
    options.folder = options.folder.absolute()
    options.mark = uuid.uuid4().hex
    return options


def main() -> int:
    options = parse()
    options.folder.mkdir(parents=True, exist_ok=True)
    result = options.folder / "on_card.json"
    done: dict[str, dict[str, object]] = (
        json.loads(result.read_text("utf-8")) if result.exists() else {}
    )
    begin = time.monotonic()
    unpack()
    for part in PARTS:
        named = part.name in (options.only or ())
        if not part.needed and (part.on_demand or options.only) and not named:
            continue
        if part.card_only and options.driver == "sim":
            print(f"==> {part.name}: needs a card", flush=True)
            continue
        if done.get(part.name, {}).get("status") == 0 and not (options.again or options.only):
            print(f"==> {part.name}: done before", flush=True)
            continue
        if options.again or done.get(part.name, {}).get("status") == 0:
            (options.folder / f"{part.name}{TESTS}").unlink(missing_ok=True)
        left = options.time_limit - (time.monotonic() - begin)
        most = min(part.seconds, left)
        if most < GRACE + START:
            print(f"==> {part.name}: not started, {left:.0f} s are left", flush=True)
            done.setdefault(part.name, {"status": "not started"})
            continue
        print(f"==> {time.monotonic() - begin:.0f} s: {part.name}, {most:.0f} s", flush=True)
        done[part.name] = run(part, options, most) | outcomes(options.folder, part)
        result.write_text(json.dumps(done, indent=2) + "\n", "utf-8")
        print(f"    {done[part.name]}", flush=True)
        print(tail(options.folder / f"{part.name}.log", LAST_LINES), flush=True)
        if part.needed and done[part.name]["status"] != 0:
            print("nothing can be measured without this", flush=True)
            break
    result.write_text(json.dumps(done, indent=2) + "\n", "utf-8")
    return 0 if all(each["status"] == 0 for each in done.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
