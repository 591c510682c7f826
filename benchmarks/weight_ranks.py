"""What the planner says of one, two, four and eight cards that stream a model together; needs no
card.

    python benchmarks/weight_ranks.py            # a minute: results, and the page
    python benchmarks/weight_ranks.py publish    # the page alone

80 decoder layers of Llama-70B shape on the profile of an H200, in exact virtual time. The rates at
which cards gather are assumed, not measured.
"""

import sys
from argparse import ArgumentParser
from typing import Any

import machine
import msgspec
import programs
import weight_models

from vramkit.report.units import bytes_text, time_text
from vramkit.weights import Plan, Prediction, plan

RESULT = programs.RESULTS / "weight_ranks_simulated.json"
PAGE = programs.ROOT / "docs" / "ranks.md"
LAYERS = 80
BUDGET = "24GiB"
RANKS = (1, 2, 4, 8)
RATES = {"300 GB/s": 300e9, "40 GB/s": 40e9}


class Row(msgspec.Struct, frozen=True):
    tokens: int
    gather: str
    plan: Prediction


class Result(msgspec.Struct, frozen=True):
    machine: machine.Machine
    profile: str
    model: str
    weight_bytes: int
    rows: list[Row]
    simulated: bool = True


def planned(model: Any, tokens: int, gather: str, ranks: int) -> Plan:
    several = {"ranks": ranks, "gather_bytes_per_s": RATES[gather]} if ranks > 1 else {}
    return plan(model, BUDGET, tokens=tokens, compare=False, **several)


def measure() -> Result:
    model = weight_models.empty(weight_models.llama(layers=LAYERS))
    rows = []
    for name, tokens in weight_models.TOKENS.items():
        for gather in RATES:
            for ranks in RANKS:
                made = planned(model, tokens, gather, ranks)
                rows.append(Row(tokens, gather, made.chosen))
                print(f"{name:<14} {gather} {ranks} cards: {made.verdict}", flush=True)
    return Result(machine.collect(), made.profile, made.model, made.weight_bytes, rows)


def cell(row: Row) -> str:
    return f"{time_text(row.plan.pass_s)} ({row.plan.limit})"


def page(result: Result) -> str:
    """The part of docs/ranks.md between its marks."""
    found = {(row.tokens, row.gather, row.plan.ranks): row for row in result.rows}
    lines = [
        f"{bytes_text(result.weight_bytes)} of weights, a budget of {BUDGET} on each card. In "
        "parentheses is what limits a pass.",
        "",
        "| pass, gathered at | " + " | ".join(f"{n} card" + "s" * (n > 1) for n in RANKS) + " |",
        "|---|" + "---:|" * len(RANKS),
    ]
    for name, tokens in weight_models.TOKENS.items():
        for gather in RATES:
            cells = [cell(found[tokens, gather, ranks]) for ranks in RANKS]
            lines.append(f"| {name}, {gather} | " + " | ".join(cells) + " |")
    worst = max(row.plan.pass_s / row.plan.bound_s for row in result.rows)
    lines += ["", f"The worst of these passes takes {worst:.3f} of its bound."]
    return "\n".join(lines)


def read() -> Result:
    return msgspec.json.decode(RESULT.read_bytes(), type=Result)


def main() -> int:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="?", choices=("measure", "publish"), default="measure")
    if parser.parse_args().what == "measure":
        RESULT.write_bytes(msgspec.json.format(msgspec.json.encode(measure()), indent=1) + b"\n")
    programs.publish_page(PAGE, "weight_ranks", page(read()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
