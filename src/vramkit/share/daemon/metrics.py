"""The status as Prometheus reads it: plain text, format 0.0.4."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from vramkit.share.status import CardStatus, Status

CARD_GAUGES = {
    "total": "Memory of the card",
    "budget": "Memory of the card that programs may use together",
    "held": "Memory of the card that programs hold",
    "free": "Memory of the budget that nobody holds",
}
PROGRAM_GAUGES = {
    "held": "Memory of the card that the program may use now",
    "resident": "Memory of the program on the card",
    "swapped": "Memory of the program on the host",
    "unbacked": "Memory that the program allocated and never used",
    "unswappable": "Memory of the program that cannot leave the card",
}
PROGRAM_COUNTERS = {
    "out_bytes": "Bytes moved from the card to the host",
    "in_bytes": "Bytes moved from the host to the card",
    "launches": "Kernels and graphs launched",
}


def metrics_text(status: Status, node: str, origins: Mapping[int, dict[str, str]]) -> str:
    """`node`: a label of all samples. `origins`: labels of each client by its number."""
    lines: list[str] = []
    here = {"node": node}
    programs = {
        program.client: here | _program(program) | origins.get(program.client, {})
        for program in status.programs
    }
    for name, note in CARD_GAUGES.items():
        samples = [(here | _card(card), getattr(card, name)) for card in status.cards]
        lines += _metric(f"vramkit_card_{name}_bytes", "gauge", note, samples)
    uuids = {card.card: card.uuid for card in status.cards}
    for kind, table in (("gauge", PROGRAM_GAUGES), ("counter", PROGRAM_COUNTERS)):
        for name, note in table.items():
            samples = [
                (programs[program.client] | {"card": uuids[each.card]}, getattr(each, name))
                for program in status.programs
                for each in program.cards
            ]
            stem = name.removesuffix("_bytes")
            unit = "" if name == "launches" else "_bytes"
            suffix = "_total" if kind == "counter" else ""
            lines += _metric(f"vramkit_program_{stem}{unit}{suffix}", kind, note, samples)
    for name, attribute, note in (
        ("turns_total", "turns", "Turns that the program has had"),
        ("passed_over_total", "passed_over", "Times that the program did not stop in time"),
        ("waited_seconds_total", "waited_seconds", "Time that the program waited for its turns"),
    ):
        samples = [(programs[each.client], getattr(each, attribute)) for each in status.programs]
        lines += _metric(f"vramkit_program_{name}", "counter", note, samples)
    uptime: list[tuple[dict[str, str], float]] = [(here, status.daemon.uptime_seconds)]
    lines += _metric("vramkit_uptime_seconds", "gauge", "Age of the daemon", uptime)
    return "\n".join(lines) + "\n"


def _card(card: CardStatus) -> dict[str, str]:
    # Two users may have simulated cards of one name; a series must not be there twice.
    owner = {} if card.owner is None else {"uid": str(card.owner)}
    return {"card": card.uuid} | owner


def _program(program: object) -> dict[str, str]:
    return {name: str(getattr(program, name)) for name in ("pid", "name", "uid")}


def _metric(
    name: str, kind: str, note: str, samples: Iterable[tuple[dict[str, str], float]]
) -> list[str]:
    lines = [f"# HELP {name} {note}", f"# TYPE {name} {kind}"]
    for labels, value in samples:
        listed = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
        lines.append(f"{name}{{{listed}}} {_number(value)}")
    return lines


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.6f}"
