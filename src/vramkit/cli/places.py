"""Where a sweep runs: `--on` and `--workers`."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from vramkit.cli.errors import CommandError, UsageError

if TYPE_CHECKING:
    from vramkit.sweep import Place

PROBLEM = 1
CONNECT_SECONDS = 10.0


def address_of(on: str) -> str:
    """ "ray", "ray:HOST:PORT" or "ray:ray://HOST:PORT": as ray.init() takes it."""
    engine, colon, address = on.partition(":")
    if engine != "ray" or (colon and not address):
        raise UsageError(
            f"--on is {on!r}; it may be ray (the cluster of this machine, or of RAY_ADDRESS), "
            "ray:HOST:PORT or ray:ray://HOST:PORT"
        )
    return address or "auto"


def _must_answer(address: str) -> None:
    """Ray would try for minutes, and end the process. Raises ConnectionError."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        try:
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
        except OSError as error:
            raise ConnectionError(f"{host}:{port}: {error.strerror or error}") from error


@contextmanager
def ray_place(on: str, *, cards: bool) -> Iterator[Place]:
    """The cluster's cards, or its CPUs; connected until the end of the block."""
    from vramkit.sweep import PlaceError

    address = address_of(on)
    try:
        from vramkit.integrations._frameworks import imported
        from vramkit.integrations.ray.cluster import connected
        from vramkit.integrations.ray.places import Cards, Cpus

        imported("ray", "vramkit[ray]")
        _must_answer(address)
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
            f"--on {on}: no Ray cluster answers ({str(error).strip().splitlines()[0]}); "
            "`vramkit cluster start` or `ray start --head` starts one",
            PROBLEM,
        ) from error
