"""Passes of the study of weight streaming, on the simulated GPU: one policy, one link, one host.

The model is that of the study: 80 layers, 80 ms of attention and 120 ms of ffn, groups of 100 and
150 MB. Its link is that of the profile weight-streaming, 5 GB/s, or another one in its place.
"""

from __future__ import annotations

import random
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

import msgspec
from weight_policies_document import Neighbour, Result, Spread, Swept

import vramkit
from vramkit.driver import Device, Driver
from vramkit.weights import Group, Policy, WeightManager
from vramkit.weights.manager import chosen_policy
from vramkit.weights.passes import Host, Passes
from vramkit.weights.recording import RecordedPass, record_passes

PROFILE = "weight-streaming"
MB = 1_000_000
PARTS = {"attn": 100 * MB, "ffn": 150 * MB}
SECONDS = {"attn": 0.080, "ffn": 0.120}
LAYERS = 80
ENSURE_SECONDS = 0.002
GRANULARITY = 2 << 20  # of the profile
STEADY = 2  # the pass that is taken as steady, from 0: the second one still follows a cold one
HOSTS: tuple[Host, ...] = ("ahead", "layer", "group")

PROFILE_RATE = 5e9
WAITS_5_MS = PARTS["ffn"] / 0.085
"""Bytes a second with which 150 MB arrive 5 ms after the 80 ms of attention: the study's 205 ms a
layer."""
WAITS_20_MS = PARTS["ffn"] / 0.100
"""... 20 ms after: its 220 ms a layer."""
AS_COMPUTE = sum(PARTS.values()) / sum(SECONDS.values())
"""With which a layer is copied in the time that it computes, 1.25 GB/s."""
LINK_BOUND = 1e9


