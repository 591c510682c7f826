"""`vramkit top`"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from vramkit.cli.errors import CommandError, UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    Look = Callable[[], tuple[object, list[RenderableType]]]
    """A document, and the same for people."""

PROBLEM = 1


def top(
    *,
    interval: float = 1.0,
    count: int = 0,
    cluster: bool = False,
    address: str | None = None,
    json: bool = False,
) -> int:
    """Show the programs that share cards, again and again.

    Parameters
    ----------
    interval
        Seconds between two looks. Default: 1.
    count
        So many looks; 0: until it is interrupted. Default: 0.
    cluster
        All nodes of the Ray cluster.
    address
        With --cluster: of the cluster. Default: $RAY_ADDRESS, or the one on this machine.
    json
        One JSON document a line for each look.
    """
    if not 0.1 <= interval <= 3600:
        raise UsageError(f"--interval is {interval:g}; it may be 0.1 to 3600 seconds")
    if count < 0:
        raise UsageError(f"--count is {count}; it may be 0 or more")
    if address is not None and not cluster:
        raise UsageError("--address goes with --cluster")
    with _cluster(address) if cluster else _this_machine() as look:
        _show(look, interval, range(count or sys.maxsize), json=json)
    return 0


@contextmanager
def _this_machine() -> Iterator[Look]:
    from vramkit.cli.sharing import controls, status_parts

    with controls() as connection:

        def look() -> tuple[object, list[RenderableType]]:
            status = connection.status()
            return status, status_parts(status)

        yield look


@contextmanager
def _cluster(address: str | None) -> Iterator[Look]:
    from vramkit.cli.sharing import cluster_parts
    from vramkit.integrations.ray.cluster import connected, status

    def look() -> tuple[object, list[RenderableType]]:
        nodes = status()
        return {"nodes": nodes}, cluster_parts(nodes)

    try:
        with connected(address):
            yield look
    except (ConnectionError, ModuleNotFoundError) as error:
        raise CommandError(str(error), PROBLEM) from error


def _show(look: Look, interval: float, looks: range, *, json: bool) -> None:
    import msgspec
    from rich.console import Group
    from rich.live import Live

    from vramkit.cli.console import output
    from vramkit.cli.sharing import print_parts

    console = output()
    if json or not sys.stdout.isatty():
        for number in looks:
            if number:
                time.sleep(interval)
            document, parts = look()
            if json:
                sys.stdout.buffer.write(msgspec.json.encode(document) + b"\n")
            else:
                if number:
                    console.print()
                print_parts(console, parts)
            sys.stdout.flush()
        return
    with (
        Live(console=console, screen=True, auto_refresh=False) as live,
        suppress(KeyboardInterrupt),
    ):
        for number in looks:
            if number:
                time.sleep(interval)
            live.update(Group(*look()[1]), refresh=True)
