"""Where the built benchmark programs and the simulated GPU are, and how to run one of them."""

import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "editable"
RESULTS = ROOT / "benchmarks" / "results"


def add_arguments(parser: ArgumentParser, program: str, result: str) -> None:
    """The options that every driver of a native benchmark has."""
    parser.add_argument(
        "--binary",
        type=Path,
        default=BUILD / "benchmarks" / "native" / program,
        help="the built program (default: %(default)s)",
    )
    add_files(parser, result)


def add_files(parser: ArgumentParser, result: str) -> None:
    """Those of them that do not depend on the program."""
    parser.add_argument(
        "--sim-library",
        type=Path,
        default=BUILD / "lib" / "sim" / "libcuda.so.1",
        help="the simulated GPU (default: %(default)s)",
    )
    parser.add_argument(
        "--kernels",
        type=Path,
        default=ROOT / "src" / "vramkit" / "driver" / "kernels.ptx",
        help="PTX text of the built-in kernels (default: %(default)s)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=RESULTS / result,
        help="result file (default: %(default)s)",
    )


def require_files(*paths: Path) -> None:
    """Ends the program with a sentence where a file is missing."""
    for path in paths:
        if not path.is_file():
            sys.exit(f"there is no file {path}; `make benchmarks` builds the programs")


def run(arguments: list[str], accepted: tuple[int, ...] = (0,)) -> None:
    """Runs a benchmark program, its table on standard error; ends ours where it fails."""
    status = subprocess.run(arguments, stdout=sys.stderr, check=False).returncode
    if status not in accepted:
        sys.exit(f"{arguments[0]} ended with status {status}")


def publish(report: msgspec.Struct, table: str, output: Path) -> None:
    """Keeps the report as JSON and shows its table, which is Markdown, on standard output."""
    write(report, output)
    show(table)


def write(report: msgspec.Struct, output: Path) -> None:
    """The report as JSON, in a folder that is made where it is missing."""
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")


def between_marks(page: str, name: str, table: str) -> str:
    """The page with the table between `<!-- name -->` and the `<!-- end -->` behind it."""
    before, mark, rest = page.partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition("<!-- end -->")
    if not mark or not end:
        sys.exit(f"the page has no <!-- {name} --> ... <!-- end -->")
    return f"{before}{mark}\n{table}\n\n{end}{after}"


def publish_page(path: Path, name: str, table: str) -> None:
    page = path.read_text(encoding="utf-8")
    path.write_text(between_marks(page, name, table), encoding="utf-8")


def show(table: str) -> None:
    """Markdown on standard output, laid out where somebody reads it there."""
    if not sys.stdout.isatty():
        print(table)
        return
    # Only here: a machine that measures needs no more than msgspec.
    from rich.console import Console
    from rich.markdown import Markdown

    Console().print(Markdown(table))