class Case(msgspec.Struct, frozen=True):
    """What is run. `ring_layers` is for policies without a depth, which fill the ring they get."""

    policy: str | Policy
    link: float = PROFILE_RATE
    host: Host = "ahead"
    streams: Literal[1, 2] = 1
    ring_layers: int = 2
    layers: int = LAYERS

    @property
    def groups(self) -> list[Group]:
        return [Group(layer, *part) for layer in range(self.layers) for part in PARTS.items()]

    @property
    def seconds(self) -> list[float]:
        return list(SECONDS.values()) * self.layers

    @property
    def bound(self) -> float:
        """Seconds a pass: the compute time, or the time of the copies."""
        return max(sum(self.seconds), sum(group.nbytes for group in self.groups) / self.link)

    @property
    def ring(self) -> int:
        """The smallest ring for the policy's depth: a pass fills it a whole number of times."""
        depth = chosen_policy(self.policy).depth
        layers = self.ring_layers if depth is None else depth + 1
        total, least = self.layers * sum(PARTS.values()), layers * sum(PARTS.values())
        return _whole(-(-total // (total // least)), GRANULARITY)


def measure(case: Case, folder: Path) -> Result:
    passes = record(case, folder)
    cold, steady = passes[0].time, passes[STEADY].time
    return Result(
        bound_ms=_ms(case.bound),
        cold_ms=_ms(cold.wall),
        steady_ms=_ms(steady.wall),
        blocked_ms=_ms(steady.host_blocked / case.layers),
        idle_ms=_ms(steady.stalled / case.layers),
        copied_mb=_mb(passes[STEADY].copied_beside(), case.layers),
        first_layer_copied_mb=_mb(passes[0].copied_beside(range(1))),
        ring_mb=round(case.ring / MB, 1),
        misses=steady.misses,
    )


def record(case: Case, folder: Path) -> list[RecordedPass]:
    with _managed(case, folder) as manager:
        return record_passes(
            manager,
            case.seconds,
            passes=STEADY + 1,
            ensure_cost=ENSURE_SECONDS,
            streams=case.streams,
            host=case.host,
        )


def times(case: Case, folder: Path) -> tuple[float, float]:
    """The cold and the steady pass, in ms."""
    with _passes(case, folder) as run:
        walls = [run.one().wall for _ in range(STEADY + 1)]
    return _ms(walls[0]), _ms(walls[STEADY])


def driver_calls(case: Case, folder: Path) -> dict[str, int]:
    """Of a steady pass, the launches of its kernels among them."""
    with _passes(case, folder) as run:
        sim = run.device.driver.sim
        assert sim is not None
        for _ in range(STEADY):
            run.one()
        sim.reset_call_counts()
        run.one()
        return {name: count for name, count in sim.call_counts().items() if count}


# A link that another program uses too


def jitter(case: Case, neighbour: Neighbour, passes: int, folder: Path, seeds: int = 1) -> Spread:
    """So many passes behind a cold one, beside each of so many sequences of copies: one sequence
    alone may hide what another shows."""
    by_seed = [
        _beside(case, msgspec.structs.replace(neighbour, seed=neighbour.seed + n), passes, folder)
        for n in range(seeds)
    ]
    walls = [wall for each in by_seed for wall in each]
    return Spread(
        least=min(walls),
        median=round(statistics.median(walls), 3),
        p90=round(statistics.quantiles(walls, n=10, method="inclusive")[-1], 3),
        most=max(walls),
        most_by_seed=[max(each) for each in by_seed],
    )


def _beside(case: Case, neighbour: Neighbour, passes: int, folder: Path) -> list[float]:
    with ExitStack() as stack:
        device = _fresh_card(case, folder)
        copies = _Copies(device, neighbour, case.link, stack)
        run = stack.enter_context(_passes(case, folder, device, copies.issue))
        walls = [_ms(run.one().wall) for _ in range(1 + passes)][1:]
        device.synchronize()
    return walls


class _Copies:
    """Issues the neighbour's copies some time ahead, at the start of each pass: kernels that spin
    on its stream are the gaps, so that the copies do not depend on how far the host is."""

    AHEAD = 60.0  # seconds: more than a pass takes

    def __init__(self, device: Device, neighbour: Neighbour, link: float, stack: ExitStack) -> None:
        self._device, self._neighbour, self._link = device, neighbour, link
        self._random = random.Random(neighbour.seed)
        self._stream = stack.enter_context(device.stream())
        nbytes = neighbour.most_mb * MB
        self._source = stack.enter_context(device.alloc_pinned(nbytes))
        self._target = stack.enter_context(device.alloc(nbytes))
        self._issued = 0.0  # seconds from the start, if nothing else used the link

    def issue(self, group: int) -> None:
        sim = self._device.driver.sim
        assert sim is not None
        if group != 0:
            return
        while self._issued < sim.now() + self.AHEAD:
            gap = self._random.expovariate(1000 / self._neighbour.mean_gap_ms)
            nbytes = self._random.randint(self._neighbour.least_mb, self._neighbour.most_mb) * MB
            self._device.kernels.spin(round(gap * 1e9), stream=self._stream)
            self._device.copy(self._target, self._source, nbytes, stream=self._stream)
            self._issued += gap + nbytes / self._link


# The simulated card


def profile(link: float, folder: Path) -> str | Path:
    """The profile of the study, or a file like it with another link. Rates from pageable memory are
    those of the profile's own comment: staging of 10.2 and 21.2 GB/s in series with the link."""
    if link == PROFILE_RATE:
        return PROFILE
    rates = {
        "host_to_device": link,
        "device_to_host": link,
        "duplex": link * 50.1 / 55.4,
        "pageable_host_to_device": 1 / (1 / 10.2e9 + 1 / link),
        "pageable_device_to_host": 1 / (1 / 21.2e9 + 1 / link),
    }
    lines = [f'name = "{PROFILE}-{link / 1e9:.3f}"', f'extends = "{PROFILE}"', "[link]"]
    lines += [f"{name}_bytes_per_s = {rate:.1f}" for name, rate in rates.items()]
    path = folder / f"link-{link / 1e6:.0f}.toml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def open_simulated() -> Driver:
    return vramkit.driver.open("sim")


def _fresh_card(case: Case, folder: Path) -> Device:
    driver = open_simulated()
    assert driver.sim is not None
    driver.sim.reset(profile(case.link, folder), data=False, checker=False)
    return driver.device()


@contextmanager
def _managed(case: Case, folder: Path, device: Device | None = None) -> Iterator[WeightManager]:
    device = _fresh_card(case, folder) if device is None else device
    groups = case.groups
    # No data is kept: one buffer is the source of all.
    with (
        device.alloc_pinned(max(PARTS.values())) as source,
        WeightManager(
            device,
            groups,
            [source.address] * len(groups),
            budget=case.ring,
            ring=case.ring if chosen_policy(case.policy).depth is None else None,
            policy=case.policy,
        ) as manager,
    ):
        if manager.layout.resident_bytes:
            raise RuntimeError(f"{case}: the budget leaves room for residents")
        yield manager


@contextmanager
def _passes(
    case: Case,
    folder: Path,
    device: Device | None = None,
    beside: Callable[[int], None] | None = None,
) -> Iterator[Passes]:
    with (
        _managed(case, folder, device) as manager,
        Passes(manager, case.seconds, ENSURE_SECONDS, case.streams, case.host, beside) as run,
    ):
        yield run


# The sweep


def sweep(link: float, folder: Path, layers: int = LAYERS) -> Iterator[Swept]:
    """Every wait, depth of 1, 2 and 4, and issue time of either group, with and without the layer's
    own ffn first."""
    for policy in all_policies():
        assert policy.depth is not None
        ms = {
            host: times(Case(policy, link=link, host=host, layers=layers), folder) for host in HOSTS
        }
        yield Swept(link, policy.wait, policy.depth, policy.issue_at, policy.own_ffn_first, ms)


def all_policies() -> Iterator[Policy]:
    points = ("attn", "ffn", "end")
    waits: tuple[Literal["event", "block"], ...] = ("event", "block")
    for wait in waits:
        for depth in (1, 2, 4):
            for attn in points:
                for ffn in (*points, None):
                    for own in (False, True):
                        at = {"attn": attn} if ffn is None else {"attn": attn, "ffn": ffn}
                        yield Policy(wait, depth, at, own)


@contextmanager
def profiles_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def _whole(nbytes: int, multiple: int) -> int:
    return -(-nbytes // multiple) * multiple


def _mb(nbytes: Mapping[str, int], divided_by: int = 1) -> dict[str, float]:
    return {name: round(each / divided_by / MB, 1) for name, each in nbytes.items()}


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)
