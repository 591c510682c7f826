"""Why the pool is behind in a row of the lab's results: by experiment, case, arm and figure.

Of rows that are missed alone: a test compares them with the results. What has no reason here is
called not known yet on the pages. The parts of what is held are from snapshots at the peak.
"""

from __future__ import annotations

from vramkit.lab.goals import HELD

Row = tuple[str, str, str, str]

SIMULATED: dict[Row, str] = {
    ("allocators", "simple", "native mutex", HELD): (
        "of 142 MiB at the peak 100 are in use, 16 were freed on another stream and wait, 26 lie "
        "free between blocks of 7.7 MiB; `async`, as simulated, needs four times 32 MiB"
    ),
    ("allocators", "wait_stream", "native", HELD): (
        "of 130 MiB at the peak 78 are in use, 32 wait for work on the stream that freed them, 20 "
        "lie free between blocks; `async`, as simulated, needs four times 32 MiB"
    ),
    ("allocators", "wait_events", "native", HELD): (
        "of 132 MiB at the peak 78 are in use, 33 wait for work on the stream that freed them, 21 "
        "lie free between blocks; `async`, as simulated, needs four times 32 MiB"
    ),
}

ON_CARD: dict[Row, str] = {}
