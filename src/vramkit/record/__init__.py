"""Records what a program allocates on the card, by the gate: see docs/gate.md."""

from vramkit.record.result import ProcessSummary, RecordResult
from vramkit.record.run import record_program

__all__ = ["ProcessSummary", "RecordResult", "record_program"]
