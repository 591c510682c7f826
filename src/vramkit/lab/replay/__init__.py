"""Replay: a recorded program on every allocator that is here."""

from vramkit.lab.replay.experiment import REPLAY

__all__ = ["REPLAY"]
