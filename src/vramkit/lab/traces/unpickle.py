"""The process that reads a pickle: `python -m vramkit.lab.traces.unpickle` < pickle > answer.

With a limit on its memory, so that a small file cannot take that of the machine. A file that brings
it down brings down nothing else.
"""

from __future__ import annotations

import resource
import sys

import msgspec

from vramkit.lab.traces.snapshot import Answer, SnapshotError, blocks_of, unpickled

# Unpickled, a real snapshot takes 10 to 20 times its bytes.
BASE_BYTES = 1 << 30
TIMES = 32


def limit_memory(size: int) -> None:
    most = BASE_BYTES + TIMES * size
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> int:
    content = sys.stdin.buffer.read()
    limit_memory(len(content))
    try:
        answer = Answer(devices=blocks_of(unpickled(content)))
        text = msgspec.msgpack.encode(answer)
    except SnapshotError as error:
        text = msgspec.msgpack.encode(Answer(wrong=" ".join(str(error)[:500].split())))
    except (MemoryError, OverflowError):
        wrong = "it needs far more memory than a snapshot of its size"
        text = msgspec.msgpack.encode(Answer(wrong=wrong))
    sys.stdout.buffer.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
