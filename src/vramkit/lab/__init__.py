"""The lab: measures what memory costs, beside what others do."""

from vramkit.lab import baselines

__all__ = ["baselines"]
