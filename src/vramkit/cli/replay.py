"""`vramkit replay FILE...`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from vramkit.cli.errors import UsageError
from vramkit.cli.lab.options import Options

ON_A_CARD, SIMULATED = 5, 1
"""Repetitions: virtual times repeat by themselves."""
CASE_SECONDS = 600.0
EXPERIMENT = "vramkit.lab.replay:REPLAY"


def replay(
    *files: Path,
    card: Annotated[list[str] | None, Parameter(negative="")] = None,
    kernel_us: float | None = None,
    streams: int | None = None,
    threads: int | None = None,
    seed: int = 0,
    limit: str | None = None,
    limit_percent: float | None = None,
    quick: bool = False,
    driver: str | None = None,
    device: int = 0,
    subjects: list[str] | None = None,
    repetitions: int | None = None,
    time_limit: float | None = None,
    case_limit: float = CASE_SECONDS,
    continue_: Annotated[Path | None, Parameter(name="--continue")] = None,
    output: Path | None = None,
    html: Path | None = None,
    json: bool = False,
) -> int:
    """Replay recorded programs.

    Parameters
    ----------
    files
        Traces of vramkit record, PyTorch memory snapshots, logs of RMM, or plain traces.
    card
        Whether it fits on a card of this size: 61GiB; may be given several times.
    kernel_us
        Microseconds of a kernel whose time nobody knows. 0: without kernels. Default: 20.
    streams
        Deal the blocks at random over so many streams. Default: those of the trace.
    threads
        Deal the blocks at random over so many threads. Default: those of the trace.
    seed
        Of the dealing, and of the order of the allocators. Default: 0.
    limit
        What an allocator may take: 24GiB. Default: all that is free.
    limit_percent
        Once more, with a limit that much above what was held.
    quick
        Without the search for the smallest card that each allocator needs.
    driver
        cuda, sim or sim:PROFILE. Default: VRAMKIT_DRIVER, else the NVIDIA card, else sim.
    device
        The number of the card. Default: 0.
    subjects
        Which allocators: names with commas between, which may have * and ?. Default: all.
    repetitions
        Of each. Default: 5, and 1 on the simulated GPU.
    time_limit
        Seconds after which the run ends early, and keeps what it has. Default: none.
    case_limit
        Seconds that one repetition may take. Default: 600.
    continue_
        The file of a result that ended early: what it lacks is measured, on the same card and
        machine, with the same versions, as the other options say. --output is the same file then.
    output
        The file for the result (JSON), written after each measurement.
    html
        The file for the report as a page.
    json
        The result as one JSON document, instead of the report.
    """
    from vramkit.cli.lab.run import run_experiment
    from vramkit.cli.opening import open_driver_or_simulate
    from vramkit.lab.replay.settings import SETTINGS, cards, traces
    from vramkit.lab.settings import Value, resolve

    if not files:
        raise UsageError("replay needs a trace: vramkit replay trace.csv.gz")
    given: dict[str, object] = {
        "kernel_us": kernel_us,
        "streams": streams,
        "threads": threads,
        "limit": limit,
        "limit_percent": limit_percent,
        "smallest": "off" if quick else None,
    }
    pairs = [f"{name}={value}" for name, value in given.items() if value is not None]
    try:
        settings: dict[str, Value] = resolve(SETTINGS, pairs)
        settings["traces"] = [str(path) for path in files]
        settings["cards"] = list(card or [])
        cards(settings)
        peak = max(trace.peak_in_use for trace in traces(settings).values())
    except ValueError as error:
        raise UsageError(str(error)) from error
    settings["capacity"] = max(int(str(settings["capacity"])), min(4 * peak, 512 << 30))
    chosen, _ = open_driver_or_simulate(driver)
    if repetitions is None and continue_ is None:
        repetitions = ON_A_CARD if chosen.sim is None else SIMULATED
    options = Options(
        driver=driver,
        device=device,
        subjects=subjects or [],
        repetitions=repetitions,
        seed=seed,
        time_limit=time_limit,
        case_limit=case_limit,
        continue_=continue_,
        output=output,
        html=html,
        json=json,
    )
    start = ["vramkit", "replay", *map(str, files)]
    start += [word for text in card or [] for word in ("--card", text)]
    for name, value in given.items():
        if value is not None and name != "smallest":
            start += [f"--{name.replace('_', '-')}", str(value)]
    if quick:
        start.append("--quick")
    return run_experiment(EXPERIMENT, options, start=start, settings=settings)
