"""Two classic allocators to compare with, for machines without another library.

Written in C++, with the rules of the originals but without their years of tuning.
"""

from vramkit.lab.baselines.arena import Arena
from vramkit.lab.baselines.fixed_pool import FixedPool

__all__ = ["Arena", "FixedPool"]
