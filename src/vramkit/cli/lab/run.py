"""`vramkit lab EXPERIMENT`"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from vramkit.cli.errors import CommandError, UsageError
from vramkit.cli.files import must_be_replaceable, must_be_writable
from vramkit.cli.lab.options import REPETITIONS, Options
from vramkit.cli.lab.prepare import NOTHING, Found, connected_place, given_driver, here, there
from vramkit.cli.lists import names

if TYPE_CHECKING:
    from vramkit.lab.experiment import Experiment
    from vramkit.lab.result import Report
    from vramkit.lab.run import Run
    from vramkit.lab.settings import Value


def command(name: str) -> Callable[..., int]:
    """The function of the command `vramkit lab NAME`."""

    def run(*, options: Annotated[Options, Parameter(name="*")] = Options()) -> int:  # noqa: B008
        return run_experiment(name, options)

    return run


def run_experiment(
    name: str,
    options: Options,
    *,
    start: Sequence[str] = (),
    settings: dict[str, Value] | None = None,
) -> int:
    """`start` has the first words of the command, where it is another than `vramkit lab NAME`, and
    `settings` are those that it has instead of --set."""
    from vramkit.lab.catalog import find
    from vramkit.lab.settings import pairs, resolve

    _check(options)
    before = _before(name, options)
    options = options.filled(before)
    experiment = find(name)
    try:
        driver = given_driver(options) if options.on is not None else None
    except ValueError as error:
        raise UsageError(str(error)) from error
    with connected_place(options, driver) as place:
        try:
            if settings is None:
                kept = {} if before is None else before.settings
                settings = resolve(experiment.settings, options.set, kept)
                if before is not None:
                    options = replace(options, set=pairs(experiment.settings, settings))
            found = (
                here(experiment, options, settings)
                if place is None
                else there(name, driver, settings, place)
            )
            start = start or ("vramkit", "lab", name)
            run = _prepared(experiment, name, options, found, settings, start, before)
        except ValueError as error:
            raise UsageError(str(error)) from error
        return _measured(run, options, found, f"vramkit {start[1]}")


def _measured(run: Run, options: Options, found: Found, said: str) -> int:
    from vramkit.cli.steps import steps

    keeper = Keeper(options.output)
    run.changed = keeper.keep
    with steps(said) as tell:
        run.tell = tell.step
        tell.line(_opening(run.report, found.why_simulated))
        run.run()
    keeper.keep_now(run.report)
    _show(run.experiment, run.report, options)
    for line in _ending(run, options, keeper.error):
        print(f"{said}: {line}", file=sys.stderr)
    if run.signals:
        return 128 + run.signals[0]
    measured = any(row.values for row in run.report.rows)
    return 0 if measured and keeper.error is None and not run.problem else NOTHING


def _before(name: str, options: Options) -> Report | None:
    """The result of --continue."""
    from vramkit.cli.lab.show_ import read_result

    path = options.continue_
    if path is None:
        return None
    if options.on is not None:
        raise UsageError("--continue is for this machine; with --on a run measures all of its own")
    if not path.is_file():
        raise UsageError(f"--continue {path}: there is no such file; --output {path} begins one")
    before = read_result(path)
    if before.experiment != name:
        raise UsageError(f"--continue {path}: that is a result of {before.experiment}")
    return before


def _check(options: Options) -> None:
    """Before anything runs."""
    output = options.output or options.continue_
    for option, number, least in (
        ("--repetitions", options.repetitions, 1),
        ("--device", options.device, 0),
        ("--seed", options.seed, 0),
    ):
        if number is not None and number < least:
            raise UsageError(f"{option} is {number}; it may be {least} or more")
    for option, seconds in (
        ("--time-limit", options.time_limit),
        ("--case-limit", options.case_limit),
    ):
        if seconds is not None and not seconds > 0:
            raise UsageError(f"{option} is {seconds}; it may be a number of seconds above 0")
    if output is not None:
        must_be_replaceable("--output" if options.output else "--continue", output)
    if options.html is not None:
        must_be_writable("--html", options.html)
        if output is not None and options.html.resolve() == output.resolve():
            raise UsageError(f"--output and --html are both {options.html}")


def _prepared(
    experiment: Experiment,
    name: str,
    options: Options,
    found: Found,
    settings: dict[str, Value],
    start: Sequence[str],
    before: Report | None,
) -> Run:
    """`start`: the first words of the command."""
    from vramkit.lab.collect import report_at
    from vramkit.lab.continued import NotTheSame, continued
    from vramkit.lab.experiment import Case, chosen, chosen_cases
    from vramkit.lab.run import Run

    known = experiment.cases(settings)
    cases = chosen_cases(names(options.cases), known)
    wanted = chosen(names(options.subjects), list(found.subjects), "subject")
    if before is not None:
        had = {row.subject for row in before.rows}
        had_cases = {Case(row.workload, row.arm) for row in before.rows}
        wanted = [each for each in wanted if options.subjects or each in had]
        cases = [case for case in cases if options.cases or case in had_cases]
        options = replace(
            options,
            subjects=[each for each in found.subjects if each in {*wanted, *had}],
            cases=[case.name for case in known if case in {*cases, *had_cases}],
        )
    subjects = {each: found.subjects[each] for each in wanted}
    if all(subjects.values()):
        reasons = "; ".join(f"{each}: {why}" for each, why in subjects.items())
        raise CommandError(f"no subject can take part here: {reasons or 'there is none'}", NOTHING)
    report = report_at(
        experiment,
        name,
        found.site,
        settings=settings,
        seed=options.seed or 0,
        repetitions=options.repetitions or REPETITIONS,
        command=options.command(start, found.named),
    )
    date = report.date
    if before is not None:
        keys = [(subject, case) for subject in wanted for case in cases]
        try:
            report = continued(before, report, found.subjects, known, keys)
        except NotTheSame as error:
            raise UsageError(f"--continue {options.continue_}: {error}") from error
    return Run(
        experiment,
        name,
        report,
        found.driver,
        options.device,
        subjects,
        cases,
        case_seconds=options.case_limit,
        seconds=options.time_limit,
        elsewhere=found.elsewhere,
        continued="" if before is None else date,
    )


class Keeper:
    """Writes the result after each measurement. A full disk does not end the run.

    A result with long series takes a while to write, beside what is being measured: then some
    measurements are written with the next one, so that writing takes a twentieth of the time.
    """

    def __init__(self, path: Path | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._next = 0.0
        self.error: OSError | None = None

    def keep(self, report: Report) -> None:
        if self._clock() >= self._next:
            self.keep_now(report)

    def keep_now(self, report: Report) -> None:
        from vramkit.lab.result import save

        if self._path is None:
            return
        began = self._clock()
        try:
            save(report, self._path)
            self.error = None
        except OSError as error:
            self.error = error
        ended = self._clock()
        self._next = ended + 19 * (ended - began)


def _show(experiment: Experiment, report: Report, options: Options) -> None:
    from vramkit.cli.console import print_json
    from vramkit.cli.lab.show_ import print_report, write_page

    if options.html is not None:
        write_page(experiment, report, options.html)
    if options.json:
        print_json(report)
    else:
        print_report(experiment, report)
    sys.stdout.flush()


def _opening(report: Report, why_simulated: str | None) -> str:
    if report.simulated is None:
        return f"on {report.card}"
    why = f": {why_simulated}" if why_simulated else ""
    return f"on the simulated GPU, profile {report.simulated}{why}"


def _ending(run: Run, options: Options, error: OSError | None) -> list[str]:
    report = run.report
    lines = list(filter(None, [run.again.words("repetition", "measured")]))
    if report.stopped:
        measured = sum(bool(row.values) for row in report.rows)
        lines.append(f"{report.stopped}; {measured} of {len(report.rows)} rows have figures")
    if error is not None:
        lines.append(f"the last figures are not in {options.output}: {error}")
    elif options.output is not None:
        lines.append(f"the result is in {options.output}")
    if options.html is not None:
        lines.append(f"the report is in {options.html}")
    return lines
