"""Whether allocation gets slower as memory falls to pieces: `vramkit lab fragmentation`."""

from vramkit.lab.fragmentation.experiment import FRAGMENTATION

__all__ = ["FRAGMENTATION"]
