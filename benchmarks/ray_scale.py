"""How Ray with vramkit grows: many actors on one card, and the status of many nodes.

    VRAMKIT_DRIVER=sim python benchmarks/ray_scale.py    # two minutes: results/ray_scale_sim.json
    python benchmarks/ray_scale.py publish               # the table of docs/ray.md

Actors are real ones of Ray, on one simulated card. Nodes are not: what 1,000 daemons would answer
is made here, and what is timed is what the machine that asks does with it.
"""

import argparse
import json
import os
import sys
import time
from io import StringIO
from pathlib import Path

import msgspec
from machine import collect
from programs import publish_page
from ray_cluster import MIB, Adder, one_node, programs, wait_for, wait_until_nobody_is_there
from rich.console import Console

from vramkit.cli.sharing import cluster_parts, print_parts
from vramkit.integrations.ray import options, status
from vramkit.integrations.ray.cluster import Look, node_status
from vramkit.report.units import bytes_text
from vramkit.share.settings import ShareSettings
from vramkit.share.status import CardStatus, DaemonStatus, ProgramOnCard, ProgramStatus, Status

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "benchmarks" / "results" / "ray_scale_sim.json"
PAGE = ROOT / "docs" / "ray.md"
BUDGET = 64 * MIB
# Of the card, which a program has beside its memory: a buffer of hashes; on a real one a context.
RESERVE_EACH = 2 * MIB
ROUNDS = 20


def measure_actors(count):
    """All on one card, which holds half of what they have together."""
    each = 2 * BUDGET // count // MIB * MIB
    reserve = 16 * MIB + count * RESERVE_EACH
    settings = ShareSettings(reserve=reserve, oversubscription=4.0, quantum=0.05)
    limit = each + 2 * MIB
    with one_node(settings, count * limit // MIB, count, BUDGET + reserve) as ray:
        began = time.monotonic()
        make = ray.remote(Adder).options(**options(limit))
        actors = [make.remote(each) for _ in range(count)]
        wait_for(ray, [actor.is_right.remote(0) for actor in actors], "actors up")
        up = time.monotonic() - began
        times = wait_for(ray, [actor.work.remote(ROUNDS) for actor in actors], "work")
        right = all(ray.get([actor.is_right.remote(ROUNDS) for actor in actors]))
        began = time.monotonic()
        status()
        asked = time.monotonic() - began
        seen = programs()
        for actor in actors:
            ray.kill(actor)
        wait_until_nobody_is_there()
    return {
        "actors": count,
        "bytes_each": each,
        "budget_bytes": BUDGET,
        "up_seconds": up,
        "rounds": ROUNDS,
        "work_seconds": max(ended for _, ended in times) - min(began for began, _ in times),
        "turns": sum(program.turns for program in seen),
        "moved_out_bytes": sum(card.out_bytes for program in seen for card in program.cards),
        "status_seconds": asked,
        "results_right": right,
    }


def measure_nodes(count, programs_each):
    """What `vramkit top --cluster` does with the answers of so many nodes, and their size."""
    answers = [(_node(number), _answer(number, programs_each)) for number in range(count)]
    began = time.monotonic()
    nodes = [
        node_status(node, msgspec.msgpack.decode(answer, type=Look)) for node, answer in answers
    ]
    read = time.monotonic() - began
    console = Console(file=StringIO(), highlight=False)
    began = time.monotonic()
    print_parts(console, cluster_parts(nodes))
    table = time.monotonic() - began
    began = time.monotonic()
    document = msgspec.json.encode({"nodes": nodes})
    return {
        "nodes": count,
        "programs_each": programs_each,
        "answer_bytes": sum(len(answer) for _, answer in answers),
        "read_seconds": read,
        "table_seconds": table,
        "json_seconds": time.monotonic() - began,
        "json_bytes": len(document),
        "lines": console.file.getvalue().count("\n"),
    }


def _node(number):
    return {
        "NodeID": f"{number:056x}",
        "NodeManagerHostname": f"node{number}",
        "NodeManagerAddress": f"10.0.{number // 256}.{number % 256}",
        "Resources": {"vram_mib": 119808.0},
    }


def _answer(number, count):
    """As a daemon makes it, in the form in which it comes."""
    gib = 1 << 30
    used = ProgramOnCard(0, 12 * gib, 12 * gib, 8 * gib, 4 * gib, 0, 0, gib, gib, 10**6, 0.5)
    each = [
        ProgramStatus(
            client, 1000 * number + client, 1000, "ray::Model.predict", "running", "swap", 1.0, 0,
            12 * gib, 7, 0, 1.5, False, [], [used],
        )
        for client in range(count)
    ]  # fmt: skip
    card = CardStatus(0, f"GPU-{number:08x}", 80 * gib, 78 * gib, 60 * gib, 18 * gib, None)
    daemon = DaemonStatus(1, "/run/vramkit/daemon.sock", "0.1.0", True, 9.0, 30.0, 0.5, 0)
    text = msgspec.json.encode(Status(daemon, [card], each))
    return msgspec.msgpack.encode(Look(f"node{number}", True, text))


def table(found):
    actors, rows = found["actors"], found["nodes"]
    lines = ["| what | result |", "|---|---|"]
    lines.append(
        f"| {actors['actors']} actors of {bytes_text(actors['bytes_each'])} each on a card with "
        f"{bytes_text(actors['budget_bytes'])} for programs | all up after "
        f"{actors['up_seconds']:.0f} s |"
    )
    lines.append(
        f"| {actors['rounds']} rounds of work in each | {actors['work_seconds']:.1f} s, "
        f"{actors['turns']} turns, {bytes_text(actors['moved_out_bytes'])} moved out, "
        f"results {'right' if actors['results_right'] else 'WRONG'} |"
    )
    lines.append(f"| `status()` of them | {actors['status_seconds']:.1f} s |")
    lines += [
        f"| answers of {row['nodes']:,} nodes, with {row['programs_each']} program"
        f"{'s'[: row['programs_each'] > 1]} each, "
        f"{bytes_text(row['answer_bytes'])} | read in {row['read_seconds']:.2f} s; the table in "
        f"{row['table_seconds']:.1f} s, or JSON in {row['json_seconds']:.2f} s |"
        for row in rows
    ]
    machine = found["machine"]
    when = machine["date"].partition("T")[0].partition(" ")[0]
    lines += [
        "",
        f"Simulated card, {machine['cores']} cores ({machine['cpu']}) with other work, {when}.",
    ]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", nargs="?", default="measure", choices=["measure", "publish"])
    parser.add_argument("--actors", type=int, default=64)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--json", type=Path, default=RESULT, help="where to write the result")
    arguments = parser.parse_args()
    if arguments.action == "publish":
        publish_page(PAGE, "ray_scale", table(json.loads(RESULT.read_text(encoding="utf-8"))))
        return 0
    if os.environ.get("VRAMKIT_DRIVER") != "sim":
        parser.error("set VRAMKIT_DRIVER=sim: many small actors say nothing about a real card")
    if not 2 <= arguments.actors <= 2 * BUDGET // MIB or arguments.nodes < 1:
        parser.error(f"--actors may be 2 to {2 * BUDGET // MIB}, --nodes 1 or more")
    found = {
        "driver": "sim",
        "nodes": [measure_nodes(arguments.nodes, each) for each in (1, 8)],
        "actors": measure_actors(arguments.actors),
        "machine": msgspec.to_builtins(collect()),
    }
    arguments.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(table(found))
    return 0 if found["actors"]["results_right"] else 1


if __name__ == "__main__":
    sys.exit(main())
