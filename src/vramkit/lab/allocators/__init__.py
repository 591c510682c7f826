"""What allocators cost a program that works on tables: `vramkit lab allocators`."""

from vramkit.lab.allocators.experiment import ALLOCATORS

__all__ = ["ALLOCATORS"]
