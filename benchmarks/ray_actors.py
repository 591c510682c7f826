"""Ray actors that together need more than a card: all at once, against one after the other.

Each actor adds to an array of its own, again and again, and in the end sums it: the result must be
the number of rounds in each word. What is timed is the work, not the start of processes. On a card:

    python benchmarks/ray_actors.py --budget 20GiB --rounds 20000 --json results.json

With VRAMKIT_DRIVER=sim all are on one simulated card, by the wall clock; its kernels take as long
as this machine takes for them, so that only the results say something.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import msgspec
from machine import collect

from vramkit.integrations.ray import node_environment, options, status
from vramkit.share.connect import Controls, ensure_daemon
from vramkit.share.settings import ALL_CARDS, ShareSettings, write_settings
from vramkit.weights.budget import parse_bytes

MIB = 1 << 20
BATCH = 8  # rounds between two waits, as a training step has some launches


class Adder:
    def __init__(self, nbytes):
        import vramkit

        self.device = vramkit.driver.open().device()
        self.words = nbytes // 8
        self.stream = self.device.stream()
        self.data = self.device.alloc(4 * self.words)
        self.ones = self.device.alloc(4 * self.words)
        self.clear()

    def clear(self):
        fill = self.device.kernels.fill
        fill(self.data, self.words, 0, stream=self.stream)
        fill(self.ones, self.words, 1, stream=self.stream)
        self.stream.synchronize()

    def work(self, rounds):
        """When it began and ended, by the machine's clock."""
        began = time.time()
        for done in range(rounds):
            self.device.kernels.add(self.data, self.data, self.ones, self.words, stream=self.stream)
            if done % BATCH == BATCH - 1:
                self.stream.synchronize()
        self.stream.synchronize()
        return began, time.time()

    def is_right(self, rounds):
        with self.device.alloc(8) as total, self.device.alloc_pinned(8) as result:
            self.device.fill(total, 0, stream=self.stream)
            self.device.kernels.checksum(self.data, self.words, total, stream=self.stream)
            self.device.copy(result, total, stream=self.stream)
            self.stream.synchronize()
            return int.from_bytes(result.read(), "little") == rounds * self.words


def one_after_the_other(make, count, rounds):
    """Each has the card for itself; the sum of their times."""
    import ray

    seconds, right = 0.0, True
    for _ in range(count):
        actor = make()
        ray.get(actor.clear.remote())
        began, ended = ray.get(actor.work.remote(rounds))
        seconds += ended - began
        right = right and ray.get(actor.is_right.remote(rounds))
        ray.kill(actor)
        wait_until_nobody_is_there()
    return seconds, right


def all_at_once(make, count, rounds):
    """From the first one's start to the last one's end, and what the daemon saw."""
    import ray

    actors = [make() for _ in range(count)]
    ray.get([actor.clear.remote() for actor in actors])
    times = ray.get([actor.work.remote(rounds) for actor in actors])
    right = all(ray.get([actor.is_right.remote(rounds) for actor in actors]))
    programs = [each for node in status() if node.status for each in node.status.programs]
    for actor in actors:
        ray.kill(actor)
    seconds = max(ended for _, ended in times) - min(began for began, _ in times)
    moved = sum(card.out_bytes for each in programs for card in each.cards)
    return seconds, right, sum(each.turns for each in programs), moved


def wait_until_nobody_is_there():
    while any(node.status and node.status.programs for node in status()):
        time.sleep(0.1)


def measure(arguments, folder):
    import ray

    budget = parse_bytes(arguments.budget, "budget")
    # Whole MiB, and room for the sum beside the arrays.
    each = int(budget * arguments.need / arguments.actors) // (4 * MIB) * 4 * MIB
    settings = ShareSettings(
        budget={ALL_CARDS: budget}, oversubscription=2 * arguments.need, quantum=arguments.quantum
    )
    write_settings(folder / "vramkit" / "share.json", settings)
    os.environ |= {
        "VRAMKIT_SOCKET": str(folder / "daemon.sock"),
        "XDG_RUNTIME_DIR": str(folder),
        "XDG_CONFIG_HOME": str(folder),
        "RAY_USAGE_STATS_ENABLED": "0",
        **node_environment(),
    }
    if os.environ.get("VRAMKIT_DRIVER") == "sim":
        sim = f"card=ray-actors-{os.getpid()},clock=wall,checker=off,capacity={2 * budget}"
        os.environ["VRAMKIT_SIM"] = sim
    ensure_daemon(folder / "daemon.sock")
    announced = int(budget * settings.oversubscription) // MIB
    ray.init(
        num_cpus=arguments.actors,
        num_gpus=0,
        resources={"vram_mib": announced},
        include_dashboard=False,
        log_to_driver=False,
    )
    chosen = options(each + 4 * MIB)

    def make():
        return ray.remote(Adder).options(**chosen).remote(each)

    try:
        alone, alone_right = one_after_the_other(make, arguments.actors, arguments.rounds)
        together, right, turns, moved = all_at_once(make, arguments.actors, arguments.rounds)
    finally:
        ray.shutdown()
        with Controls(folder / "daemon.sock") as controls:
            controls.ask("stop")
    return {
        "driver": os.environ.get("VRAMKIT_DRIVER", "cuda"),
        "actors": arguments.actors,
        "bytes_each": each,
        "budget_bytes": budget,
        "rounds": arguments.rounds,
        "quantum_seconds": arguments.quantum,
        "one_after_the_other_seconds": alone,
        "all_at_once_seconds": together,
        "ratio": together / alone,
        "turns": turns,
        "moved_out_bytes": moved,
        "results_right": right and alone_right,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", default="20GiB", help="of the card, for all (20GiB)")
    parser.add_argument("--need", type=float, default=1.5, help="of all together, of it (1.5)")
    parser.add_argument("--actors", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=20_000, help="of each (20000)")
    parser.add_argument("--quantum", type=float, default=30.0, help="seconds of a turn (30)")
    parser.add_argument("--json", type=Path, help="where to write the result")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="vk-") as folder:
        found = measure(arguments, Path(folder))
    found["machine"] = msgspec.to_builtins(collect())
    text = json.dumps(found, indent=2)
    print(text)
    if arguments.json is not None:
        arguments.json.write_text(text + "\n", encoding="utf-8")
    return 0 if found["results_right"] else 1


if __name__ == "__main__":
    sys.exit(main())
