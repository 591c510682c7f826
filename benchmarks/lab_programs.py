"""A program that lab_replay.py and lab_advice.py watch, in a process of its own.

    python lab_programs.py FOUND.json training --allocator native --rounds 3 --snapshot FILE

training and inference are PyTorch's, on a card. driver_calls asks the driver for memory in each
step, and runs on either driver; so does `trace`, a recorded program on vramkit's pool, which stands
in for training where there is no card.
"""

import time
from argparse import ArgumentParser, Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from lab_runs import PROGRAMS, Found

INFERENCE_TOKENS = (4, 512)
BLOCKS = 16
"""That a step of driver_calls allocates, each of BLOCK bytes, written by a kernel."""
BLOCK = 32 << 20
STEP_NS = 2_000_000


def training(options: Namespace) -> Found:
    import torch
    from changing_shapes_run import Memory, Rounds, deterministic

    device = torch.device("cuda")
    memory = Memory(options.allocator, device)
    deterministic()
    record(torch, options)
    work = Rounds(trained(options.part, device), device)
    times = [work.run() for _ in range(1 + options.rounds)][1:]
    dump(torch, options)
    return Found(times, memory.held(), error=memory.wrong_setting())


def trained(part: float, device: Any) -> Any:
    """With a part of its batch: of the tokens of a step."""
    from torch_programs import llama_training

    sizes = llama_training.SIZES["full"]
    tokens = int(part * sizes.tokens)
    shortest, longest = sizes.lengths
    lengths = min(shortest, tokens), min(longest, tokens)
    return llama_training.LlamaTraining(replace(sizes, tokens=tokens, lengths=lengths), device)


def inference(options: Namespace) -> Found:
    """Of a model that is on the card, or offloaded with a budget."""
    import torch
    from torch_programs import llama

    from vramkit import offload

    record(torch, options)
    sizes = llama.LlamaSizes(24, 4096, 11008, 32, 8, 32_000)
    where = torch.device("cpu" if options.budget else "cuda")
    model = llama.made(sizes, where)
    tokens = torch.zeros(INFERENCE_TOKENS, dtype=torch.int64, device="cuda")

    def passes() -> list[float]:
        times = []
        for _ in range(1 + options.rounds):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            model(tokens)
            torch.cuda.synchronize()
            times.append((time.perf_counter() - begin) * 1e3)
        return times[1:]

    with torch.no_grad():
        if not options.budget:
            times, own = passes(), 0
        else:
            with offload(model, options.budget) as offloaded:
                times = passes()
                own = offloaded.manager.layout.resident_bytes + offloaded.manager.layout.ring_bytes
    dump(torch, options)
    return Found(times, int(torch.cuda.max_memory_reserved()) + own)


def driver_calls(options: Namespace) -> Found:
    import vramkit
    from vramkit.lab.clock import clock_of
    from vramkit.resources import DirectResource

    driver = vramkit.driver.open(options.driver)
    device, clock = driver.device(), clock_of(driver)
    make = vramkit.Pool if options.allocator == "vramkit" else DirectResource
    times = []
    with make(device=device) as memory, device.stream() as stream:
        for _ in range(1 + options.rounds):
            begin = clock.now()
            blocks = [memory.malloc(BLOCK, stream) for _ in range(BLOCKS)]
            for block in blocks:
                device.kernels.fill(block, BLOCK // 4, 1, stream=stream)
            device.kernels.spin(STEP_NS, stream=stream)
            stream.synchronize()
            for block in blocks:
                memory.free(block, BLOCK, stream)
            times.append((clock.now() - begin) * 1e-6)
    return Found(times[1:], BLOCKS * BLOCK)


def trace(options: Namespace) -> Found:
    import vramkit
    from vramkit.lab.player import play
    from vramkit.lab.subjects import SUBJECTS, Room
    from vramkit.lab.traces import read_traces
    from vramkit.lab.traces.programs import as_program

    driver = vramkit.driver.open(options.driver)
    (read,) = read_traces(options.trace)
    program, device = as_program(read), driver.device()
    times, held = [], None
    for _ in range(options.rounds):
        with SUBJECTS["pool"].open(device, Room(program.peak_in_use)) as allocator:
            played = play(program, allocator, device, measure="memory")
        times.append(played.total.wall_ns / 1e6)
        held = played.peak_held
    return Found(times, held)


def record(torch: Any, options: Namespace) -> None:
    if options.snapshot:
        torch.cuda.memory._record_memory_history(max_entries=10_000_000, context=None)


def dump(torch: Any, options: Namespace) -> None:
    if options.snapshot:
        torch.cuda.synchronize()
        torch.cuda.memory._dump_snapshot(str(options.snapshot))


RUNS = {
    "training": training,
    "inference": inference,
    "driver_calls": driver_calls,
    "trace": trace,
}
assert tuple(RUNS) == PROGRAMS


def main() -> None:
    parser = ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("found", type=Path)
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("--driver", choices=("cuda", "sim"), default="cuda")
    parser.add_argument("--allocator", default="native")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--snapshot", type=Path)
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--part", type=float, default=1.0)
    parser.add_argument("--budget", type=int, default=0)
    options = parser.parse_args()
    options.found.write_bytes(msgspec.json.encode(RUNS[options.program](options)))


if __name__ == "__main__":
    main()
