"""Policies of weight streaming beside each other, on the simulated GPU, in exact virtual time.

    python benchmarks/weight_policies.py
    python benchmarks/weight_policies.py --json benchmarks/results/weight_policies_simulated.json

Prints the tables and pictures of docs/weights.md. Takes a minute or two.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path

from machine import collect
from weight_policies_document import Document, Jitter, Neighbour, Preset, text
from weight_policies_run import (
    AS_COMPUTE,
    ENSURE_SECONDS,
    HOSTS,
    LAYERS,
    LINK_BOUND,
    PARTS,
    PROFILE_RATE,
    SECONDS,
    WAITS_5_MS,
    WAITS_20_MS,
    Case,
    driver_calls,
    jitter,
    measure,
    profiles_folder,
    record,
    sweep,
)
from weight_policies_tables import tables

from vramkit.report.terminal_timeline import timeline_lines
from vramkit.weights import POLICIES

LINKS = (PROFILE_RATE, WAITS_5_MS, WAITS_20_MS, AS_COMPUTE, LINK_BOUND)
SWEPT_LINKS = (PROFILE_RATE, WAITS_5_MS, AS_COMPUTE, LINK_BOUND)
JITTER_PASSES = 20
JITTER_SEEDS = 10
JITTER_LINKS = (PROFILE_RATE, 2e9, WAITS_20_MS, 1.35e9)
DRAWN = (("history1", "layer"), ("history", "layer"), ("auto", "ahead"))
COLUMNS = 100


def presets(folder: Path) -> Iterator[Preset]:
    """Every preset on every link with every host; on two compute streams on the study's link."""
    for link in LINKS:
        for policy in POLICIES:
            for host in HOSTS:
                yield _preset(Case(policy, link, host), folder)
                if link == PROFILE_RATE:
                    yield _preset(Case(policy, link, host, streams=2), folder)


def _preset(case: Case, folder: Path) -> Preset:
    assert isinstance(case.policy, str)
    result = measure(case, folder)
    return Preset(case.policy, case.link, case.host, case.streams, case.ring_layers, result)


def jittered(neighbour: Neighbour, folder: Path) -> Iterator[Jitter]:
    """Every preset beside the same copies, and `auto` with as much memory as depths of 2 and 4.
    The host runs ahead; on one link it is in step too."""
    for link in JITTER_LINKS:
        for host in HOSTS if link == WAITS_20_MS else HOSTS[:1]:
            cases = [Case(policy, link, host) for policy in POLICIES]
            cases += [Case("auto", link, host, ring_layers=layers) for layers in (3, 5)]
            for case in cases:
                spread = jitter(case, neighbour, JITTER_PASSES, folder, JITTER_SEEDS)
                assert isinstance(case.policy, str)
                yield Jitter(case.policy, link, host, round(case.ring / 1e6, 1), spread)


def study(folder: Path) -> Document:
    neighbour = Neighbour()
    return Document(
        machine=collect(),
        layers=LAYERS,
        group_bytes=PARTS,
        compute_seconds=SECONDS,
        ensure_seconds=ENSURE_SECONDS,
        presets=list(presets(folder)),
        driver_calls={policy: driver_calls(Case(policy), folder) for policy in POLICIES},
        neighbour=neighbour,
        seeds=JITTER_SEEDS,
        jitter=list(jittered(neighbour, folder)),
        sweep=[each for link in SWEPT_LINKS for each in sweep(link, folder)],
    )


def pictures(folder: Path) -> Iterator[str]:
    """Three layers of a steady pass, with the link of the study's first timeline."""
    for policy, host in DRAWN:
        steady = record(Case(policy, WAITS_20_MS, host), folder)[-1]  # type: ignore[arg-type]
        title = f"{policy}, host {'ahead' if host == 'ahead' else 'in step with the layer'}"
        drawn = steady.timeline(title, layers=range(40, 43), scale=0.66)
        yield "\n".join(
            line.plain.rstrip() for line in timeline_lines(drawn, COLUMNS, colour=False)
        )


def main(command: list[str] | None = None) -> int:
    parser = ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to a file")
    options = parser.parse_args(command)
    if options.json is not None and not options.json.parent.is_dir():
        parser.error(f"--json {options.json}: there is no folder {options.json.parent}")
    with profiles_folder() as folder:
        document = study(folder)
        print("\n\n".join([*tables(document).values(), *pictures(folder)]))
    if options.json is not None:
        options.json.write_text(text(document), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
