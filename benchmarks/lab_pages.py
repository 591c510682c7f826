"""The tables of the pages on weights, sharing and claims, from results, and timelines.

    python benchmarks/lab_pages.py              # the tables, in Markdown
    python benchmarks/lab_pages.py --timelines  # three passes of docs/weights.md, simulated now

A test compares the tables with the pages.
"""

from __future__ import annotations

import re
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path

import fragmentation_claims
import managed_memory
import msgspec
import programs

import vramkit
from vramkit.lab.claims import Claim, claim_table
from vramkit.lab.experiment import Lab
from vramkit.lab.result import Report, load
from vramkit.lab.sharing import claims as sharing_claims
from vramkit.lab.sharing import tables as sharing
from vramkit.lab.sharing.cases import H200, MODES, STUDY
from vramkit.lab.weights import claims as weights_claims
from vramkit.lab.weights import sweep
from vramkit.lab.weights import tables as weights
from vramkit.lab.weights.passes import record
from vramkit.lab.weights.study import PROFILE_RATE, SUBJECTS, WAITS_5_MS, WAITS_20_MS, Cell
from vramkit.report.blocks import Table
from vramkit.report.terminal_timeline import timeline_lines
from vramkit.weights.passes import Host

DOCS = programs.ROOT / "docs"
WEIGHTS = programs.RESULTS / "weight_policies_simulated.json"
SWEEP = programs.RESULTS / "weight_policies_sweep_simulated.json"
SHARING = programs.RESULTS / "sharing_modes_sim.json"
MANAGED = programs.RESULTS / "managed_memory_h200.json"
ALLOCATORS = programs.RESULTS / "allocators_h200.json"

DRAWN: tuple[tuple[str, Host], ...] = (
    ("history1", "layer"),
    ("history", "layer"),
    ("auto", "ahead"),
)
COLUMNS = 100
CODE = re.compile(rf"^({'|'.join((*SUBJECTS, *MODES))})\b")


def pages() -> dict[str, list[str]]:
    """By the name of a page the tables that it has, in Markdown."""
    policies, swept, modes = load(WEIGHTS), load(SWEEP), load(SHARING)
    return {
        "weights.md": [
            markdown(table)
            for table in (
                weights.totals(policies, PROFILE_RATE),
                weights.totals(policies, WAITS_5_MS),
                weights.a_layer(policies),
                weights.copied(policies),
                sweep.by_issue(swept),
                sweep.by_depth(swept),
                weights.jittered(policies, WAITS_20_MS),
                weights.jitter_by_link(policies),
            )
        ],
        "sharing-model.md": [
            markdown(table)
            for table in (
                sharing.switches(modes),
                sharing.moved(modes),
                sharing.grid(modes, STUDY),
                sharing.grid(modes, H200),
            )
        ],
        "lab-weights.md": [
            _claims(policies, [*weights_claims.claims(policies), *sweep.claims(swept)]),
            markdown(sweep.contrasts(swept)),
        ],
        "claims.md": [
            markdown(
                fragmentation_claims.table(
                    fragmentation_claims.load_allocators(ALLOCATORS.read_bytes())
                )
            )
        ],
        "lab-sharing.md": [_claims(modes, sharing_claims.claims(modes, on_card(MANAGED)))],
    }


def on_card(path: Path) -> sharing_claims.Managed | None:
    """What a card answered about managed memory, once one was asked."""
    if not path.exists():
        return None
    report = msgspec.json.decode(path.read_bytes(), type=managed_memory.Report)
    return None if report.simulated else managed_memory.managed(report)


def _claims(report: Report, found: list[Claim]) -> str:
    return markdown(claim_table(report, found))


def markdown(table: Table) -> str:
    """Names of policies and modes at the head of a row are set as code."""
    edges = ["---:" if n in table.numeric else "---" for n in range(len(table.columns))]
    lines = ["| " + " | ".join(table.columns) + " |", "|" + "|".join(edges) + "|"]
    named = table.columns[0] in ("policy", "mode", "")
    for first, *rest in table.rows:
        head = CODE.sub(r"`\1`", first) if named else first
        lines.append("| " + " | ".join([head, *rest]) + " |")
    return "\n".join(lines)


def timelines() -> Iterator[str]:
    """Three layers of a steady pass, with the link of the study's first timeline."""
    driver = vramkit.driver.open("sim")
    lab = Lab(driver, driver.device(), seed=1, repetition=0, settings={})
    for policy, host in DRAWN:
        steady = record(Cell(policy, WAITS_20_MS, host), lab)[-1]
        title = f"{policy}, host {'ahead' if host == 'ahead' else 'in step with the layer'}"
        drawn = steady.timeline(title, layers=range(40, 43), scale=0.66)
        yield "\n".join(
            line.plain.rstrip() for line in timeline_lines(drawn, COLUMNS, colour=False)
        )


def main(command: list[str] | None = None) -> int:
    parser = ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--timelines", action="store_true", help="print those instead")
    if parser.parse_args(command).timelines:
        print("\n\n".join(timelines()))
        return 0
    for name, tables in pages().items():
        print("\n\n".join([f"docs/{name}", *tables]), end="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
