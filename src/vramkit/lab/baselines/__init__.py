"""Two classic allocators to compare with, where no other library is installed.

Written in C++ and fair: with the rules of the originals and without their years of tuning.
"""

from vramkit.lab.baselines.arena import Arena
from vramkit.lab.baselines.fixed_pool import FixedPool

__all__ = ["Arena", "FixedPool"]
