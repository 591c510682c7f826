"""What the planner says of one, two, four and eight cards that stream a model together; needs no
card.

    python benchmarks/weight_ranks.py    # a minute: results, and the page

80 decoder layers of Llama-70B shape on the profile of an H200, in exact virtual time. The rates at
which cards gather are assumed, not measured.
"""

import sys
from pathlib import Path

import machine
import msgspec
import programs
import weight_models

from vramkit.report.units import bytes_text, time_text
from vramkit.weights import Prediction, plan

RESULT = programs.RESULTS / "weight_ranks_simulated.json"
PAGE = programs.ROOT / "docs" / "ranks.md"
BEGIN, END = "<!-- weight_ranks -->", "<!-- end -->"
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


def measure() -> Result:
    model = weight_models.empty(weight_models.llama(layers=LAYERS))
    rows = []
    for name, tokens in weight_models.TOKENS.items():
        for gather, rate in RATES.items():
            for ranks in RANKS:
                several = {"ranks": ranks, "gather_bytes_per_s": rate} if ranks > 1 else {}
                made = plan(model, BUDGET, tokens=tokens, compare=False, **several)
                rows.append(Row(tokens, gather, made.chosen))
                print(f"{name:<14} {gather} {ranks} cards: {made.verdict}", flush=True)
    return Result(machine.collect(), made.profile, made.model, made.weight_bytes, rows)


def cell(row: Row) -> str:
    return f"{time_text(row.plan.pass_s)} ({row.plan.limit})"


def page(result: Result) -> str:
    """The part of the page between its marks."""
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


def main() -> int:
    if "--page" not in sys.argv[1:]:
        RESULT.write_bytes(msgspec.json.format(msgspec.json.encode(measure()), indent=1) + b"\n")
    result = msgspec.json.decode(RESULT.read_bytes(), type=Result)
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    written = f"{before}{BEGIN}\n\n{page(result)}\n\n{END}{after}"
    Path(PAGE).write_text(written, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
