"""Nanoseconds of one allocation and its release from Python: vramkit beside RMM, CuPy and torch.

Each package runs in a process of its own: none finds the card taken by another, and one that is
missing or fails leaves the others their figures.
"""

import gc
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import machine
import msgspec

Loop = Callable[[int], None]


class Row(msgspec.Struct):
    """As the native programs write it; values in nanoseconds a pair."""

    workload: str
    allocator: str
    unit: str = "ns"
    median: float = 0.0
    p10: float = 0.0
    p90: float = 0.0
    values: list[float] = []
    details: dict[str, float] = {}
    error: str = ""


class Report(msgspec.Struct):
    benchmark: str
    device: str
    machine: machine.Machine
    packages: dict[str, str]
    """Version of each package, or why there is none."""
    size: int
    pairs: int
    repetitions: int
    rows: list[Row]


class Part(msgspec.Struct):
    """What the process of one package found."""

    device: str
    version: str
    rows: list[Row]


def empty_loops(size: int) -> Iterator[tuple[str, str, Loop]]:
    """What the loop and two Python calls cost by themselves."""

    def take(nbytes: int, stream: None) -> int:
        return nbytes

    def give(address: int) -> None:
        pass

    def loop(pairs: int) -> None:
        for _ in range(pairs):
            give(take(size, None))

    yield "python/raw", "empty_call", loop


def vramkit_loops(size: int) -> Iterator[tuple[str, str, Loop]]:
    driver = import_module("vramkit.driver")
    pool_module = import_module("vramkit.pool")
    device = driver.open().device(0)
    stream = device.stream()

    class Foreign:
        """A stream of somebody else's, known by its handle alone."""

        def __cuda_stream__(self) -> tuple[int, int]:
            return (0, stream.handle)

    pool = pool_module.Pool(device=device)
    foreign = Foreign()

    def raw(pairs: int) -> None:
        malloc, free = pool.malloc, pool.free
        for _ in range(pairs):
            free(malloc(size, stream))

    def raw_foreign(pairs: int) -> None:
        malloc, free = pool.malloc, pool.free
        for _ in range(pairs):
            free(malloc(size, foreign))

    def buffer(pairs: int) -> None:
        allocate = pool.allocate
        for _ in range(pairs):
            allocate(size, stream=stream)

    yield "python/raw", "vramkit", raw
    yield "python/raw", "vramkit_raw", raw_foreign
    yield "python/object", "vramkit", buffer


def rmm_loops(size: int) -> Iterator[tuple[str, str, Loop]]:
    rmm = import_module("rmm")
    streams = import_module("rmm.pylibrmm.stream")
    stream = streams.Stream()

    def half() -> int:
        free: int = rmm.mr.available_device_memory()[0]
        return free // 2 // 256 * 256

    def card() -> Any:
        return rmm.mr.CudaMemoryResource()

    makers: dict[str, Callable[[], Any]] = {
        "rmm_pool": lambda: rmm.mr.PoolMemoryResource(card(), initial_pool_size=half()),
        "rmm_arena": lambda: rmm.mr.ArenaMemoryResource(card(), arena_size=half()),
        "rmm_async": rmm.mr.CudaAsyncMemoryResource,
    }
    for name, make in makers.items():
        resource = make()

        def raw(pairs: int, resource: Any = resource) -> None:
            allocate, deallocate = resource.allocate, resource.deallocate
            for _ in range(pairs):
                deallocate(allocate(size, stream), size, stream)

        def buffer(pairs: int, resource: Any = resource) -> None:
            make_buffer = rmm.DeviceBuffer
            for _ in range(pairs):
                make_buffer(size=size, stream=stream, mr=resource)

        yield "python/raw", name, raw
        yield "python/object", name, buffer


def cupy_loops(size: int) -> Iterator[tuple[str, str, Loop]]:
    cupy = import_module("cupy")
    cupy.zeros(1)

    def default(pairs: int) -> None:
        alloc = cupy.cuda.alloc
        for _ in range(pairs):
            alloc(size)

    yield "python/object", "cupy_pool", default
    asynchronous = cupy.cuda.MemoryAsyncPool()

    def stream_ordered(pairs: int) -> None:
        malloc = asynchronous.malloc
        for _ in range(pairs):
            malloc(size)

    yield "python/object", "cupy_async", stream_ordered


