"""What allocators held of the card against what was in use, as Markdown."""

from rows import Row

# The driver hands out no less. Below it, memory over memory in use says nothing of the allocator.
SMALLEST_PIECE_MIB = 2

EXPLANATION = (
    "By how much the card's free memory fell at most since just before the allocator was made, "
    "over the peak of live bytes as asked for. *in use* is that peak with our pool."
)
IN_MIB = "- MiB: what is held, where less than 2 MiB, the driver's smallest piece, is in use."
AHEAD = (
    "- A dash: takes memory ahead, whatever the workload. RMM's pool and binning take half of the "
    "card, its arena all but 64 MiB, and on the full card each takes the whole cap."
)


def told(row: Row) -> bool:
    """Was looked at; a row of an older program, or of one that failed, was not."""
    return "in_use_mib" in row.details


def too_small(row: Row) -> bool:
    return row.details["in_use_mib"] < SMALLEST_PIECE_MIB


def ratio(row: Row | None) -> str:
    if row is None:
        return ""
    if "held_over_in_use" not in row.details:
        return "-"
    if too_small(row):
        return f"{row.details['held_mib']:,.0f} MiB"
    return f"{row.details['held_over_in_use']:,.2f}"


def in_use(row: Row) -> str:
    mib = row.details["in_use_mib"]
    return f"{mib:,.0f} MiB" if mib >= 1 else f"{mib * 2**20:,.0f} B"


def held_section(rows: list[Row]) -> list[str]:
    """Lines; none if no row was looked at."""
    found = {(row.workload, row.allocator): row for row in rows if told(row)}
    if not found:
        return []
    names = dict.fromkeys(allocator for _, allocator in found)
    allocators = sorted(names, key=lambda name: not name.startswith("vramkit"))
    lines = [
        "## Held over in use",
        "",
        EXPLANATION,
        "",
        f"| workload | in use | {' | '.join(allocators)} |",
        "|---|---:|" + "---:|" * len(allocators),
    ]
    for workload in dict.fromkeys(workload for workload, _ in found):
        cells = [found.get((workload, allocator)) for allocator in allocators]
        first = next(filter(None, cells))
        lines.append(f"| {workload} | {in_use(first)} | {' | '.join(map(ratio, cells))} |")
    notes = [IN_MIB] if any(map(too_small, found.values())) else []
    notes += [AHEAD] if any(ratio(row) == "-" for row in found.values()) else []
    return lines + (["", *notes] if notes else [])
