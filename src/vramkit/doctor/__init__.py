"""Examines a machine's GPU memory: facts, measurements, limits and a verdict."""

from vramkit.doctor.examine import examine
from vramkit.doctor.facts import Examination, Finding

__all__ = ["Examination", "Finding", "examine"]
