"""What the pool shall reach, and the verdict on what was measured."""

import msgspec
from rows import Row


class Goal(msgspec.Struct, frozen=True):
    """What our allocator shall reach: a figure, the first place, or both."""

    workload: str
    words: str
    most: float | None = None
    first: bool = False
    allocator: str = "vramkit"
    kept: str = ""
    """An outcome that must be there, beside the figure."""


class Verdict(msgspec.Struct):
    """One goal: what we have, the best of the others, and whether that is enough."""

    workload: str
    words: str
    allocator: str
    unit: str
    goal: float | None
    ours: float | None
    p10: float | None
    p90: float | None
    best_peer: str
    peer: float | None
    met: bool
    place: str
    """"won", "tied" or "lost" against the best of the others; empty: no other was measured."""
    note: str


# Not allocators: what the loops cost by themselves.
BASELINES = {"empty_loop", "empty_call"}
# Two figures this close are one: neither allocator is ahead.
TIE = 0.01
OUTLASTED = "the kernel outlasted the calls"
FAIR_OUTCOMES = {"", "served", OUTLASTED}
# Asked, and could not do it. One that timed out or was not run is no rival at all.
BEATEN_OUTCOMES = {"out of memory", "at times", "a call waited for the kernel"}
# Card memory above the cap that is not the allocator's: the driver's own tables.
SLACK = 1.01

PAIR = "free + malloc pair"
GOALS = [
    Goal("pair/small/1", f"{PAIR}, 256 B to 1 MiB, 1 thread, our stream", 60),
    Goal("pair/small/1", "... raw handle", 100, allocator="vramkit_raw"),
    Goal("pair/small/4", "... 4 threads", first=True),
    Goal("pair/small/8", "... 8 threads", first=True),
    Goal("pair/small/16", "... 16 threads", 120),
    Goal("pair/small/16", "... 16 threads, raw handles", first=True, allocator="vramkit_raw"),
    Goal("pair/large/1", f"{PAIR}, 4 KiB to 64 MiB, 1 thread", 200),
    Goal("pair/large/4", "... 4 threads", first=True),
    Goal("pair/large/8", "... 8 threads", first=True),
    Goal("pair/large/16", "... 16 threads", 1000),
    Goal("pair/large/16", "... 16 threads, raw handles", 1000, allocator="vramkit_raw"),
    Goal("producer_consumer/1", "malloc in one thread, free in another", 300),
    Goal("producer_consumer/8", "... eight such couples at once", first=True),
    Goal("holes", "1 KiB pair with 65,536 free holes", 150),
    Goal("random_allocations", "RMM's RANDOM_ALLOCATIONS, 10,000 of up to 1 MiB", first=True),
    Goal("multi_stream/1/cold", "RMM's MULTI_STREAM, 1 stream, cold", first=True),
    Goal("multi_stream/1/warm", "... 1 stream, warm", first=True),
    Goal("multi_stream/2/cold", "... 2 streams, cold", first=True),
    Goal("multi_stream/2/warm", "... 2 streams, warm", first=True),
    Goal("multi_stream/4/cold", "... 4 streams, cold", first=True),
    Goal("multi_stream/4/warm", "... 4 streams, warm", first=True),
    Goal(
        "beside_kernel/allocate",
        "malloc beside a kernel of 1 s, p99.9",
        1000,
        kept=OUTLASTED,
    ),
    Goal(
        "beside_kernel/free",
        "free beside it, p99.9",
        1000,
        kept=OUTLASTED,
    ),
    Goal(
        "beside_kernel/growth",
        "growth by 1 MiB to 1 GiB beside it, p99.9",
        1000,
        kept=OUTLASTED,
    ),
    Goal(
        "fragmentation", "full card, every second block freed, 90 % of it asked", 80, kept="served"
    ),
    Goal("fragmentation/tidied", "... idle memory joined before", 5, kept="served"),
    Goal("burst", "held above the state before a burst, two decay times (of 1 s) later", 64),
    Goal("statistics", "statistics on against off", 5),
    Goal("python/raw", "from Python, malloc + free", 200),
    Goal("python/raw", "... on a wrapped handle", first=True, allocator="vramkit_raw"),
    Goal("python/raw", "... on a foreign object", first=True, allocator="vramkit_foreign"),
    Goal("python/object", "from Python, Buffer made and released", 300),
    Goal("phases/alone", "seed 001: an allocation in phase 4 against phase 1", 1.02),
    Goal("phases/touch", "... and the first write to the block", 1.02),
]


def beyond_cap(row: Row) -> bool:
    return row.details.get("most_card_bytes", 0) > SLACK * row.details.get("cap_bytes", 0)


def fair(row: Row) -> bool:
    """Did what was asked: neither waited for the kernel nor took more than it was allowed."""
    return row.median is not None and not beyond_cap(row) and row.outcome in FAIR_OUTCOMES


def judge(goal: Goal, rows: list[Row]) -> Verdict:
    same = [row for row in rows if row.workload == goal.workload]
    ours = next((row for row in same if row.allocator == goal.allocator), None)
    others = [
        row
        for row in same
        if not row.allocator.startswith("vramkit") and row.allocator not in BASELINES
    ]
    best = min(filter(fair, others), key=lambda row: row.median or 0.0, default=None)
    verdict = Verdict(
        workload=goal.workload,
        words=goal.words,
        allocator=goal.allocator,
        unit=ours.unit if ours else "",
        goal=goal.most,
        ours=ours.median if ours else None,
        p10=ours.p10 if ours else None,
        p90=ours.p90 if ours else None,
        best_peer=best.allocator if best else "",
        peer=best.median if best else None,
        met=False,
        place="",
        note="not measured" if ours is None else ours.error or ours.outcome,
    )
    if verdict.ours is None:
        verdict.place = "lost" if best else ""
        return verdict
    if verdict.peer is not None:
        tied = abs(verdict.ours - verdict.peer) <= TIE * verdict.peer
        verdict.place = "tied" if tied else "won" if verdict.ours < verdict.peer else "lost"
    elif any(beyond_cap(row) or row.outcome in BEATEN_OUTCOMES for row in others):
        verdict.place = "won"
    verdict.met = (
        (goal.most is None or verdict.ours <= goal.most)
        and (not goal.first or verdict.place in ("won", "tied"))
        and goal.kept in verdict.note
    )
    if ours is not None and "cap_bytes" in ours.details:
        verdict.note += ", beyond the cap" if beyond_cap(ours) else ", within the cap"
        verdict.met = verdict.met and not beyond_cap(ours)
    return verdict
