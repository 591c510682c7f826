"""A report as a document, for the terminal and as a page."""

from __future__ import annotations

import msgspec
from msgspec import structs

from vramkit.lab.experiment import Experiment
from vramkit.lab.result import Report, Row
from vramkit.lab.samples import FEWEST
from vramkit.report.blocks import Block, Callout, Document, Section, Table, Text
from vramkit.report.units import bytes_text, count_text

NOT_COMPARED: dict[str, object] = {"node": "", "uuid": "", "repetitions": []}
"""What differs between two cards that are alike."""
HOW = (
    "Each repetition of a subject ran in a process of its own. The subjects took turns, in an "
    "order that changed with each repetition. A figure is the median of the repetitions, and its "
    "spread goes from the tenth to the ninetieth percentile; what stands after ± is half of that "
    "way. Two figures differ where their spreads do not overlap."
)
FEW = (
    f"There were fewer than {FEWEST} repetitions: only figures that repeat exactly are told apart."
)
SPREAD = (
    "In each of them all subjects took their turns on the same card, so that none has a better "
    "one; the spread of a figure has the difference of the cards in it."
)
UNLIKE = (
    "They are not alike: a row has figures of several cards, machines or versions, and its median "
    "is of this mixture."
)
SIMULATED = (
    "The card was a simulated one: its times follow the profile of a card, and are no measurement "
    "of one. Times that a program spends on the host include the work of simulating."
)


def document(experiment: Experiment, report: Report) -> Document:
    found = [Callout(each.tone, each.text, each.rule) for each in experiment.findings(report)]
    parts: list[tuple[str, list[Block]]] = [
        ("Stopped early", _stopped(report)),
        ("Where it was measured", _sites(report)),
        ("What was found", list(found)),
        ("The figures", experiment.blocks(report)),
        ("What has no figures, or not all", _without_figures(report)),
        ("How it was measured", _how(report)),
        ("How to check it", _again(report)),
    ]
    return Document(
        title=f"{_command(experiment, report)}: {experiment.title}",
        summary=experiment.question,
        facts=_facts(report),
        sections=[Section(title, blocks) for title, blocks in parts if blocks],
        simulated=report.simulated,
    )


def _command(experiment: Experiment, report: Report) -> str:
    """One that is not in the catalog may have a command of its own. VRAMKIT_SIM may stand before
    it."""
    if f" vramkit {experiment.name} " in f" {report.command}":
        return f"vramkit {experiment.name}"
    return f"vramkit lab {report.experiment}"


def _facts(report: Report) -> list[tuple[str, str]]:
    machine = report.machine
    card = f"{report.card}, {bytes_text(report.card_bytes)}"
    facts = [("Card", card)]
    if report.simulated is None and machine.nvidia_driver:
        facts.append(("Driver", f"NVIDIA {machine.nvidia_driver}"))
    facts.append(("Machine", f"{machine.cpu}, {count_text(machine.cores, 'core')}"))
    runs = f", in {len(report.continued) + 1} runs" if report.continued else ""
    facts.append(("Measured", f"{report.date}{runs}, vramkit {report.versions.get('vramkit', '')}"))
    return facts


def _stopped(report: Report) -> list[Block]:
    if not report.stopped:
        return []
    complete = sum(_repetitions(row) >= report.repetitions for row in report.rows)
    text = (
        f"{complete} of {count_text(len(report.rows), 'row')} have all repetitions. What follows "
        "is from what was measured until then."
    )
    return [Callout("warning", f"This run ended early: {report.stopped}.", text)]


def _sites(report: Report) -> list[Block]:
    """A run that was spread over several cards must not pass for one of one machine."""
    sites = report.sites
    if not sites:
        return []
    title = f"Repetitions were measured on {count_text(len(sites), 'card')}."
    different = {msgspec.json.encode(structs.replace(each, **NOT_COMPARED)) for each in sites}
    text = SPREAD if len(sites) > 1 else ""
    if len(different) > 1:
        text = f"{UNLIKE} {SPREAD}"
    rows = [
        [
            site.node,
            site.card,
            bytes_text(site.card_bytes),
            f"{site.machine.cpu}, {count_text(site.machine.cores, 'core')}",
            site.versions.get("vramkit", ""),
            ", ".join(str(number + 1) for number in site.repetitions),
        ]
        for site in sites
    ]
    columns = ["node", "card", "memory", "machine", "vramkit", "repetitions"]
    return [
        Callout("warning" if len(different) > 1 else "note", title, text),
        Table(columns, rows),
    ]


def _repetitions(row: Row) -> int:
    return max((len(values) for values in row.values.values()), default=0)


def _without_figures(report: Report) -> list[Block]:
    """Rows of one subject that share a reason are one line, and so are subjects that lack all of
    them for the same one."""
    cases: dict[tuple[str, str, str], list[str]] = {}
    of_subject: dict[str, int] = {}
    for row in report.rows:
        of_subject[row.subject] = of_subject.get(row.subject, 0) + 1
        if row.outcome == "measured":
            continue
        kept = _repetitions(row)
        why = row.why + (f" (after {count_text(kept, 'repetition')})" if kept else "")
        name = f"{row.workload}, {row.arm}" if row.arm else row.workload
        cases.setdefault((row.subject, row.outcome, why), []).append(name)
    if not cases:
        return []
    subjects: dict[tuple[str, str, str], list[str]] = {}
    for (subject, outcome, why), names in cases.items():
        everywhere = len(names) == of_subject[subject] > 1
        of = "all" if everywhere else "; ".join(names)
        subjects.setdefault((of, outcome, why), []).append(subject)
    rows = [[", ".join(names), *reason] for reason, names in subjects.items()]
    return [Table(["subject", "cases", "outcome", "why"], rows)]


def _how(report: Report) -> list[Block]:
    few = f" {FEW}" if report.repetitions < FEWEST else ""
    simulated = [Text(SIMULATED)] if report.simulated is not None else []
    settings = [
        [name, ", ".join(value) if isinstance(value, list) else str(value)]
        for name, value in report.settings.items()
    ]
    machine = report.machine
    versions = {**report.versions, "Python": machine.python, "kernel": machine.kernel}
    return [
        Text(f"{HOW}{few}"),
        *_runs(report),
        *simulated,
        Table(
            ["setting", "value"],
            [["repetitions", str(report.repetitions)], ["seed", str(report.seed)], *settings],
            numeric=[1],
        ),
        Text("Versions: " + ", ".join(f"{name} {number}" for name, number in versions.items())),
    ]


def _runs(report: Report) -> list[Block]:
    if not report.continued:
        return []
    dates = [report.date, *report.continued]
    return [
        Text(
            f"It was measured in {len(dates)} runs, each of which went on where the one before it "
            f"had ended: {', '.join(dates)}. The card, the machine and the versions were the same."
        )
    ]


def _again(report: Report) -> list[Block]:
    if not report.command:
        return []
    return [
        Text("The same again, with the same random orders and workloads, to a file:"),
        Text(f"`{report.command} --output again.json`"),
        Text("Then `vramkit lab compare` says what differs beyond the spread."),
    ]
