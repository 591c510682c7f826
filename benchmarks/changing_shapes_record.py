"""The allocations of a program, as PyTorch's allocator records them, as a trace."""

from pathlib import Path
from typing import Any

from torch_snapshot import device_trace, living_blocks
from traces import Trace, write_trace


def trace_of(name: str, snapshot: dict[str, Any], device: int) -> Trace:
    events = snapshot["device_traces"][device]
    return device_trace(name, events, living_blocks(snapshot, device))


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
    write_trace(trace, path)
