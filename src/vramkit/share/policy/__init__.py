"""Whose turn it is: decisions from the ledger, the settings and the time, without any I/O.

`Scheduler` is told what programs say and returns what they are to be told. Its parts: `queue` (the
order of those who wait), `packing` (who runs together), `quantum` (how long), `eviction` (who makes
room, and how much).
"""

from vramkit.share.policy.program import OutOfOrderError, Phase, Program
from vramkit.share.policy.scheduler import Order, Scheduler
from vramkit.share.policy.settings import PolicySettings

__all__ = ["Order", "OutOfOrderError", "Phase", "PolicySettings", "Program", "Scheduler"]
