"""`vramkit top --cluster`: the programs of all nodes in one table."""

from __future__ import annotations

import io
import socket
import sys
from types import SimpleNamespace

import msgspec
import pytest
from rich.console import Console

from vramkit.cli import main
from vramkit.cli.sharing import cluster_parts, print_parts
from vramkit.cluster.status import NodeStatus
from vramkit.share.status import CardStatus, DaemonStatus, ProgramOnCard, ProgramStatus, Status

MIB = 1 << 20


def program(pid: int, *messages: str) -> ProgramStatus:
    card = ProgramOnCard(0, 8, 8, 5 * MIB, 3 * MIB, 0, 0, 0, 0, 0, 0.0)
    return ProgramStatus(
        1, pid, 0, "train", "idle", "swap", 1.0, 0, 0, 7, 0, 1.5, False, list(messages), [card]
    )


def node(number: int, name: str, *programs: ProgramStatus, problem: str = "") -> NodeStatus:
    daemon = DaemonStatus(1, "/s", "0", False, 1.0, 30.0, None, 0)
    card = CardStatus(0, f"GPU-{number}", 80 * MIB, 64 * MIB, 8 * MIB, 56 * MIB, None)
    status = None if problem else Status(daemon, [card], list(programs))
    return NodeStatus(f"{number:06d}abcdef", name, f"10.0.0.{number}", 128, problem, status)


def shown(*nodes: NodeStatus) -> list[str]:
    console = Console(file=io.StringIO(), highlight=False)
    print_parts(console, cluster_parts(nodes))
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_programs_of_all_nodes_are_in_one_table() -> None:
    lines = shown(
        node(1, "one", program(11), program(12, "did not stop")), node(2, "two", program(21))
    )
    assert lines[0].startswith("one card 0 (GPU-1): 80 MiB, 64 MiB for programs")
    assert lines[1].startswith("two card 0 (GPU-2)")
    rows = [line.split()[:6] for line in lines[3:6]]
    assert rows == [
        ["one", "11", "train", "idle", "0", "5"],
        ["one", "12", "train", "idle", "0", "5"],
        ["two", "21", "train", "idle", "0", "5"],
    ]
    assert lines[6:] == ["one: 12 train: did not stop"]


def test_each_card_of_a_program_has_a_line_and_the_program_one() -> None:
    both = program(11)
    both.cards.append(ProgramOnCard(1, 8, 8, 7 * MIB, 0, 0, 0, 0, 0, 0, 0.0))
    header, first, second = shown(node(1, "one", both))[1:]
    assert first.split()[:6] == ["one", "11", "train", "idle", "0", "5"]
    assert second.split() == ["1", "7", "MiB", "0", "B", "0", "B", "0", "B", "0", "B", "0", "B"]
    # Under their names, to the right.
    for line in (first, second):
        assert line[: header.index("RESIDENT") + 8].endswith("MiB")


def test_name_of_a_program_stays_in_its_line() -> None:
    """What a program calls itself may hold anything."""
    odd = msgspec.structs.replace(program(11, "x\ny"), name="a\nb\x1b[31m [red]c")
    lines = shown(node(1, "one", odd))
    assert lines[2].split()[2:5] == ["a?b?[31m", "[red]c", "idle"]
    assert lines[3:] == ["one: 11 a?b?[31m [red]c: x?y"]


def test_nodes_of_one_host_are_told_apart() -> None:
    lines = shown(node(1, "vm", program(11)), node(2, "vm", program(21)))
    assert [line.split()[0] for line in lines[3:]] == ["vm/000001", "vm/000002"]


def test_node_without_an_answer_is_named() -> None:
    lines = shown(node(1, "one"), node(2, "two", problem="no answer within 10 s"))
    assert "two (10.0.0.2): no answer within 10 s" in lines
    assert lines[-1] == "no program is connected"
    assert shown() == ["no node of the cluster announces memory of cards"]


@pytest.mark.parametrize("given", ["--address", "RAY_ADDRESS"])
def test_address_where_nobody_is_fails_at_once(
    given: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def init(**options: object) -> None:
        raise AssertionError("Ray would try for minutes")

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=bool, init=init))
    with socket.create_server(("127.0.0.1", 0)) as unused:
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    if given == "RAY_ADDRESS":
        monkeypatch.setenv(given, address)
        words = []
    else:
        words = [given, address]
    assert main(["top", "--cluster", *words]) == 1
    assert f"nobody answers at {address} (" in capsys.readouterr().err


def test_many_nodes_are_one_table() -> None:
    lines = shown(*(node(each, f"n{each}", program(each)) for each in range(200)))
    assert len(lines) == 2 * 200 + 1
    assert lines[-1].split()[:2] == ["n199", "199"]
