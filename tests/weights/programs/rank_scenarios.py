"""What a rank does in each scenario of ranks.py. Each returns what JSON can say of it."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from weights.models import example

import vramkit
import vramkit.driver
from vramkit.weights.gather import SHARE, share_chunks

MIB = 1 << 20
SMALL = {"keep_below": 4096, "ring": 2 * MIB}


def world() -> Any:
    return dist.group.WORLD


def offloaded(model: Any, budget: Any = "4.2MiB", **settings: Any) -> Any:
    return vramkit.offload(model, budget, group=world(), **{**SMALL, **settings})


def simulator() -> Any:
    sim = vramkit.driver.open("sim").sim
    assert sim is not None
    return sim


def digest(value: Any) -> str:
    return hashlib.sha256(value.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def weights_of(model: Any) -> dict[str, Any]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def mapping_of(address: int) -> dict[str, int]:
    """Of the memory at an address: its inode, and the part of it that counts for this process."""
    found: dict[str, int] = {}
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if head := re.match(r"([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ (\d+)", line):
            begin, end, inode = int(head[1], 16), int(head[2], 16), int(head[3])
            inside = begin <= address < end
            if inside:
                found["inode"], found["nbytes"] = inode, end - begin
        elif inside and (size := re.match(r"(Rss|Pss): +(\d+) kB", line)):
            found[size[1]] = 1024 * int(size[2])
    return found


def left_behind() -> dict[str, Any]:
    """Nothing, after a scenario that has closed everything."""
    live = simulator().live_objects()
    kept = {"contexts", "modules"}
    return {
        "reports": [str(report) for report in simulator().reports()],
        "live": {kind: n for kind, n in live.items() if n and kind not in kept},
    }


def expected_bytes(layout: Any, rank: int, size: int) -> int:
    """Of a pass, over this rank's link."""
    return sum(
        chunk.stored
        for group, resident in zip(layout.groups, layout.resident, strict=True)
        if not resident
        for chunk in share_chunks(group.nbytes, rank, size, SHARE)
    )


# Scenarios


def infer(rank: int, size: int, folder: str, family: str, tokens: int = 4) -> Any:
    made = example(family)
    before = weights_of(made.model)
    with torch.no_grad():
        alone = made.model(**made.inputs).logits
        written = made.model.generate(**generated(made), max_new_tokens=tokens)
        with offloaded(made.model) as o:
            logits = [made.model(**made.inputs).logits for _ in range(3)]
            start = o.stats()
            last = made.model(**made.inputs).logits
            steady = o.stats()
            again = made.model.generate(**generated(made), max_new_tokens=tokens)
            layout = o.manager.layout
            address = o._store.addresses[0]
            dist.barrier()  # all have read and written it
            memory = mapping_of(address)
            dist.barrier()  # all have looked
            answer = {
                "same": [torch.equal(alone, each) for each in (*logits, last)],
                "generated": torch.equal(written, again),
                "digest": digest(last),
                "pass_bytes": steady.copied_bytes - start.copied_bytes,
                "pass_copies": steady.copies - start.copies,
                "misses": steady.misses - start.misses,
                "expected": expected_bytes(layout, rank, size),
                "streamed": layout.streamed_bytes,
                "groups": sum(not each for each in layout.resident),
                "staging": o.manager.staging_bytes,
                "sent": o.manager.sent_bytes,
                "host_bytes": o._store.nbytes,
                "memory": memory,
                "report": str(o.report()),
            }
    answer["restored"] = equal(before, weights_of(made.model))
    return answer | left_behind()


def generated(made: Any) -> dict[str, Any]:
    """Inputs of generate()."""
    return {key: value for key, value in made.inputs.items() if key != "decoder_input_ids"}
