"""Runs scenarios in processes that form a group: one line of JSON asks, one line answers.

PyTorch is imported once; each rank of each scenario is a fork of this process, with a simulated GPU
of its own. A rank that does not end in time is killed, and says so.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import tempfile
import time
import traceback
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from weights.programs import rank_scenarios

LIMIT = 60.0
"""Seconds for a scenario; on a busy machine it takes two."""
GROUP_TIMEOUT = 20.0


def run_rank(rank: int, size: int, name: str, settings: dict[str, Any], folder: str) -> Any:
    # No thread of this process has computed yet: a fork would not have it.
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(f"{folder}/store", size),
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=settings.pop("timeout", GROUP_TIMEOUT)),
    )
    try:
        return getattr(rank_scenarios, name)(rank, size, folder, **settings)
    finally:
        dist.destroy_process_group()


def start(rank: int, size: int, name: str, settings: dict[str, Any], folder: str) -> Any:
    """The process, and a pipe on which its answer comes."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid:
        os.close(theirs)
        return pid, ours
    status = 1
    try:
        try:
            answer = {"ok": run_rank(rank, size, name, dict(settings), folder)}
        except BaseException as error:
            text = "".join(traceback.format_exception(error))
            answer = {"error": type(error).__name__, "message": str(error), "trace": text}
        os.write(theirs, json.dumps(answer).encode())
        status = 0
    finally:
        os._exit(status)


def run(name: str, size: int, settings: dict[str, Any]) -> list[Any]:
    with tempfile.TemporaryDirectory() as folder:
        ranks = [start(rank, size, name, settings, folder) for rank in range(size)]
        until = time.monotonic() + LIMIT
        answers = []
        for pid, pipe in ranks:
            text = b""
            while True:
                if not select.select([pipe], [], [], max(0, until - time.monotonic()))[0]:
                    os.kill(pid, signal.SIGKILL)
                    text = json.dumps({"error": "Hang", "message": "it did not end"}).encode()
                    break
                if not (more := os.read(pipe, 1 << 16)):
                    break
                text += more
            os.close(pipe)
            _, status = os.waitpid(pid, 0)
            answers.append(json.loads(text) if text else {"ended": status})
        return answers


def main() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(run(asked["name"], asked["size"], asked["settings"])), flush=True)


if __name__ == "__main__":
    main()
