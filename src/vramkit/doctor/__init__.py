"""What a machine's GPU memory is capable of and what is in its way: facts, measured, and judged."""

from vramkit.doctor.examine import examine
from vramkit.doctor.facts import Examination, Finding

__all__ = ["Examination", "Finding", "examine"]
