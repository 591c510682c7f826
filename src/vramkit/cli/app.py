"""The list of commands, and how the errors of any of them end: one line, an exit status."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from inspect import cleandoc
from typing import Any

from cyclopts import App, Parameter

from vramkit.cli.console import print_anywhere
from vramkit.cli.errors import describe_error, exit_status

DESCRIPTION = (
    "GPU memory for work that no longer fits the card.\n\n"
    "Everything runs on an NVIDIA card or, without one, on a simulated GPU "
    "(VRAMKIT_DRIVER=sim, or sim:PROFILE)."
)

# Name and help; the first line stands in the overview. A command's module, vramkit.cli.NAME, is
# imported when the command is asked for, so the texts live here.
COMMANDS = {
    "doctor": """Examine this machine's GPU memory: what it can do and what limits it.

        Exit status: 0 no problem found, 1 a problem (no driver, for example), 2 wrong usage.""",
    "check": """Run a program on the simulated GPU and report unordered accesses to memory.

        Any program that calls the CUDA driver API through libcuda.so.1 will do; programs on the
        CUDA runtime (PyTorch, CuPy) do not run on the simulated GPU. Put -- before the program:
        vramkit check -- python my_program.py

        Exit status: 0 no report and the program succeeded, 1 reports (--error-exitcode sets
        another), 2 wrong usage, 3 no driver call was seen, 127 no such program, else the
        program's own: its exit status, or 128 + the signal that ended it.""",
    "record": """Run a program and record what it allocates on the card.

        Any program that calls the CUDA driver through libcuda.so.1 will do, PyTorch, CuPy and JAX
        included; it needs no change. Put -- before the program:
        vramkit record -o trace.csv.gz -- python my_program.py

        Exit status: 2 wrong usage, 127 no such program, else the program's own: its exit status, or
        128 + the signal that ended it.""",
    "replay": """Replay a recorded program on every allocator: what it holds, which card it needs.

        Takes what vramkit record writes, PyTorch memory snapshots, logs of RMM and plain traces:
        vramkit replay trace.csv.gz --card 24GiB --html report.html

        Exit status: 0 replayed, 1 nothing could be replayed or kept, 2 wrong usage or no trace,
        130 stopped by Ctrl-C; what was measured until then is kept.""",
    "advise": """Say what would help a recorded program: another allocator, offload, sharing, ...

        Reads the same files as replay, and says for each piece of advice what to expect and how to
        check it:
        vramkit advise snapshot.pickle --card 24GiB

        Exit status: 0 advised, 2 wrong usage or no trace.""",
    "plan": """Predict what streaming a model's weights costs, before the run and without the card.

        Runs the engine of vramkit.offload() on the simulated GPU. Reads a transformers config or
        the header of a safetensors checkpoint, no weights:
        vramkit plan path/of/the/model --budget 24GiB

        Several models, budgets, profiles or policies make a table, here or on a Ray cluster:
        vramkit plan one/model another/model --budget 12GiB,24GiB --on ray

        Exit status: 0 planned, 1 a package or a file is missing, or nothing in a table could be
        planned, 2 wrong usage, or a budget that is too small, 130 a table stopped by Ctrl-C.""",
    "run": """Run a program that shares the card with others, unmodified.

        Starts the per-user daemon where none runs. Put -- before the program:
        vramkit run --memory 12GiB -- python train.py

        Exit status: 1 no daemon, 2 wrong usage, 127 no such program, else the program's own: its
        exit status, or 128 + the signal that ended it.""",
    "status": """Show the programs that share cards, and where their memory is.

        Exit status: 1 no daemon.""",
    "top": """Show the programs that share cards, live; in a pipe, one table after the other.

        Exit status: 1 no daemon, 2 wrong usage.""",
    "config": """Show or change how cards are shared: quantum, budget, limit, ...

        A running daemon applies a change at once. Exit status: 2 wrong usage.""",
    "daemon": """Start, stop or look at the daemon that divides the cards.

        Exit status: 1 no daemon, or it did not start, 2 wrong usage.""",
    "lab": """Measure what memory costs here: allocators, fragmentation, streaming, sharing.

        Exit status: 0 measured, 1 nothing could be measured, 2 wrong usage, 130 stopped by Ctrl-C;
        what was measured until then is kept.""",
    "demo": """A short guided run, with a report to keep.

        Uses the NVIDIA card of this machine, else the simulated GPU, and says which.

        Exit status: 0 all chapters ran, 1 the driver or a chapter failed, 2 wrong usage.""",
}


CLUSTER = "This machine as a node of a cluster that places programs by GPU memory."

CLUSTER_COMMANDS = {
    "resources": """Print what this machine's cards announce.

        ray start --head --resources "$(vramkit cluster resources --json)"

        Exit status: 1 no driver, 2 wrong usage.""",
    "start": """Start Ray on this machine, with its cards' memory as a resource.

        vramkit cluster start -- --port 6379
        vramkit cluster start --address 10.0.0.1:6379

        Exit status: 1 no Ray, 2 wrong usage, else that of `ray start`.""",
    "environment": """Print the environment of a program that somebody else starts, to share cards.

        For prologues of batch systems: one line "export NAME=value" each. Starts the daemon where
        none runs.

        Exit status: 1 no daemon, 2 wrong usage.""",
    "kubernetes-plugin": """Serve the kubelet of this node: pods ask for memory of its cards.

        Runs until it is stopped, beside `vramkit daemon start --system`; deploy/kubernetes has the
        manifest of both.

        Exit status: 1 no card, or the kubelet refuses, 2 wrong usage.""",
}


def _paragraphs(text: str) -> str:
    """Only blank lines part what they stand between; the terminal's width does the rest."""
    return re.sub(r"(?<!\n)\n(?!\n)", " ", cleandoc(text))


def _version() -> str:
    from importlib.metadata import version

    return f"vramkit {version('vramkit')}"


def new_app(name: str, text: str, version: Callable[[], str] | None = None) -> App:
    # Plain texts leave brackets alone; errors come to main, which prints them in one line.
    return App(
        name=name,
        help=text,
        help_format="plaintext",
        version=version,
        version_flags=["--version"] if version else [],
        version_format="plaintext",
        default_parameter=Parameter(negative="", show_default=False),
        result_action="return_value",
        exit_on_error=False,
        print_error=False,
    )


def build_app() -> App:
    app = new_app("vramkit", DESCRIPTION, _version)
    for name, text in COMMANDS.items():
        # The lab is an application of its own, and answers --help itself.
        own: dict[str, Any] = {"help_flags": []} if name == "lab" else {}
        app.command(f"vramkit.cli.{name}:{name}", name=name, help=_paragraphs(text), **own)
    cluster = new_app("cluster", _paragraphs(CLUSTER))
    for name, text in CLUSTER_COMMANDS.items():
        function = name.replace("-", "_")
        cluster.command(f"vramkit.cli.cluster:{function}", name=name, help=_paragraphs(text))
    app.command(cluster)
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit status: 0 fine, 1 a problem, 2 wrong usage."""
    print_anywhere()
    try:
        result = build_app()(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except BrokenPipeError:
        # The reader (head, less) has seen enough. What is still buffered goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        text = describe_error(error)
        if text is None or os.environ.get("VRAMKIT_DEBUG") == "1":
            raise
        print(f"vramkit: {text}", file=sys.stderr)
        return exit_status(error)
