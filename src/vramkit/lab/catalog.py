"""The experiments, by the names of their commands."""

from __future__ import annotations

from vramkit.lab.experiment import Experiment

EXPERIMENTS: dict[str, Experiment] = {}
