"""`vramkit top`"""

from __future__ import annotations

import sys
import time

from vramkit.cli.errors import UsageError


def top(*, interval: float = 1.0, count: int = 0, json: bool = False) -> int:
    """Show the programs that share cards, again and again.

    Parameters
    ----------
    interval
        Seconds between two looks. Default: 1.
    count
        So many looks; 0: until it is interrupted. Default: 0.
    json
        One JSON document a line for each look.
    """
    import msgspec
    from rich.console import Group
    from rich.live import Live

    from vramkit.cli.console import output
    from vramkit.cli.sharing import controls, print_status, status_parts

    if not 0.1 <= interval <= 3600:
        raise UsageError(f"--interval is {interval:g}; it may be 0.1 to 3600 seconds")
    if count < 0:
        raise UsageError(f"--count is {count}; it may be 0 or more")
    console = output()
    with controls() as connection:

        def looks() -> range:
            return range(count) if count else range(sys.maxsize)

        if json:
            for number in looks():
                if number:
                    time.sleep(interval)
                sys.stdout.buffer.write(msgspec.json.encode(connection.status()) + b"\n")
                sys.stdout.flush()
        elif not sys.stdout.isatty():
            for number in looks():
                if number:
                    time.sleep(interval)
                    console.print()
                print_status(console, connection.status())
                sys.stdout.flush()
        else:
            with Live(console=console, screen=True, auto_refresh=False) as live:
                try:
                    for number in looks():
                        if number:
                            time.sleep(interval)
                        live.update(Group(*status_parts(connection.status())), refresh=True)
                except KeyboardInterrupt:
                    return 0
    return 0
