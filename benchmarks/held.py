"""Says how much memory the pool holds for a recorded program, compared with what it uses.

    python benchmarks/held.py tests/data/*.csv.gz
    python benchmarks/held.py snapshot.pickle --limit-percent 2

Takes traces (see traces.py) and PyTorch's memory snapshots. The simulated GPU counts memory as a
card does; the times are those of this machine. Ends with status 1 if a trace ran out of memory.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from replay import Replayed, replay, simulated_card
from traces import Trace, TraceError, read_traces

from vramkit.driver import Device, OutOfMemoryError

HEADINGS = (
    "trace",
    "events",
    "limit, GB",
    "in use, GB",
    "held, GB",
    "held / in use",
    "mallocs that remapped",
    "remapped, GB",
    "growths",
    "driver calls",
    "seconds",
)


class Failed(msgspec.Struct, frozen=True):
    trace: str
    limit: int | None
    error: str


def measured(trace: Trace, device: Device, options: Namespace) -> Iterator[Replayed | Failed]:
    """Without a limit, and then, with --limit-percent, that much above what was held."""
    limit: int | None = None
    try:
        result = replayed(trace, device, options, None)
        yield result
        if options.limit_percent is not None:
            limit = int(result.peak_held * (1 + options.limit_percent / 100))
            yield replayed(trace, device, options, limit)
    except OutOfMemoryError as error:
        yield Failed(trace.name, limit, str(error))


def replayed(trace: Trace, device: Device, options: Namespace, limit: int | None) -> Replayed:
    return replay(
        trace,
        device,
        limit=limit,
        streams=options.streams,
        threads=options.threads,
        seed=options.seed,
        work_every=options.work_every,
    )


def row(result: Replayed | Failed) -> str:
    limit = "" if result.limit is None else gigabytes(result.limit)
    if isinstance(result, Failed):
        cells: tuple[str, ...] = (result.trace, "", limit, f"out of memory: {result.error}")
        return f"| {' | '.join(cells)}" + " |" * (len(HEADINGS) - len(cells) + 1)
    cells = (
        result.trace,
        f"{result.events:,}",
        limit,
        gigabytes(result.peak_in_use),
        gigabytes(result.peak_held),
        f"{result.ratio:.3f}",
        f"{result.remap_hits:,}",
        gigabytes(result.remapped_bytes),
        f"{result.growths:,}",
        f"{result.driver_calls:,}",
        f"{result.seconds:.2f}",
    )
    return f"| {' | '.join(cells)} |"


def gigabytes(size: int) -> str:
    return f"{size / 1e9:.3f}"


def number(least: float, kind: type = int, most: int = 1 << 20) -> Callable[[str], float]:
    def checked(text: str) -> float:
        try:
            value: float = kind(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise ArgumentTypeError(f"{text!r}; it may be a number from {least} to {most}")
        return value

    return checked


def arguments(command: list[str] | None) -> Namespace:
    parser = ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE")
    parser.add_argument(
        "--limit-percent",
        type=number(0, float),
        metavar="P",
        help="again, with a limit that much above what was held",
    )
    parser.add_argument(
        "--streams",
        type=number(1),
        metavar="N",
        help="deal the blocks at random over N streams; default: the streams of the trace",
    )
    parser.add_argument(
        "--threads",
        type=number(1),
        default=1,
        metavar="N",
        help="deal the blocks at random over N threads, which take turns",
    )
    parser.add_argument("--seed", type=number(0), default=1, help="of the dealing")
    parser.add_argument(
        "--work-every",
        type=number(1),
        metavar="N",
        help="a short kernel behind each malloc; the host waits for the card after N of them",
    )
    # A pool reserves addresses for four cards.
    parser.add_argument("--card-gib", type=number(1, most=512), default=140, metavar="N")
    parser.add_argument("--json", action="store_true", help="one object a line")
    return parser.parse_args(command)


def main(command: list[str] | None = None) -> int:
    options = arguments(command)
    failed = False
    if not options.json:
        print(f"| {' | '.join(HEADINGS)} |")
        print("|---|" + "---:|" * (len(HEADINGS) - 1))
    for path in options.traces:
        try:
            traces = read_traces(path)
        except TraceError as error:
            print(error, file=sys.stderr)
            return 2
        for trace in traces:
            for result in measured(trace, simulated_card(options.card_gib), options):
                failed |= isinstance(result, Failed)
                print(msgspec.json.encode(result).decode() if options.json else row(result))
                sys.stdout.flush()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
