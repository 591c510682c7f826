"""Chapter: the card that was found."""

from __future__ import annotations

from vramkit.demo.chapter import Chapter, ChapterResult, Context
from vramkit.report.blocks import Block, Callout, Table
from vramkit.report.units import free_text, version_text


def run(context: Context) -> ChapterResult:
    device, driver = context.device, context.driver
    memory = device.memory_info()
    major, minor = device.compute_capability
    rows = [
        ["Card", device.name],
        ["Memory", free_text(memory.total, memory.free)],
        ["Multiprocessors", f"{device.multiprocessors}, compute capability {major}.{minor}"],
        ["Driver", f"CUDA {version_text(driver.version)}"],
        ["Library", driver.path],
    ]
    blocks: list[Block] = [Table(["", ""], rows)]
    if context.profile is not None:
        why = context.why_simulated
        blocks.insert(
            0,
            Callout(
                "note",
                f"A simulated GPU, profile {context.profile}" + ("" if why is None else f": {why}"),
                "It is a `libcuda.so.1` of its own, in host memory: real bytes move, and times "
                "come from a model of the card. Every figure below is simulated.",
            ),
        )
    facts: dict[str, object] = {
        "name": device.name,
        "memory_total": memory.total,
        "memory_free": memory.free,
        "compute_capability": [major, minor],
        "multiprocessors": device.multiprocessors,
    }
    return ChapterResult(blocks, facts)


CHAPTER = Chapter("The card", run)
