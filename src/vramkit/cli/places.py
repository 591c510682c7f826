"""Where a sweep runs: `--on` and `--workers`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from vramkit.cli.errors import CommandError, UsageError

if TYPE_CHECKING:
    from vramkit.sweep import Place

PROBLEM = 1


def address_of(on: str) -> str | None:
    """ "ray", "ray:HOST:PORT" or "ray:ray://HOST:PORT": as connected() takes it."""
    engine, colon, address = on.partition(":")
    if engine != "ray" or (colon and not address):
        raise UsageError(
            f"--on is {on!r}; it may be ray (the cluster of this machine, or of RAY_ADDRESS), "
            "ray:HOST:PORT or ray:ray://HOST:PORT"
        )
    return address or None


@contextmanager
def ray_place(on: str, *, cards: bool) -> Iterator[Place]:
    """The cluster's cards, or its CPUs; connected until the end of the block."""
    from vramkit.sweep import PlaceError

    address = address_of(on)
    try:
        from vramkit.integrations.ray.cluster import connected
        from vramkit.integrations.ray.places import Cards, Cpus

        with connected(address):
            try:
                yield Cards() if cards else Cpus()
            except PlaceError as error:
                raise CommandError(f"--on {on}: {error}", PROBLEM) from error
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise CommandError(f"--on {on}: {error}", PROBLEM) from error
    except (ConnectionError, ValueError) as error:
        raise CommandError(
            f"--on {on}: no Ray cluster answers ({_shortened(str(error))}); "
            "`vramkit cluster start` or `ray start --head` starts one",
            PROBLEM,
        ) from error


def _shortened(text: str) -> str:
    """Ray's reasons have tracebacks of its servers, which end with what it was."""
    words = " ".join(text.split())
    return words if len(words) <= 300 else f"{words[:100]} ... {words[-200:]}"
