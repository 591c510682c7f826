"""Facts about the machine a benchmark ran on, for its result file: the lab's, and two more."""

from datetime import UTC, datetime

import msgspec

from vramkit.lab import collect as lab
from vramkit.lab import result


class Machine(result.Machine, frozen=True):
    """Empty texts where the machine does not have the thing or does not say."""

    compiler: str
    date: str


def collect(compiler: str = "c++") -> Machine:
    """Asks the machine; starts nvidia-smi and the compiler where they exist, for a moment each."""
    return Machine(
        **msgspec.structs.asdict(lab.machine()),
        compiler=lab.first_line(compiler, "--version"),
        date=datetime.now(UTC).strftime(lab.DATE),
    )
