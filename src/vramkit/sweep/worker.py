"""A worker process on this machine: `python -m vramkit.sweep.worker`, started by local.py.

It reads a batch a line from stdin and writes a line for each answer. What else is printed goes to
stderr. It dies with the process that started it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

import msgspec

from vramkit.sweep.tasks import Batch
from vramkit.sweep.work import answers

READY = b"null"
"""The first line: a worker that can begin."""
PR_SET_PDEATHSIG = 1


def main() -> int:
    # Nobody else may write among the lines.
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(sys.argv[1]):
        return 1  # it died before the call
    batch = msgspec.json.Decoder(Batch)
    output.write(READY + b"\n")
    output.flush()
    for line in sys.stdin.buffer:
        for answer in answers(batch.decode(line)):
            output.write(msgspec.json.encode(answer) + b"\n")
            output.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
