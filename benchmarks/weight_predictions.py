"""What the planner says of the passes that weight_streaming.py has measured; needs no card.

The planner is given what a user has before the run: the model without its weights, the budget, and
how long a pass takes with all weights on the card, which was measured. The rest is simulated.
"""

import sys
from argparse import ArgumentParser
from pathlib import Path

import msgspec
import programs
import weight_models
from rows import Row
from weight_streaming import DEFAULT_OUTPUT, Result

from vramkit.weights import plan

PAGE = programs.ROOT / "docs" / "plan.md"
MARK = "<!-- Written by benchmarks/weight_predictions.py -->"


def predictions(rows: list[Row]) -> list[tuple[str, float, float]]:
    """Title, predicted and measured milliseconds."""
    resident = {row.workload: row.median for row in rows if row.allocator == "resident"}
    measured = {row.workload: row.median for row in rows if row.allocator == "vramkit"}
    model = weight_models.empty(weight_models.llama())
    nbytes = sum(parameter.nbytes for parameter in model.parameters())
    ring, budgets = weight_models.budgets(nbytes)
    found = []
    for title, budget in budgets.items():
        for name, tokens in weight_models.TOKENS.items():
            workload, computed = f"{title}, {name}", resident[name]
            reached = measured[workload]
            assert computed is not None and reached is not None
            planned = plan(
                model,
                budget,
                tokens=tokens,
                ring=ring,
                pass_seconds=computed / 1e3,
                compare=False,
            )
            found.append((workload, planned.chosen.pass_s * 1e3, reached))
            print(f"{workload:<44} {found[-1][1]:8.1f} {reached:8.1f} ms", flush=True)
    return found


def page(found: list[tuple[str, float, float]]) -> str:
    worst = max(abs(predicted / reached - 1) for _, predicted, reached in found)
    lines = [
        MARK,
        "",
        f"The worst of {len(found)} is {100 * worst:.1f} % off.",
        "",
        "| pass | predicted | measured | predicted / measured |",
        "|---|---:|---:|---:|",
    ]
    for title, predicted, reached in found:
        lines.append(
            f"| {title} | {predicted:.1f} ms | {reached:.1f} ms | {predicted / reached:.3f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, nargs="?", default=DEFAULT_OUTPUT)
    options = parser.parse_args()
    rows = msgspec.json.decode(options.results.read_bytes(), type=Result).rows
    written = page(predictions(rows))
    text = PAGE.read_text(encoding="utf-8")
    before, _, _ = text.partition(MARK)
    PAGE.write_text(before + written, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
