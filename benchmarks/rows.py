"""One row of results: one allocator under one workload, as every program writes it."""

import statistics

import msgspec

MIB = 1 << 20


class Row(msgspec.Struct):
    """No values: the outcome or the error says why."""

    workload: str
    allocator: str
    unit: str
    median: float | None = None
    p10: float | None = None
    p90: float | None = None
    values: list[float] = []
    details: dict[str, float] = {}
    outcome: str = ""
    error: str = ""

    def take(self, values: list[float]) -> None:
        """The figures of the repetitions, with their middle and their spread."""
        self.values = values
        if not values:
            return
        self.median = statistics.median(values)
        self.p10 = self.p90 = values[0]
        if len(values) > 1:
            deciles = statistics.quantiles(values, n=10, method="inclusive")
            self.p10, self.p90 = deciles[0], deciles[-1]

    def tell_held(self, held: float, in_use: float) -> None:
        """Bytes held of the card and the peak in use, as the native programs write them."""
        self.details["in_use_mib"] = in_use / MIB
        self.details["held_mib"] = held / MIB
        self.details["held_over_in_use"] = held / in_use


def timed_out(seconds: float) -> str:
    """What a row says whose program was ended: it is never tried again."""
    return f"timed out after {seconds:.0f} s"
