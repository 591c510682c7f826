"""Figures as people read them: three significant digits and a unit."""

from __future__ import annotations

from typing import Literal

Unit = Literal["s", "ms", "us", "ns", "bytes", "bytes/s", "count", "ratio", "share"]
"""Of values in plain figures. A ratio reads 1.50×, a share of 0.5 reads 50 %."""  # noqa: RUF001

Sizes = tuple[tuple[float, str], ...]

BINARY: Sizes = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))
RATES: Sizes = ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1, "B/s"))
TIMES: Sizes = ((1, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
COUNTS: Sizes = ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k"), (1, ""))

SECONDS: dict[Unit, float] = {"s": 1, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
PLAIN_COUNT = 100_000  # whole numbers below are written out


def _fitting(value: float, units: Sizes) -> tuple[float, str]:
    # A value that rounds up to the next unit takes it: 1.00 µs, not 1000 ns.
    return next((pair for pair in units if abs(value) >= pair[0] * 0.9995), units[-1])


def _three_digits(value: float) -> str:
    if value == 0:
        return "0"
    digits = 0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
    return f"{value:.{digits}f}"


def _scaled(value: float, units: Sizes) -> str:
    scale, unit = _fitting(value, units)
    return f"{_three_digits(value / scale)} {unit}"


def bytes_text(nbytes: float) -> str:
    """Binary units; whole numbers stay whole: 2 MiB, 1.50 GiB."""
    for scale, unit in BINARY:
        if nbytes >= scale and nbytes % scale == 0:
            return f"{int(nbytes // scale)} {unit}"
        if nbytes >= scale:
            break
    return _scaled(nbytes, BINARY)


def free_text(total: int, free: int) -> str:
    return f"{bytes_text(total)}, {bytes_text(free)} free"


def rate_text(bytes_per_second: float) -> str:
    """Decimal units, as links are sold: 55.4 GB/s."""
    return _scaled(bytes_per_second, RATES)


def time_text(seconds: float) -> str:
    return _scaled(seconds, TIMES)


def value_text(value: float, unit: Unit) -> str:
    """A figure of any unit: 12.3 ms, 2 MiB, 55.4 GB/s, 1.20 M, 1.50×, 0.99 %."""  # noqa: RUF002
    match unit:
        case "bytes":
            return bytes_text(value)
        case "bytes/s":
            return rate_text(value)
        case "count":
            if value == int(value) and abs(value) < PLAIN_COUNT:
                return f"{int(value):,}"
            scale, suffix = _fitting(value, COUNTS)
            return _three_digits(value / scale) + suffix
        case "ratio":
            return f"{_three_digits(value)}×"  # noqa: RUF001
        case "share":
            return f"{_three_digits(value * 100)} %"
        case _:
            return time_text(value * SECONDS[unit])


def axis_unit(largest: float, unit: Unit) -> tuple[float, str]:
    """What all texts along an axis to this value are counted in, and what follows each of them."""
    match unit:
        case "bytes":
            scale, name = _fitting(largest, BINARY)
            return scale, f" {name}"
        case "bytes/s":
            scale, name = _fitting(largest, RATES)
            return scale, f" {name}"
        case "count":
            return (1.0, "") if abs(largest) < PLAIN_COUNT else _fitting(largest, COUNTS)
        case "ratio":
            return 1.0, "×"  # noqa: RUF001
        case "share":
            return 0.01, " %"
        case _:
            scale, name = _fitting(largest * SECONDS[unit], TIMES)
            return scale / SECONDS[unit], f" {name}"


def version_text(version: int) -> str:
    """A version as the CUDA driver counts it: 13000 is 13.0."""
    return f"{version // 1000}.{version % 1000 // 10}"


def percent_text(share: float) -> str:
    return f"{share * 100:.0f} %"


def count_text(count: int, noun: str, plural: str = "") -> str:
    """ "1 error", "2,000 errors"; `plural` where it is not the noun and an s."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
