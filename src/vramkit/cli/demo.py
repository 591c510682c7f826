"""`vramkit demo`"""

from __future__ import annotations

import os
import platform
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from vramkit.cli.errors import CommandError, UsageError
from vramkit.cli.files import must_be_writable

if TYPE_CHECKING:
    from rich.console import Console

    from vramkit.demo.chapter import ChapterResult, Context
    from vramkit.report.blocks import Document, Table

NEXT = (
    ("vramkit doctor", "this machine's link, call costs and limits, with a verdict"),
    ("vramkit check -- python my_program.py", "your own program under the checker"),
)


def demo(
    *,
    driver: str | None = None,
    report: Path | None = None,
    no_report: bool = False,
    json: bool = False,
) -> int:
    """Run the chapters.

    Parameters
    ----------
    driver
        cuda, sim or sim:PROFILE. Default: VRAMKIT_DRIVER, else the NVIDIA card, else sim.
    report
        The file for the HTML report. Default: vramkit-demo.html.
    no_report
        Write no HTML report.
    json
        The figures as one JSON document, instead of the guided text.
    """
    from vramkit.cli.console import output, print_json, progress
    from vramkit.cli.opening import open_driver_or_simulate
    from vramkit.demo.chapter import Context, attempt
    from vramkit.demo.chapters import CHAPTERS
    from vramkit.doctor.simulated import profile_name
    from vramkit.report.html import page

    page_path = _report_path(report, no_report)
    opened, why = open_driver_or_simulate(driver)
    profile = profile_name(opened)
    context = Context(opened, opened.device(0), profile, why)
    console = None if json else output()
    results: list[tuple[str, ChapterResult]] = []
    if console is not None:
        _print_opening(console, context)
    for number, chapter in enumerate(CHAPTERS, 1):
        with progress() as tell:
            tell(chapter.title)
            result = attempt(chapter, context)
        results.append((chapter.title, result))
        if console is not None:
            _print_chapter(console, number, chapter.title, result)
    if page_path is not None:
        page_path.write_text(page(_document(context, results)), encoding="utf-8")
    if console is not None:
        _print_ending(console, page_path)
    else:
        print_json(
            {
                "simulated": opened.simulated,
                "profile": profile,
                "driver": opened.description,
                "report": None if page_path is None else str(page_path),
                "chapters": [
                    {
                        "title": title,
                        "facts": result.facts,
                        "error": None if result.failure is None else str(result.failure),
                    }
                    for title, result in results
                ],
            }
        )
    _raise_failures(results)
    return 0


def _raise_failures(results: list[tuple[str, ChapterResult]]) -> None:
    """In one line; each chapter has said in its place what went wrong."""
    failed = [(title, result.failure) for title, result in results if result.failure is not None]
    if failed:
        titles = ", ".join(f"“{title}”" for title, _ in failed)
        text = f"{len(failed)} of {len(results)} chapters failed: {titles}"
        raise CommandError(text, 1) from failed[0][1]


def _report_path(report: Path | None, no_report: bool) -> Path | None:
    if no_report:
        if report is not None:
            raise UsageError("--report and --no-report exclude each other")
        return None
    path = report or Path("vramkit-demo.html")
    must_be_writable("--report", path)
    return path


def _print_opening(console: Console, context: Context) -> None:
    from rich.text import Text

    what = context.device.name
    if context.profile is not None:
        what = f"{what.removesuffix(' (simulated)')} (simulated, profile {context.profile})"
    console.print(Text.assemble(("vramkit demo", "bold"), " on ", (what, "cyan")))


def _print_chapter(console: Console, number: int, title: str, result: ChapterResult) -> None:
    from vramkit.report.terminal import print_block, print_heading

    print_heading(console, number, title)
    for block in result.blocks:
        print_block(console, block)


def _print_ending(console: Console, report: Path | None) -> None:
    from rich.text import Text

    from vramkit.report.terminal import table

    console.print()
    if report is not None:
        console.print(Text.assemble("Report: ", (str(report.resolve()), "bold")), soft_wrap=True)
    console.print(Text("Next", style="bold"))
    console.print(table(_next_steps()))


def _next_steps() -> Table:
    from vramkit.report.blocks import Table

    return Table(["", ""], [[f"`{command}`", purpose] for command, purpose in NEXT])


def _document(context: Context, results: list[tuple[str, ChapterResult]]) -> Document:
    import vramkit
    from vramkit.report.blocks import Document, Section
    from vramkit.report.units import version_text

    sections = [Section(title, result.blocks) for title, result in results]
    sections.append(Section("What to try next", [_next_steps()]))
    return Document(
        title="vramkit demo",
        summary="GPU memory for work that no longer fits the card: what was found here, and what "
        "it can do.",
        facts=[
            ("Card", context.device.name),
            ("Driver", f"CUDA {version_text(context.driver.version)}"),
            ("Machine", f"{platform.node()}, {len(os.sched_getaffinity(0))} CPUs"),
            ("Made", f"{datetime.now():%Y-%m-%d %H:%M}, vramkit {vramkit.__version__}"),
        ],
        sections=sections,
        simulated=context.profile,
    )
