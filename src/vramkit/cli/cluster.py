"""`vramkit cluster ...`: this machine as a node of a cluster, for Ray, Kubernetes and others."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from vramkit.cli.errors import CommandError, UsageError

PROBLEM = 1


def resources(*, oversubscription: float | None = None, json: bool = False) -> int:
    """Print what this machine's cards announce.

    Parameters
    ----------
    oversubscription
        Announce the budgets times this. Default: that of `vramkit config oversubscription`.
    json
        Exactly what `ray start --resources` takes.
    """
    from vramkit.cluster.cards import cards_here, host_shortage, settings_here
    from vramkit.integrations.ray import RESOURCE, node_environment
    from vramkit.integrations.ray.node import resources_of, understands_options
    from vramkit.report.units import bytes_text
    from vramkit.share.settings import SettingError

    try:
        settings = settings_here(oversubscription)
    except SettingError as error:
        raise UsageError(str(error)) from error
    cards = cards_here(settings)
    if shortage := host_shortage(cards):
        print(f"vramkit: {shortage}", file=sys.stderr)
    if json:
        import msgspec

        # One line: it goes into a command line.
        print(msgspec.json.encode(resources_of(cards)).decode())
        if not understands_options():
            hint = " ".join(f"{name}='{value}'" for name, value in node_environment().items())
            print(
                "vramkit: without this in the environment of `ray start` Ray ignores memory "
                f"limits: export {hint}",
                file=sys.stderr,
            )
        return 0
    for number, card in enumerate(cards):
        print(
            f"card {number} ({card.uuid}): {bytes_text(card.total)}, {bytes_text(card.budget)} "
            f"for programs, {bytes_text(card.announced)} announced"
        )
    print(f"{RESOURCE}: {resources_of(cards)[RESOURCE]}")
    return 0


def start(
    *arguments: Annotated[str, Parameter(allow_leading_hyphen=True)],
    address: str | None = None,
    oversubscription: float | None = None,
) -> int:
    """Start Ray on this machine, with its cards' memory as a resource.

    Parameters
    ----------
    arguments
        For `ray start`, behind --.
    address
        Of the head node to join. Without one this becomes the head.
    oversubscription
        Announce the budgets times this. Default: that of `vramkit config oversubscription`.
    """
    from vramkit.cluster.cards import settings_here
    from vramkit.integrations.ray.node import node_environment, start_command
    from vramkit.share.settings import SettingError

    try:
        factor = settings_here(oversubscription).oversubscription
        command = start_command(address, oversubscription=factor, arguments=arguments)
    except (SettingError, ValueError) as error:
        raise UsageError(str(error)) from error
    except ModuleNotFoundError as error:
        raise CommandError(str(error), PROBLEM) from error
    # Ray's own hint would make nodes that announce nothing and ignore limits.
    if address is None:
        print(
            "vramkit: other machines join by `vramkit cluster start --address HOST:PORT`, "
            "not by `ray start`",
            file=sys.stderr,
            flush=True,
        )
    # In this process: with --block, signals of a service manager are Ray's.
    os.execve(command[0], command, {**os.environ, **node_environment()})


def environment(
    *,
    memory: str,
    weight: float = 1.0,
    priority: int = 0,
    mode: Literal["swap", "prefetch", "paged"] = "swap",
    pool: bool = False,
    links: Path | None = None,
) -> int:
    """Print what a program needs.

    Parameters
    ----------
    memory
        The most memory of each card for it: 12GiB, or bytes.
    weight
        Its share of the time beside programs of weight 1. Default: 1.
    priority
        Programs of a higher priority have their turns first. Default: 0.
    mode
        How memory moves: swap, prefetch or paged. Default: swap.
    pool
        Give PyTorch, CuPy and RMM of a Python program vramkit's pool.
    links
        A folder that is there as long as the program; what is put there is for the caller to
        remove. Default: one beside the user's socket.
    """
    from vramkit.cluster.cards import MIB
    from vramkit.launch import LaunchError
    from vramkit.share.connect import DaemonError, NoDaemonError
    from vramkit.share.run import RunOptions, environment_here
    from vramkit.share.settings import SettingError
    from vramkit.weights.budget import parse_bytes

    try:
        nbytes = parse_bytes(memory, "memory")
        if nbytes < MIB:
            raise ValueError(f"memory is {memory!r}; it may be 1 MiB or more, such as 24GiB")
        options = RunOptions(mode, nbytes, weight, priority, pool)
    except ValueError as error:
        raise UsageError(f"--{error}") from error
    try:
        added = environment_here(options, os.environ, links)
    except (LaunchError, SettingError) as error:
        raise UsageError(str(error)) from error
    except (DaemonError, NoDaemonError) as error:
        raise CommandError(str(error), PROBLEM) from error
    for name, value in added.items():
        print(f"export {name}={value}")
    return 0


def kubernetes_plugin(
    *,
    unit: str = "1MiB",
    oversubscription: float | None = None,
    nvidia: Literal["runtime", "cdi", "none"] = "runtime",
    kubelet: Path = Path("/var/lib/kubelet"),
    cdi: Path = Path("/var/run/cdi"),
    libraries: Path = Path("/var/lib/vramkit"),
) -> int:
    """Serve the kubelet of this node.

    Parameters
    ----------
    unit
        What pods count in, a power of two up to 1GiB; the resource's name says it. Default: 1MiB,
        hence vramkit.dev/vram-mib, which holds up to 186 GiB a node.
    oversubscription
        Announce the budgets times this. Default: that of `vramkit config oversubscription`.
    nvidia
        How containers get the card itself: by NVIDIA's runtime, by NVIDIA's CDI files, or not at
        all. Default: runtime.
    kubelet
        The kubelet's folder. Default: /var/lib/kubelet.
    cdi
        Where container runtimes look for CDI files. Default: /var/run/cdi.
    libraries
        Where the gate is put for containers, on the host. Default: /var/lib/vramkit.
    """
    import logging
    import signal

    from vramkit.cluster.cards import MIB
    from vramkit.share.settings import SettingError
    from vramkit.weights.budget import parse_bytes

    try:
        from vramkit.integrations.kubernetes.agent import Agent, Places
        from vramkit.integrations.kubernetes.kubelet import KubeletError
        from vramkit.integrations.kubernetes.units import Unit, UnitError
    except ModuleNotFoundError as error:
        raise CommandError(f"{error}; install vramkit[kubernetes]", PROBLEM) from error
    logging.basicConfig(
        level=os.environ.get("VRAMKIT_LOG_LEVEL", "INFO"),
        format="%(asctime)s %(levelname)s %(message)s",
    )
    try:
        nbytes = parse_bytes(unit, "unit")
        if nbytes % MIB:
            raise UnitError(f"the unit is {unit}; it may be 1MiB to 1GiB, a power of two")
        places = Places(kubelet, cdi, libraries)
        agent = Agent(
            Unit(nbytes // MIB), nvidia=nvidia, oversubscription=oversubscription, places=places
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: agent.stop())
        agent.run()
    except KubeletError as error:
        raise CommandError(str(error), PROBLEM) from error
    except (SettingError, ValueError) as error:
        raise UsageError(str(error)) from error
    return 0
