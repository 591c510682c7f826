"""What the commands about sharing have in common: reaching the daemon, and showing its status."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from vramkit.cli.errors import CommandError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from vramkit.cluster.status import NodeStatus
    from vramkit.share.connect import Controls
    from vramkit.share.status import CardStatus, ProgramStatus, Status

PROBLEM = 1
# Nothing is cut off where no terminal says how wide it is.
PIPE_WIDTH = 200
# Of the table of programs, and whether a column is aligned to the right.
COLUMNS = (
    ("NODE", False),
    ("PID", True),
    ("PROGRAM", False),
    ("STATE", False),
    ("CARD", True),
    ("RESIDENT", True),
    ("SWAPPED", True),
    ("UNBACKED", True),
    ("FIXED", True),
    ("TURNS", True),
    ("OUT", True),
    ("IN", True),
    ("WAITED", True),
)
# The columns of a card; the others are the program's.
OF_A_CARD = frozenset(("CARD", "RESIDENT", "SWAPPED", "UNBACKED", "FIXED", "OUT", "IN"))


@contextmanager
def controls() -> Iterator[Controls]:
    """A control connection; where no daemon runs, or it refuses, one clear line."""
    from vramkit.share.connect import Controls, DaemonError, NoDaemonError
    from vramkit.share.paths import chosen_socket

    try:
        with Controls(chosen_socket()) as connection:
            yield connection
    except NoDaemonError as error:
        raise CommandError(
            f"{error}; `vramkit run` starts one, and so does `vramkit daemon start`", PROBLEM
        ) from error
    except DaemonError as error:
        raise CommandError(str(error), PROBLEM) from error


def print_status(console: Console, status: Status) -> None:
    print_parts(console, status_parts(status))


def print_parts(console: Console, parts: Iterable[RenderableType]) -> None:
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    for part in parts:
        console.print(part)


def status_parts(status: Status) -> list[RenderableType]:
    """A line for each card, a table of the programs, and what they had to say."""
    from rich.text import Text

    parts: list[RenderableType] = [Text(_card_line(card)) for card in status.cards]
    if not status.programs:
        parts.append(Text("no program is connected"))
        return parts
    parts.append(_table([("", program) for program in status.programs], with_node=False))
    parts += [Text(line) for line in _said(status)]
    return parts


def cluster_parts(nodes: Sequence[NodeStatus]) -> list[RenderableType]:
    """A line for each card and each problem, and one table of all programs."""
    from rich.text import Text

    if not nodes:
        return [Text("no node of the cluster announces memory of cards")]
    names = _names(nodes)
    lines = [line for node in nodes for line in _node_lines(names[node.node], node)]
    known = [(names[node.node], node.status) for node in nodes if node.status is not None]
    rows = [(name, program) for name, status in known for program in status.programs]
    said = [f"{name}: {line}" for name, status in known for line in _said(status)]
    table = _table(rows, with_node=True) if rows else Text("no program is connected")
    return [*map(Text, lines), table, *map(Text, said)]


def _names(nodes: Sequence[NodeStatus]) -> dict[str, str]:
    """By id: the host, with a part of the id where a host has several nodes."""
    hosts = Counter(node.name for node in nodes)
    return {
        node.node: node.name if hosts[node.name] == 1 else f"{node.name}/{node.node[:6]}"
        for node in nodes
    }


def _node_lines(name: str, node: NodeStatus) -> Iterator[str]:
    if node.problem:
        yield f"{name} ({node.address}): {node.problem}"
    for card in node.status.cards if node.status is not None else []:
        yield f"{name} {_card_line(card)}"


def _said(status: Status) -> Iterator[str]:
    for program in status.programs:
        if program.messages:
            yield _printable(f"{program.pid} {program.name}: {program.messages[-1]}")


def _printable(text: str) -> str:
    """What a program says stays in its line, and does not speak to the terminal."""
    return "".join(each if each.isprintable() else "?" for each in text)


def _card_line(card: CardStatus) -> str:
    from vramkit.report.units import bytes_text

    line = (
        f"card {card.card} ({card.uuid}): {bytes_text(card.total)}, "
        f"{bytes_text(card.budget)} for programs, {bytes_text(card.held)} held, "
        f"{bytes_text(card.free)} free"
    )
    return line if not card.others else f"{line}; others use {bytes_text(card.others)}"


def _table(rows: Iterable[tuple[str, ProgramStatus]], *, with_node: bool) -> RenderableType:
    """`rows`: a program, and the node that it runs on."""
    from rich.text import Text

    columns = COLUMNS if with_node else COLUMNS[1:]
    lines = [[name for name, _ in columns]]
    for node, program in rows:
        for line in _program_lines(node, program):
            lines.append(line if with_node else line[1:])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    # By hand: thousands of rows of a cluster take rich's tables a minute.
    pads = [str.rjust if right else str.ljust for _, right in columns]
    shown = [
        "  ".join(pad(cell, width) for pad, cell, width in zip(pads, line, widths, strict=True))
        for line in lines
    ]
    text = Text("\n".join(line.rstrip() for line in shown), no_wrap=True, overflow="ellipsis")
    text.stylize("bold", 0, len(shown[0]))
    return text


def _program_lines(node: str, program: ProgramStatus) -> Iterator[list[str]]:
    """A line for each card; what is the program's as a whole is in the first."""
    from vramkit.report.units import bytes_text

    for number, row in enumerate(program.cards or [None]):
        sizes = ["", "", "", "", ""] if row is None else [
            str(row.card),
            *map(bytes_text, (row.resident, row.swapped, row.unbacked, row.unswappable)),
        ]  # fmt: skip
        moved = ["", ""] if row is None else [bytes_text(row.out_bytes), bytes_text(row.in_bytes)]
        line = [
            node,
            str(program.pid),
            _printable(program.name),
            _state(program),
            *sizes,
            str(program.turns),
            *moved,
            f"{program.waited_seconds:.1f} s",
        ]
        yield (
            line
            if number == 0
            else [
                cell if name in OF_A_CARD else ""
                for (name, _), cell in zip(COLUMNS, line, strict=True)
            ]
        )


def _state(program: ProgramStatus) -> str:
    state = "blocked" if program.blocked and program.state == "waiting" else program.state
    return f"{state} ({program.passed_over} passed over)" if program.passed_over else state
