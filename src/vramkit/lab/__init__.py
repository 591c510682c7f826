"""The lab: measures what memory costs, and compares allocators."""

from vramkit.lab import baselines

__all__ = ["baselines"]
