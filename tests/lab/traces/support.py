"""Files of traces, and what is in a trace in a form that tests can name."""

from __future__ import annotations

import pickle
from pathlib import Path

from vramkit.lab.traces import Trace
from vramkit.lab.traces.trace import Kind

SEGMENT = 1 << 20
RMM_HEADER = "Thread,Time,Action,Pointer,Size,Stream\n"
RECORD_HEADER = "# vramkit trace 2\n@7,1000,python train.py, and more\n"


def written(folder: Path, content: str | bytes, name: str = "some.csv") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def events(trace: Trace) -> list[tuple[str, int, int, int]]:
    """Kind, what, stream and thread of each."""
    columns = zip(trace.kinds, trace.what, trace.streams, trace.threads, strict=True)
    return [(Kind(kind).name.lower(), *rest) for kind, *rest in columns]


def event(action: str, address: int, size: int, stream: int = 0, time_us: int = 0) -> dict:
    """One of PyTorch's."""
    place = {"addr": address, "size": size, "stream": stream, "frames": []}
    return {"action": action, **place, "time_us": time_us}


def snapshot(*devices: list[dict], **left: int) -> dict:
    """Of these events; `_address=size` are blocks of device 0 that are in use at the end."""
    blocks = [
        {
            "address": int(address[1:]),
            "size": -(-size // 512) * 512,
            "requested_size": size,
            "state": "active_allocated",
        }
        for address, size in left.items()
    ]
    free = {"address": 1, "size": 512, "requested_size": 0, "state": "inactive"}
    segment = {"device": 0, "stream": 0, "total_size": SEGMENT, "blocks": [*blocks, free]}
    return {"segments": [segment], "device_traces": list(devices)}


def snapshot_file(folder: Path, content: object) -> Path:
    return written(folder, pickle.dumps(content), "torch.pickle")
