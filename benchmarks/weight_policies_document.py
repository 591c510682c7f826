"""What the study of weight streaming found, as its file holds it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from machine import Machine

from vramkit.weights.passes import Host


class Result(msgspec.Struct, frozen=True):
    """Milliseconds; blocked, idle and copied are of the steady pass, a layer. By what computed
    meanwhile, in MB: `copied_mb`, and `first_layer_copied_mb` of the cold pass."""

    bound_ms: float
    cold_ms: float
    steady_ms: float
    blocked_ms: float
    idle_ms: float
    copied_mb: dict[str, float]
    first_layer_copied_mb: dict[str, float]
    ring_mb: float
    misses: int


class Preset(msgspec.Struct, frozen=True):
    policy: str
    link: float
    host: Host
    streams: int
    ring_layers: int
    result: Result


class Neighbour(msgspec.Struct, frozen=True):
    """Copies of another program: sizes uniform, the time between them exponential, one at a
    time. While one runs, both programs have half of the link."""

    mean_gap_ms: float = 1000.0
    least_mb: int = 20
    most_mb: int = 400
    seed: int = 1


class Spread(msgspec.Struct, frozen=True):
    """Of the passes of all seeds, without the cold ones, ms."""

    least: float
    median: float
    p90: float
    most: float
    most_by_seed: list[float]


class Jitter(msgspec.Struct, frozen=True):
    policy: str
    link: float
    host: Host
    ring_mb: float
    ms: Spread


class Swept(msgspec.Struct, frozen=True):
    """One policy on one link: by host, the cold and the steady pass in ms. `issue_at` without ffn:
    it is copied on demand, or first thing in its layer."""

    link: float
    wait: Literal["event", "block"]
    depth: int
    issue_at: Mapping[str, str]
    own_ffn_first: bool
    ms: Mapping[Host, tuple[float, float]]


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """What the file holds. Links are bytes a second."""

    benchmark: str = "weight_policies"
    simulated: bool = True
    profile: str = "weight-streaming"
    machine: Machine
    layers: int
    group_bytes: Mapping[str, int]
    compute_seconds: Mapping[str, float]
    ensure_seconds: float
    presets: list[Preset]
    driver_calls: Mapping[str, Mapping[str, int]]
    neighbour: Neighbour
    seeds: int
    """The neighbour's sequences, from its seed on."""
    jitter: list[Jitter]
    sweep: list[Swept]


def text(document: Document) -> str:
    """JSON with a line for each row of a list."""
    return "{\n" + ",\n".join(map(_field, msgspec.to_builtins(document).items())) + "\n}\n"


def _field(item: tuple[str, Any]) -> str:
    name, value = item
    if not isinstance(value, list):
        return f'"{name}": {_json(value)}'
    return f'"{name}": [\n' + ",\n".join(map(_json, value)) + "\n]"


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
