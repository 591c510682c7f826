"""One program with one allocator, in this process: rounds, times, memory, results.

Peaks are those of the whole process, up to the end of the last round. Processes of one program run
equally many rounds, so that their peaks and results can be compared.
"""

import gc
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from changing_shapes_rows import EXPANDABLE, Measured
from frameworks_work import CardMemory, Results, pool_details
from torch_programs.program import Program

FEWEST_ROUNDS = 3
MOST_ROUNDS = 8


def deterministic() -> None:
    """Where an operation has no such algorithm it warns, and the results may differ."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Else every fresh tensor is filled first, and the time of that would be ours.
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    # The gradients of these two depend on the order in which thread blocks end.
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)


class Memory:
    """What the allocator of this process says about itself; nothing on a CPU."""

    def __init__(self, allocator: str, device: torch.device) -> None:
        self.pool: Any = None
        self.card: CardMemory | None = None
        self._allocator = allocator
        if device.type != "cuda":
            return
        if allocator == "vramkit":
            from vramkit.integrations import torch as integration

            self.pool = integration.install()
        torch.cuda.init()
        torch.cuda.synchronize()  # makes the context
        self.card = CardMemory(torch.cuda.mem_get_info)

    def look(self) -> None:
        if self.card is not None:
            self.card.look()

    def held(self) -> int | None:
        if self.card is None:
            return None
        if self.pool is not None:
            return int(self.pool.stats().peak_reserved)
        return int(torch.cuda.max_memory_reserved())

    def fill(self, measured: Measured) -> None:
        measured.peak_bytes = self.held()
        if self.card is None:
            return
        measured.card_bytes = self.card.most
        if self.pool is not None:
            measured.in_use_bytes = int(self.pool.stats().peak_usage)
            measured.details.update(pool_details(self.pool))
            return
        statistics = torch.cuda.memory_stats()
        measured.in_use_bytes = int(torch.cuda.max_memory_allocated())
        measured.details["torch_retries"] = float(statistics.get("num_alloc_retries", 0))
        measured.details["asked_bytes"] = float(statistics.get("requested_bytes.all.peak", 0))

    def wrong_setting(self) -> str:
        """The variable's name changed between versions: what counts is what PyTorch made of it."""
        if self.card is None or self.pool is not None:
            return ""
        settings = torch.cuda.memory._snapshot().get("allocator_settings", {})
        found = str(settings.get("expandable_segments", "unknown"))
        wanted = str(self._allocator == EXPANDABLE)
        if found in ("unknown", wanted):
            return ""
        return f"PyTorch ran {self._allocator} with expandable_segments:{found}"


class Rounds:
    """Runs rounds of a program, and collects the figures of its steps."""

    def __init__(self, program: Program, device: torch.device) -> None:
        self._program = program
        self._device = device
        self.results = Results()

    def run(self, look: Callable[[], None] | None = None) -> float:
        """Milliseconds of one round; the device is idle before and after."""
        self._synchronize()
        start = time.perf_counter_ns()
        figures = []
        for figure in self._program.round():
            figures.append(figure)
            if look is not None:
                look()
        self._synchronize()
        milliseconds = (time.perf_counter_ns() - start) / 1e6
        self.results.add(torch.stack(figures).tolist())
        return milliseconds

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize()


def build(name: str, size: str, device: torch.device) -> Program:
    program: Program = import_module(f"torch_programs.{name}").build(size, device)
    return program


def rounds_within(seconds: float, milliseconds: float) -> int:
    """How many rounds of this length fit; never too few for a median."""
    return max(FEWEST_ROUNDS, min(MOST_ROUNDS, int(seconds * 1000 / max(milliseconds, 1e-3))))


def run(
    name: str,
    allocator: str,
    size: str,
    on: str,
    rounds: int,
    seconds: float,
    save: Callable[[Measured], None],
) -> Measured:
    """The whole of it; `save` gets what is known after every round.

    With rounds = 0 the number is chosen, for about so many seconds.
    """
    device = torch.device(on)
    memory = Memory(allocator, device)
    deterministic()
    measured = Measured()
    start = time.perf_counter()
    program = build(name, size, device)
    measured.details["build_ms"] = (time.perf_counter() - start) * 1000
    # What was imported is left out of later collections: they come at the same steps whatever
    # allocator was imported, and so do the frees of tensors in cycles.
    gc.collect()
    gc.freeze()
    work = Rounds(program, device)
    first = work.run(memory.look)
    measured.details["first_round_ms"] = first
    measured.details["first_round_held_bytes"] = float(memory.held() or 0)
    while not rounds or len(measured.milliseconds) < rounds:
        measured.milliseconds.append(work.run())
        memory.look()
        memory.fill(measured)
        measured.rounds = len(measured.milliseconds)
        rounds = rounds or rounds_within(seconds, measured.milliseconds[0])
        save(measured)
    for checksum in program.checksums():
        work.results.add_bytes(str(checksum).encode())
    measured.digest = work.results.digest
    measured.figures = work.results.figures
    measured.error = memory.wrong_setting()
    return measured
