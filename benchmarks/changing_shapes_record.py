"""The allocations of a program, as PyTorch's allocator records them, as a trace."""

from pathlib import Path
from typing import Any

from vramkit.lab.traces import Trace, write_plain
from vramkit.lab.traces.snapshot import blocks_of
from vramkit.lab.traces.snapshot import trace_of as trace_of_blocks


def trace_of(name: str, snapshot: dict[str, Any], device: int) -> Trace:
    (blocks,) = blocks_of(snapshot, device)
    return trace_of_blocks(name, blocks)


def record(name: str, size: str, rounds: int, path: Path) -> None:
    """Runs rounds of a program on the card, recorded from its first tensor on."""
    import torch
    from changing_shapes_run import Rounds, build, deterministic

    device = torch.device("cuda")
    deterministic()
    torch.cuda.init()
    torch.cuda.memory._record_memory_history(enabled="all", context=None)
    work = Rounds(build(name, size, device), device)
    for _ in range(rounds):
        work.run()
    trace = trace_of(name, torch.cuda.memory._snapshot(), torch.cuda.current_device())
    write_plain(trace, path)
