"""The experiments, by the names of their commands."""

from __future__ import annotations

from vramkit.lab.experiment import Experiment
from vramkit.lab.sharing import SHARING

EXPERIMENTS: dict[str, Experiment] = {each.name: each for each in (SHARING,)}
