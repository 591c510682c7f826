"""A snapshot as a report: headline figures, the map, and bars by class, stream and stack."""

from __future__ import annotations

from collections.abc import Iterable

from vramkit.pool.cells import memory_map
from vramkit.pool.snapshot import Snapshot
from vramkit.pool.sums import StackSum, Sum, by_class, by_stack, by_state, by_stream
from vramkit.report.blocks import (
    Bar,
    Bars,
    Block,
    Document,
    Figure,
    Figures,
    MemoryMap,
    Section,
    Table,
)
from vramkit.report.units import bytes_text

MOST_STREAMS = 32
MOST_STACKS = 40
MOST_FRAMES = 16
MOST_LETTERS = 160  # of a frame
TERMINAL_ROWS = 24
TERMINAL_BARS = 12


def document(snapshot: Snapshot) -> Document:
    """The whole page; `vramkit.report.html.page` draws it."""
    held = bytes_text(by_state(snapshot).total)
    extents = f"{len(snapshot.extents):,} extent" + "s" * (len(snapshot.extents) != 1)
    pieces = sum(len(extent.pieces) for extent in snapshot.extents)
    sections = [
        Section("What the pool holds", [figures(snapshot), _meanings(snapshot)]),
        Section("The map", [map_block(snapshot)]),
        Section("By size class", [_class_bars(snapshot)]),
        Section("By stream", [_stream_bars(snapshot)]),
    ]
    if snapshot.stacks:
        sections.append(Section("By stack", _stack_blocks(snapshot)))
    return Document(
        title="Memory of a pool",
        summary=f"{held} in {extents}, and what each part of it is doing.",
        facts=[
            ("Card", snapshot.device),
            ("Driver", snapshot.driver),
            ("Taken", f"{snapshot.time:%Y-%m-%d %H:%M:%S} UTC"),
            ("Handles of the driver", f"{pieces:,}"),
            ("Blocks", f"{len(snapshot.blocks):,}"),
        ],
        sections=sections,
        simulated=snapshot.simulated,
    )


def terminal_blocks(snapshot: Snapshot) -> list[Block]:
    """The same, short enough for a screen or two."""
    drawn: list[Block] = [
        figures(snapshot),
        map_block(snapshot, most_rows=TERMINAL_ROWS),
        _class_bars(snapshot, TERMINAL_BARS),
        _stream_bars(snapshot, TERMINAL_BARS),
    ]
    if snapshot.stacks:
        drawn.append(_stack_bars(by_stack(snapshot), TERMINAL_BARS))
    return drawn


def figures(snapshot: Snapshot) -> Figures:
    """The headline; in use, cached, waiting, idle and rest make up what is held."""
    sums = by_state(snapshot)
    lost = snapshot.fragmentation_bytes
    return Figures(
        [
            Figure(bytes_text(sums.total), "held"),
            Figure(bytes_text(sums.live), "in use"),
            Figure(bytes_text(sums.cached), "cached"),
            Figure(bytes_text(sums.waiting), "waiting"),
            Figure(bytes_text(sums.idle), "idle"),
            Figure(bytes_text(lost), "lost to fragmentation", "note" if lost else "plain"),
        ]
    )


def map_block(
    snapshot: Snapshot, title: str = "Memory by address", most_rows: int | None = None
) -> MemoryMap:
    names = {}
    if snapshot.stacks:
        numbers = {stack.frames: index for index, stack in enumerate(by_stack(snapshot), 1)}
        for address, frames in snapshot.stacks.items():
            if frames:
                names[address] = f"stack {numbers[tuple(frames)]}: {_file_name(frames[0])}"
    if most_rows is None:
        return memory_map(snapshot, title, names)
    return memory_map(snapshot, title, names, most_rows)


def _meanings(snapshot: Snapshot) -> Table:
    sums = by_state(snapshot)
    rounding = sums.live - sums.asked
    rows = [
        ("in use", sums.live, "blocks that the program has"),
        ("of it rounding", rounding, "what their size classes add to the sizes asked for"),
        ("cached", sums.cached, "free, in the cache of one thread for one stream"),
        (
            "waiting",
            sums.waiting,
            "free, kept for one stream; for any stream when its work is done",
        ),
        ("idle", sums.idle, "free for any stream"),
        ("rest", sums.rest, "ends of slabs, too short for one more block"),
        (
            "lost to fragmentation",
            snapshot.fragmentation_bytes,
            "free, in pieces too small for the largest size asked for lately",
        ),
    ]
    return Table(
        ["", "bytes", "what it is"],
        [[name, bytes_text(nbytes), meaning] for name, nbytes, meaning in rows],
        numeric=[1],
    )


def _class_bars(snapshot: Snapshot, most: int = 24) -> Bars:
    rows = [_bar(label, sums) for label, sums in by_class(snapshot, most)]
    return Bars("Bytes by size of block", "size", rows)


def _stream_bars(snapshot: Snapshot, most: int = MOST_STREAMS) -> Bars:
    sums = by_stream(snapshot)
    rows = [_bar(snapshot.stream_name(number), one) for number, one in sums[:most]]
    more = _more(one.total for _, one in sums[most:])
    return Bars("Bytes by stream of allocation or last free", "stream", rows, more)


def _stack_blocks(snapshot: Snapshot) -> list[Block]:
    stacks = by_stack(snapshot)
    rows = [
        [
            str(number),
            "\n".join(_frame(frame) for frame in stack.frames[:MOST_FRAMES]) or "no stack given",
            f"{stack.blocks:,}",
            bytes_text(stack.live),
        ]
        for number, stack in enumerate(stacks[:MOST_STACKS], 1)
    ]
    return [
        _stack_bars(stacks, MOST_STACKS),
        Table(["stack", "innermost frame first", "blocks", "in use"], rows, numeric=[2, 3]),
    ]


def _stack_bars(stacks: list[StackSum], most: int) -> Bars:
    rows = []
    for number, stack in enumerate(stacks[:most], 1):
        name = _file_name(stack.frames[0]) if stack.frames else "no stack given"
        rows.append(Bar(f"{number}: {name}", {"live": stack.live}))
    more = _more(stack.live for stack in stacks[most:])
    return Bars("Bytes in use by the stack that asked for them", "stack", rows, more)


def _more(left_out: Iterable[int]) -> str:
    nbytes = list(left_out)
    return f"{len(nbytes):,} more hold {bytes_text(sum(nbytes))} together." if nbytes else ""


def _frame(text: str) -> str:
    return text if len(text) <= MOST_LETTERS else "…" + text[1 - MOST_LETTERS :]


def _file_name(frame: str) -> str:
    """Without the folders, which the table has."""
    path, colon, place = _frame(frame).partition(":")
    return path.rsplit("/", 1)[-1] + colon + place


def _bar(label: str, sums: Sum) -> Bar:
    return Bar(
        label,
        {
            "live": sums.live,
            "cached": sums.cached,
            "waiting": sums.waiting,
            "idle": sums.idle,
        },
    )
