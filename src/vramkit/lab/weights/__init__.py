"""Weights streamed to the card: policies side by side, and what each part of a policy is worth."""

from vramkit.lab.weights.experiment import WEIGHTS
from vramkit.lab.weights.sweep import SWEEP

__all__ = ["SWEEP", "WEIGHTS"]
