"""Recorded programs: the files of vramkit, PyTorch and RMM, as data and as programs to be played.

Every file is read by `read_traces`, without trust: see read.py.
"""

from vramkit.lab.traces.plain import write_plain
from vramkit.lab.traces.read import read_traces
from vramkit.lab.traces.trace import Trace, TraceBuilder, TraceError

__all__ = ["Trace", "TraceBuilder", "TraceError", "read_traces", "write_plain"]
