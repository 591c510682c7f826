"""The options of a Ray task or actor that uses a part of a card."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from vramkit.cluster.cards import MIB
from vramkit.integrations.ray.node import RESOURCE
from vramkit.share.run import Mode, RunOptions
from vramkit.weights.budget import parse_bytes

FIELD = "vramkit"
"""Of the runtime_env."""

# Ray counts resources in steps of 1/10,000.
STEPS = 10_000


def options(
    memory: str | int,
    *,
    weight: float = 1.0,
    priority: int = 0,
    mode: Mode = "swap",
    pool: bool = False,
    ipc: bool = False,
    gpu: float | None = None,
    runtime_env: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """For `Actor.options(**...)` and `@ray.remote(**...)`: memory of a card, and its enforcement.

    `memory` is what Ray places by, and the most that the worker is shown and may use. `weight`,
    `priority`, `mode`, `pool` and `ipc` are those of `vramkit run`.

    `gpu` is Ray's num_gpus, the part of one card: Ray then chooses a card of the node and shows the
    worker that one only. Without it: on a cluster that has nodes with several cards, the part that
    the memory is of the smallest of their cards; elsewhere, and before ray.init(), none.

    `runtime_env` is added to. Raises ValueError or TypeError.
    """
    nbytes = memory if isinstance(memory, int) else parse_bytes(memory, "memory")
    if isinstance(memory, bool) or nbytes < MIB:
        raise ValueError(f"memory is {memory!r}; it may be bytes or text, 1 MiB or more")
    chosen = RunOptions(mode, nbytes, weight, priority, pool, ipc)
    if FIELD in (runtime_env or {}):
        raise ValueError(f"runtime_env has the field {FIELD!r}, which options() makes")
    # In whole MiB: else 100 and a half would be placed by less than is allowed.
    needed = -(-nbytes // MIB)
    result: dict[str, Any] = {
        "resources": {RESOURCE: needed},
        "runtime_env": {**(runtime_env or {}), FIELD: to_field(chosen)},
    }
    part = _part_of_a_card(needed) if gpu is None else gpu
    if part:
        result["num_gpus"] = part
    return result


def _part_of_a_card(needed: int) -> float | None:
    """Of nodes with several cards; None where there are none, or no cluster is known."""
    ray: Any = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None
    sizes: list[float] = [
        node["Resources"][RESOURCE] / node["Resources"]["GPU"]
        for node in ray.nodes()
        if node["Alive"] and node["Resources"].get(RESOURCE) and node["Resources"].get("GPU", 0) > 1
    ]
    if not sizes:
        return None
    fitting = [size for size in sizes if size >= needed]
    if not fitting:
        raise ValueError(
            f"memory is {needed} MiB, and the largest card announces {max(sizes):.0f} MiB; "
            "give less, or gpu= for a program that uses several cards"
        )
    return math.ceil(needed / min(fitting) * STEPS) / STEPS


def to_field(chosen: RunOptions) -> dict[str, Any]:
    """What Ray carries to the node: the options that differ from the defaults."""
    default = asdict(RunOptions())
    return {name: value for name, value in asdict(chosen).items() if value != default[name]}


def from_field(field: object) -> RunOptions:
    """Raises ValueError."""
    known: dict[str, Any] = {"mode": str, "memory": int, "weight": (int, float), "priority": int}
    known |= {"pool": bool, "ipc": bool}
    if not isinstance(field, dict):
        raise ValueError(f"the field {FIELD!r} of runtime_env is {field!r}; see options()")
    for name, value in field.items():
        if name not in known or not isinstance(value, known[name]):
            raise ValueError(
                f"the field {FIELD!r} of runtime_env has {name}={value!r}; use "
                "vramkit.integrations.ray.options(), and the same vramkit on all nodes"
            )
    return RunOptions(**field)
