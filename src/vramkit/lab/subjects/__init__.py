"""The allocators that take part: ours, the baselines, and those of other libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramkit.lab.subjects.cupy import CUPY
from vramkit.lab.subjects.ours import OURS
from vramkit.lab.subjects.rmm import RMM
from vramkit.lab.subjects.subject import Allocator, Room, Subject
from vramkit.lab.subjects.torch import TORCH

if TYPE_CHECKING:
    from vramkit.driver import Driver

__all__ = ["SUBJECTS", "Allocator", "Room", "Subject", "missing"]

SUBJECTS: dict[str, Subject] = {each.name: each for each in (*OURS, *RMM, *CUPY, *TORCH)}
"""By name, in the order of tables."""


def missing(driver: Driver) -> dict[str, str]:
    """Why each subject cannot take part here; an empty text: it can."""
    return {name: subject.missing(driver) for name, subject in SUBJECTS.items()}
