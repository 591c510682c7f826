"""What a machine's GPU memory can do and what limits it: facts, measurements and a verdict."""

from vramkit.doctor.examine import examine
from vramkit.doctor.facts import Examination, Finding

__all__ = ["Examination", "Finding", "examine"]
