"""Traces out of PyTorch's memory snapshots (torch.cuda.memory._dump_snapshot).

A snapshot is a pickle, and a pickle can run any code. These consist of numbers, texts, lists and
dictionaries only, so everything that needs an import is refused.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any, NoReturn

from traces import Trace, TraceBuilder, TraceError

RECORD = "torch.cuda.memory._record_memory_history()"


class PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(
            f"it needs {module}.{name}; a snapshot has only numbers, texts, lists and dictionaries"
        )

    def persistent_load(self, identity: object) -> NoReturn:
        raise pickle.UnpicklingError("it refers to objects outside of the file")


def read_snapshot(path: Path, content: bytes) -> list[Trace]:
    """One trace for each device that has events. Raises TraceError."""
    try:
        snapshot = PlainUnpickler(io.BytesIO(content)).load()
    except Exception as error:  # a damaged pickle raises nearly anything
        raise TraceError(f"{path}: not a PyTorch memory snapshot: {error}") from error
    try:
        devices = snapshot["device_traces"]
        traces = [
            device_trace(f"{path.stem}:{device}", events, living_blocks(snapshot, device))
            for device, events in enumerate(devices)
            if events
        ]
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise TraceError(
            f"{path}: not a PyTorch memory snapshot: {type(error).__name__}: {error}"
        ) from error
    except ValueError as error:
        raise TraceError(f"{path}: {error}") from error
    if not traces:
        raise TraceError(
            f"{path}: the snapshot has no events; call {RECORD} at the start of the program"
        )
    return traces


def living_blocks(snapshot: dict[str, Any], device: int) -> dict[int, tuple[int, int]]:
    """Bytes and stream, by address, of what was in use when the snapshot was taken."""
    return {
        block["address"]: (block["requested_size"], segment["stream"])
        for segment in snapshot.get("segments", [])
        if segment["device"] == device
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }


def device_trace(
    name: str, events: list[dict[str, Any]], living: dict[int, tuple[int, int]]
) -> Trace:
    """The recording may have begun late or dropped its oldest events: what is freed or left
    without having been allocated in it was in use from the start.

    A block is free for the program at free_requested; that its work on other streams ends later
    (free_completed) is not part of a trace.
    """
    changes = [event for event in events if event["action"] in ("alloc", "free_requested")]
    seen: set[int] = set()
    before: dict[int, tuple[int, int]] = {}
    for event in changes:
        address = event["addr"]
        if event["action"] == "alloc":
            seen.add(address)
        elif address in seen:
            seen.remove(address)
        else:
            before[address] = event["size"], event["stream"]
    builder = TraceBuilder(name)
    for address, (size, stream) in before.items():
        builder.allocate(address, size, stream)
    for address, (size, stream) in living.items():
        if address not in seen:
            # Another block may have had its address before, so the key is another one.
            builder.allocate(("left", address), size, stream)
    for event in changes:
        if event["action"] == "alloc":
            builder.allocate(event["addr"], event["size"], event["stream"])
        else:
            builder.free(event["addr"])
    return builder.build()
