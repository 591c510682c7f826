"""How long a turn lasts."""

from __future__ import annotations

from vramkit.share.policy.settings import PolicySettings

# Of a new measurement in the running mean: switches of a pair of programs alternate in size.
NEW_SHARE = 0.3


class Quantum:
    """Fixed, or so long that switches take the chosen share of the time."""

    def __init__(self) -> None:
        self.switch_seconds: float | None = None
        """Running mean of measured switches, from the decision to the moment the program runs."""

    def measured(self, seconds: float) -> None:
        known = self.switch_seconds
        self.switch_seconds = seconds if known is None else known + NEW_SHARE * (seconds - known)

    def seconds(self, settings: PolicySettings) -> float:
        if settings.quantum is not None:
            return settings.quantum
        wanted = (self.switch_seconds or 0.0) / settings.switch_share
        return min(max(wanted, settings.least_quantum), settings.most_quantum)
