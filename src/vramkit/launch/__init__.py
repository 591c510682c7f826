"""Runs a program with a library of ours in place of one that it would load by itself.

The caller says what to run (`Launch`); `run_program` starts it, passes signals on to it, waits for
it and says how it ended (`Ended`). Nothing is opened or changed in the calling process.
"""

from vramkit.launch.ended import Ended
from vramkit.launch.errors import LaunchError, ProgramNotFoundError
from vramkit.launch.launch import Launch
from vramkit.launch.run import run_program

__all__ = ["Ended", "Launch", "LaunchError", "ProgramNotFoundError", "run_program"]