def torch_loops(size: int) -> Iterator[tuple[str, str, Loop]]:
    torch = import_module("torch")
    torch.zeros(1, device="cuda")
    device = torch.device("cuda", 0)

    def empty(pairs: int) -> None:
        make, kind = torch.empty, torch.uint8
        for _ in range(pairs):
            make(size, dtype=kind, device=device)

    def raw(pairs: int) -> None:
        alloc = torch.cuda.caching_allocator_alloc
        delete = torch.cuda.caching_allocator_delete
        for _ in range(pairs):
            delete(alloc(size))

    yield "python/object", "torch", empty
    yield "python/raw", "torch", raw


PACKAGES: dict[str, tuple[tuple[str, ...], Callable[[int], Iterator[tuple[str, str, Loop]]]]] = {
    # Package -> names of its distributions, its loops.
    "python": ((), empty_loops),
    "vramkit": (("vramkit",), vramkit_loops),
    "rmm": (("rmm-cu13", "rmm-cu12", "rmm"), rmm_loops),
    "cupy": (("cupy-cuda13x", "cupy-cuda12x", "cupy"), cupy_loops),
    "torch": (("torch",), torch_loops),
}


def measure(workload: str, allocator: str, loop: Loop, pairs: int, repetitions: int) -> Row:
    loop(max(1, pairs // 20))
    values = []
    for _ in range(repetitions):
        gc.collect()
        gc.disable()
        start = time.perf_counter_ns()
        loop(pairs)
        values.append((time.perf_counter_ns() - start) / pairs)
        gc.enable()
    deciles = statistics.quantiles(values, n=10, method="inclusive") if repetitions > 1 else []
    return Row(
        workload=workload,
        allocator=allocator,
        median=statistics.median(values),
        p10=deciles[0] if deciles else values[0],
        p90=deciles[-1] if deciles else values[0],
        values=values,
    )


def installed_version(distributions: tuple[str, ...]) -> str:
    for name in distributions:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "unknown"


def measure_package(name: str, options: Namespace) -> Part:
    distributions, loops = PACKAGES[name]
    rows = [
        measure(workload, allocator, loop, options.pairs, options.repetitions)
        for workload, allocator, loop in loops(options.size)
    ]
    found = sys.version.split()[0] if name == "python" else installed_version(distributions)
    device = ""
    if name == "vramkit":
        device = import_module("vramkit.driver").open().device(0).name
    return Part(device=device, version=found, rows=rows)


def run_package(name: str, options: Namespace) -> Part | str:
    """What the process of the package wrote, or why it wrote nothing."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "part.json"
        command = [sys.executable, __file__, "--package", name, "--output", str(path)]
        command += ["--size", str(options.size), "--pairs", str(options.pairs)]
        command += ["--repetitions", str(options.repetitions)]
        try:
            ended = subprocess.run(
                command, capture_output=True, text=True, timeout=options.time_limit, check=False
            )
        except subprocess.TimeoutExpired:
            return f"did not end within {options.time_limit} s"
        if ended.returncode == 0:
            return msgspec.json.decode(path.read_bytes(), type=Part)
        last = (ended.stderr.strip().splitlines() or [f"status {ended.returncode}"])[-1]
        return f"missing: {last}" if last.startswith("ModuleNotFoundError") else last


def run_all(options: Namespace) -> Report:
    report = Report(
        benchmark="python_pairs",
        device="",
        machine=machine.collect(),
        packages={},
        size=options.size,
        pairs=options.pairs,
        repetitions=options.repetitions,
        rows=[],
    )
    for name in PACKAGES:
        part = run_package(name, options)
        if isinstance(part, str):
            report.packages[name] = part
            print(f"{name}: {part}", flush=True)
        else:
            report.packages[name] = part.version
            report.device = report.device or part.device
            report.rows += part.rows
            for row in part.rows:
                spread = f"{row.p10:,.0f} to {row.p90:,.0f}"
                print(f"{row.allocator:12} {row.workload:14} {row.median:8,.0f} ns ({spread})")
        options.output.write_bytes(msgspec.json.encode(report))
    return report


def parse() -> Namespace:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True, help="result file")
    parser.add_argument("--size", type=int, default=4096, help="bytes (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=200_000, help="in one repetition")
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--time-limit", type=float, default=60, help="seconds for one package")
    parser.add_argument("--package", choices=PACKAGES, help="this one alone, in this process")
    return parser.parse_args()


def main() -> None:
    options = parse()
    if options.package is None:
        run_all(options)
    else:
        part = measure_package(options.package, options)
        options.output.write_bytes(msgspec.json.encode(part))


if __name__ == "__main__":
    main()
