"""Adaptors: resources on top of any resource, each adding one thing."""

from vramkit.resources.adaptors.adaptor import Adaptor
from vramkit.resources.adaptors.failure_callback import FailureCallback
from vramkit.resources.adaptors.limit import Limit
from vramkit.resources.adaptors.recording import Recording
from vramkit.resources.adaptors.statistics import Counts, Statistics
from vramkit.resources.adaptors.trace import Operation, TraceEvent, read_trace
from vramkit.resources.adaptors.tracking import Outstanding, Tracking

__all__ = [
    "Adaptor",
    "Counts",
    "FailureCallback",
    "Limit",
    "Operation",
    "Outstanding",
    "Recording",
    "Statistics",
    "TraceEvent",
    "Tracking",
    "read_trace",
]
