"""What can be chosen about turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class PolicySettings:
    """Times in seconds."""

    quantum: float | None = 30.0
    """How long a turn lasts while others wait; None: adaptive, by the measured switch times."""
    switch_share: float = 0.05
    """Adaptive: the part of the time that switches may take."""
    least_quantum: float = 1.0
    """Adaptive: no turn is shorter. Also the least that a program runs before one of a higher
    priority takes its turn away."""
    most_quantum: float = 120.0
    """Adaptive: no turn is longer."""
    patience: float = 10.0
    """How long a program may take to stop, or to go on with an eviction."""
    policy: Literal["together", "exclusive"] = "together"
    """together: programs that fit run at the same time; exclusive: one at a time on each card."""
