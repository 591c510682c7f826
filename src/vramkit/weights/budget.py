"""Amounts of memory as people write them: of a card that weights may take, and of weights."""

from __future__ import annotations

import re
from typing import SupportsIndex

from vramkit.driver.types import integer, shown

UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 1 << 10,
    "MIB": 1 << 20,
    "GIB": 1 << 30,
    "TIB": 1 << 40,
}
ALLOWED = 'bytes, or text such as "24GiB", "800MB" or "60%" (of the card\'s memory)'


def parse_bytes(text: str, what: str) -> int:
    """Bytes, from text without a percentage. Raises ValueError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    nbytes = float(match[1]) * UNITS.get(match[2].upper(), 0) if match else 0
    if nbytes < 1:
        raise ValueError(f'{what} is {text!r}; it may be bytes, or text such as "24GiB" or "800MB"')
    return int(nbytes)


def parse_budget(budget: SupportsIndex | str, total: int) -> int:
    """Bytes. `total` is the card's memory. Raises TypeError or ValueError."""
    if not isinstance(budget, str):
        if not hasattr(type(budget), "__index__"):
            raise TypeError(f"budget is {shown(budget)}; it may be {ALLOWED}")
        return integer(budget, "budget", 1)
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%|[A-Za-z]*)\s*", budget)
    unit = match[2].upper() if match else None
    if match is None or (unit != "%" and unit not in UNITS):
        raise ValueError(f"budget is {budget!r}; it may be {ALLOWED}")
    number = float(match[1])
    if unit == "%":
        if not 0 < number <= 100:
            raise ValueError(f"budget is {budget!r}; a percentage may be more than 0, up to 100")
        return int(total * number / 100)
    assert unit is not None
    if number * UNITS[unit] < 1:
        raise ValueError(f"budget is {budget!r}; it may be {ALLOWED}")
    return int(number * UNITS[unit])
