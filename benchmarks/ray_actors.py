"""Ray actors that together need more than a card: all at once, against one after the other.

Each actor adds to an array of its own, again and again, and in the end sums it: the result must be
the number of rounds in each word. What is timed is the work, not the start of processes. On a card,
some 7 minutes:

    python benchmarks/ray_actors.py --json benchmarks/results/ray_actors_h200.json
    python benchmarks/ray_actors.py publish    # the table of docs/ray.md

With VRAMKIT_DRIVER=sim all are on one simulated card, by the wall clock; its kernels take as long
as this machine takes for them, so that only the results say something.
"""

import argparse
import os
import sys
from pathlib import Path

import msgspec
from machine import Machine, collect
from programs import RESULTS, ROOT, publish_page
from ray_cluster import (
    MIB,
    Adder,
    one_node,
    programs,
    say,
    wait_for,
    wait_until_nobody_is_there,
)

from vramkit.integrations.ray import options
from vramkit.report.units import bytes_text
from vramkit.share.settings import ALL_CARDS, ShareSettings
from vramkit.weights.budget import parse_bytes

RESULT = RESULTS / "ray_actors_h200.json"
PAGE = ROOT / "docs" / "ray.md"
NOTHING = "No card has been measured yet: `benchmarks/ray_actors.py` does it."
GOAL = 1.05
TRIAL_ROUNDS = 64


class Report(msgspec.Struct, frozen=True):
    driver: str
    actors: int
    bytes_each: int
    budget_bytes: int
    rounds: int
    quantum_seconds: float
    alone_seconds: list[float]
    one_after_the_other_seconds: float
    all_at_once_seconds: float
    ratio: float
    turns: int
    moved_out_bytes: int
    results_right: bool
    machine: Machine
    goal: float = GOAL


def rounds_for(ray, make, seconds):
    """So many rounds take about so many seconds; measured with an actor alone."""
    actor = make()
    ray.get(actor.work.remote(TRIAL_ROUNDS))
    began, ended = ray.get(actor.work.remote(TRIAL_ROUNDS))
    ray.kill(actor)
    wait_until_nobody_is_there()
    return max(TRIAL_ROUNDS, round(TRIAL_ROUNDS * seconds / (ended - began)))


def one_after_the_other(ray, make, count, rounds):
    """Each has the card for itself: their times, and whether all results are right."""
    times, right = [], True
    for number in range(count):
        actor = make()
        ray.get(actor.clear.remote())
        ((began, ended),) = wait_for(ray, [actor.work.remote(rounds)], f"alone, actor {number + 1}")
        times.append(ended - began)
        right = ray.get(actor.is_right.remote(rounds)) and right
        ray.kill(actor)
        wait_until_nobody_is_there()
    return times, right


def all_at_once(ray, make, count, rounds):
    """From the first one's start to the last one's end, and what the daemon saw."""
    actors = [make() for _ in range(count)]
    ray.get([actor.clear.remote() for actor in actors])
    times = wait_for(ray, [actor.work.remote(rounds) for actor in actors], "all at once")
    seen = programs()
    right = all(ray.get([actor.is_right.remote(rounds) for actor in actors]))
    for actor in actors:
        ray.kill(actor)
    wait_until_nobody_is_there()
    seconds = max(ended for _, ended in times) - min(began for began, _ in times)
    moved = sum(card.out_bytes for each in seen for card in each.cards)
    return seconds, right, sum(each.turns for each in seen), moved


def measure(arguments):
    budget = parse_bytes(arguments.budget, "budget")
    # Whole MiB, and room for the sum beside the arrays.
    each = int(budget * arguments.need / arguments.actors) // (4 * MIB) * 4 * MIB
    factor = max(1.0, arguments.need + 0.1)
    settings = ShareSettings(
        budget={ALL_CARDS: budget}, oversubscription=factor, quantum=arguments.quantum
    )
    announced = (each + 4 * MIB) // MIB * arguments.actors
    with one_node(settings, announced, arguments.actors, 2 * budget) as ray:
        chosen = options(each + 4 * MIB)

        def make():
            return ray.remote(Adder).options(**chosen).remote(each)

        rounds = arguments.rounds or rounds_for(ray, make, arguments.seconds)
        say(f"{arguments.actors} actors of {each // MIB} MiB, {rounds} rounds each")
        alone, alone_right = one_after_the_other(ray, make, arguments.actors, rounds)
        together, right, turns, moved = all_at_once(ray, make, arguments.actors, rounds)
    return Report(
        driver=os.environ.get("VRAMKIT_DRIVER", "cuda"),
        actors=arguments.actors,
        bytes_each=each,
        budget_bytes=budget,
        rounds=rounds,
        quantum_seconds=arguments.quantum,
        alone_seconds=alone,
        one_after_the_other_seconds=sum(alone),
        all_at_once_seconds=together,
        ratio=together / sum(alone),
        turns=turns,
        moved_out_bytes=moved,
        results_right=right and alone_right,
        machine=collect(),
    )


def table(found):
    """What the page shows of a result, if there is one: only what was measured on a card."""
    if found is None or found.driver == "sim":
        return NOTHING
    met = "met" if found.ratio <= found.goal else "missed"
    lines = [
        "| | one after the other | all at once | |",
        "|---|---:|---:|---|",
        f"| {found.actors} actors of {bytes_text(found.bytes_each)} in a budget of "
        f"{bytes_text(found.budget_bytes)}, quantum {found.quantum_seconds:g} s | "
        f"{found.one_after_the_other_seconds:.1f} s | {found.all_at_once_seconds:.1f} s "
        f"| {found.ratio:.3f} times as long (goal at most {found.goal}: {met}) |",
        "",
        f"{found.rounds:,} rounds in each; all at once {found.turns} turns, "
        f"{bytes_text(found.moved_out_bytes)} moved out; results "
        f"{'right' if found.results_right else 'WRONG'}. {found.machine.gpu}, "
        f"{found.machine.date[:10]}, measured once.",
    ]
    return "\n".join(lines)


def read(path):
    return msgspec.json.decode(path.read_bytes(), type=Report) if path.is_file() else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="?", choices=("measure", "publish"), default="measure")
    parser.add_argument("--budget", default="20GiB", help="of the card, for all (20GiB)")
    parser.add_argument("--need", type=float, default=1.5, help="of all together, of it (1.5)")
    parser.add_argument("--actors", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=45.0, help="of work of each (45)")
    parser.add_argument("--rounds", type=int, default=0, help="of each, instead of --seconds")
    parser.add_argument("--quantum", type=float, default=30.0, help="seconds of a turn (30)")
    parser.add_argument("--json", type=Path, help="where to write the result")
    arguments = parser.parse_args()
    if arguments.what == "publish":
        publish_page(PAGE, "ray_actors", table(read(RESULT)))
        return 0
    if arguments.actors < 1 or arguments.need <= 0 or arguments.seconds <= 0:
        parser.error("--actors, --need and --seconds must be more than 0")
    found = measure(arguments)
    written = msgspec.json.format(msgspec.json.encode(found), indent=2)
    print(written.decode())
    if arguments.json is not None:
        arguments.json.write_bytes(written + b"\n")
    return 0 if found.results_right else 1


if __name__ == "__main__":
    sys.exit(main())
