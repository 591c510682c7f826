"""Chapter: a race caught by the checker, and the same program fixed."""

from __future__ import annotations

import sys
from pathlib import Path

from vramkit.check import CheckResult, check_program
from vramkit.check.words import conflict
from vramkit.demo.chapter import Chapter, ChapterResult, Context
from vramkit.report.blocks import Block, Callout, Code, Text, Tone
from vramkit.report.units import count_text

PROGRAMS = Path(__file__).with_name("programs")
WRONG = "device.kernels.checksum(data, WORDS, total, stream=compute)"
RIGHT = "compute.wait(copies.record())"


def run(context: Context) -> ChapterResult:
    wrong, wrong_text = _checked("wrong_order.py")
    if not wrong.reports:
        raise RuntimeError("the checker has no report for wrong_order.py, which has a race")
    right, right_text = _checked("right_order.py")
    on_card = "" if context.profile else ", although a real card is here"
    blocks: list[Block] = [
        Text(
            "A copy in one stream, a kernel in another, and no event between them. On most runs "
            "the timing hides it. `vramkit check` runs any program that speaks the driver API on "
            f"the simulated GPU{on_card}, and judges by the order that CUDA documents, whatever "
            "the timing was."
        ),
        _excerpt("wrong_order.py", wrong_text, WRONG, "does not wait for the copy", "bad"),
        *(conflict(report, PROGRAMS) for report in wrong.reports),
        _excerpt("right_order.py", right_text, RIGHT, "the line that was missing", "good"),
        _verdict(right),
    ]
    facts: dict[str, object] = {
        "profile": wrong.profile,
        "wrong_reports": wrong.reports,
        "right_reports": right.reports,
    }
    return ChapterResult(blocks, facts)


def _checked(name: str) -> tuple[CheckResult, str]:
    path = PROGRAMS / name
    result = check_program([sys.executable, str(path)], capture=True)
    if result.program_status:
        raise RuntimeError(f"{path} failed: {result.stderr}")
    return result, path.read_text(encoding="utf-8")


def _excerpt(name: str, text: str, marked: str, word: str, tone: Tone) -> Code:
    """The part after the preparations, with the line numbers that reports name."""
    lines = text.splitlines()
    first = lines.index("    device.copy(data, host, stream=copies)")
    return Code(
        name,
        "\n".join(line.removeprefix("    ") for line in lines[first:]),
        first_line=first + 1,
        marked={lines.index(f"    {marked}") + 1: word},
        tone=tone,
    )


def _verdict(result: CheckResult) -> Block:
    count = f"{result.calls} driver calls checked"
    if result.reports:
        return Callout("bad", count_text(len(result.reports), "report"), count)
    return Callout("good", "No report", f"{count}, profile {result.profile} (simulated).")


CHAPTER = Chapter("A race, caught", run)
