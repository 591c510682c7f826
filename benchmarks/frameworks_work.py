"""What the workloads of the frameworks share: their result, the clock, the count of card memory."""

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec

# What a figure depends on: package -> names of its distributions.
DISTRIBUTIONS = {
    "vramkit": ("vramkit",),
    "torch": ("torch",),
    "triton": ("triton",),
    "cupy": ("cupy-cuda13x", "cupy-cuda12x", "cupy"),
    "rmm": ("rmm-cu13", "rmm-cu12", "rmm"),
    "numpy": ("numpy",),
}


class Part(msgspec.Struct):
    """What the process of one row found."""

    milliseconds: list[float] = []
    """Of each timed round."""
    peak_bytes: int | None = None
    card_bytes: int | None = None
    digest: str = ""
    """Of the bytes of all results."""
    figures: list[str] = []
    """Some of the results in words, to find the first that differs."""
    details: dict[str, float] = {}
    error: str = ""


class Results:
    """Collects results; the digest is over all their bytes, in order."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.figures: list[str] = []

    def add(self, figures: Iterable[float]) -> None:
        for value in figures:
            # Exact, and the same for every not-a-number: its bits are not part of the result.
            words = float(value).hex()
            self._hash.update(words.encode())
            self.figures.append(words)

    def add_bytes(self, data: bytes) -> None:
        self._hash.update(data)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()


class CardMemory:
    """The most that was gone from the card, beyond the state at the start."""

    def __init__(self, free_and_total: Callable[[], tuple[int, int]]) -> None:
        self._ask = free_and_total
        self._start = free_and_total()[0]
        self.most = 0

    def look(self) -> None:
        self.most = max(self.most, self._start - self._ask()[0])


def timed_rounds(
    work: Callable[[], None], synchronize: Callable[[], None], rounds: int
) -> list[float]:
    """Milliseconds of each round; the device is idle before and after."""
    milliseconds = []
    for _ in range(rounds):
        synchronize()
        start = time.perf_counter_ns()
        work()
        synchronize()
        milliseconds.append((time.perf_counter_ns() - start) / 1e6)
    return milliseconds


def pool_details(pool: Any) -> dict[str, float]:
    """The counters of vramkit's pool; nothing where there is none."""
    if pool is None:
        return {}
    counters = msgspec.to_builtins(pool.stats())
    return {f"pool_{k}": float(v) for k, v in counters.items() if isinstance(v, int | float)}


def versions(packages: Mapping[str, tuple[str, ...]] = DISTRIBUTIONS) -> dict[str, str]:
    return {name: _version(names) for name, names in packages.items()}


def _version(distributions: tuple[str, ...]) -> str:
    for name in distributions:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "missing"
