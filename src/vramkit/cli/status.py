"""`vramkit status`"""

from __future__ import annotations


def status(*, json: bool = False) -> int:
    """Show the programs that share cards.

    Parameters
    ----------
    json
        Everything as one JSON document.
    """
    from vramkit.cli.console import output, print_json
    from vramkit.cli.sharing import controls, print_status

    with controls() as connection:
        found = connection.status()
    if json:
        print_json(found)
    else:
        print_status(output(), found)
    return 0
