"""`vramkit lab EXPERIMENT | list | show | compare`"""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, CycloptsError, Parameter

from vramkit.cli.errors import UsageError, wrong_words

HELP = (
    "Measure what memory costs here: the same work for several allocators, policies or modes.\n\n"
    "An experiment is measured on the NVIDIA card of this machine, else on the simulated GPU. "
    "vramkit lab list says which experiments there are, and who takes part here."
)
COMMANDS = {
    "list": "List the experiments, and who takes part in them here.",
    "show": "Draw a saved result again.",
    "compare": "Compare two results of one experiment: what is better or worse beyond the spread.",
}
STATUSES = (
    "Exit status: 0 measured, 1 nothing could be measured or kept, 2 wrong usage, 128 + the signal "
    "that ended it early (130: Ctrl-C); --continue goes on with what was measured until then."
)


def lab(*arguments: Annotated[str, Parameter(allow_leading_hyphen=True)]) -> int:
    """An application of its own: only it has to know the experiments."""
    try:
        status = lab_app(arguments[0] if arguments else "")(list(arguments))
    except CycloptsError as error:
        raise UsageError(wrong_words(error, "vramkit", "lab")) from error
    return status if isinstance(status, int) else 0


def lab_app(first: str) -> App:
    """`first` may be the place of an experiment that is not in the catalog: "my.module:NAME"."""
    from vramkit.cli.app import new_app
    from vramkit.cli.lab.run import command
    from vramkit.lab.catalog import EXPERIMENTS, find

    app = new_app("vramkit lab", HELP)
    experiments = dict(EXPERIMENTS)
    if ":" in first:
        try:
            experiments[first] = find(first)
        except ValueError as error:
            raise UsageError(str(error)) from error
    for name, experiment in experiments.items():
        settings = "".join(
            f"\n\n--set {setting.name}={setting.default}: {setting.help}; {setting.allowed}."
            for setting in experiment.settings
        )
        text = f"{experiment.title}\n\n{experiment.question}{settings}\n\n{STATUSES}"
        app.command(command(name), name=name, help=text)
    for name, text in COMMANDS.items():
        app.command(f"vramkit.cli.lab.{name}_:{name}_", name=name, help=text)
    return app
