"""What a card shows of managed memory: before it is touched, after, and when it has left.

    python benchmarks/managed_memory.py --driver cuda      # 6 GiB; results/managed_memory_h200.json
    python benchmarks/managed_memory.py --driver sim       # 12 GiB; results/managed_memory_sim.json
    python benchmarks/managed_memory.py publish            # the tables of docs/sharing-model.md

A study saw `nvidia-smi` show 1 GiB for a program with 12 GiB of managed memory that ran at full
speed, and guessed why. Here each moment has NVML's figure for the process and for the card,
cuMemGetInfo, and the rate of a sweep over all of the memory. On a card there is also a part whose
pages are swept in random order. Below 8 GiB on a card: more than it has free can hang it.
"""

import ctypes
import os
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable
from ctypes import byref, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path
from typing import Any

import machine
import msgspec
import programs

from vramkit.lab.sharing.claims import Managed

GIB = 1 << 30
MOST = 8 * GIB
SHUFFLED = 2 * GIB  # at most, in random order; pages of 4 KiB, a power of two of them
MULTIPLIER = 0x9E3779B97F4A7C15  # odd: each page has its turn
HOST = -1  # as a device
GLOBAL = 1
DOCUMENT = programs.ROOT / "docs" / "sharing-model.md"
IDLE, NATIVE = "context only", "cuMemAlloc"
UNTOUCHED, SWEPT = "managed, not touched", "managed, swept once"
EVICTED = "managed, moved to the host"
EVICTED_SHUFFLED = "managed, moved to the host; pages in random order"
SHUFFLED_AGAIN = "managed, on the card; pages in random order"
BEGIN = "<!-- Written by benchmarks/managed_memory.py publish -->"
END = "<!-- End of what is written -->"


class Moment(msgspec.Struct, frozen=True):
    """Bytes; `process` and `card`: by NVML, `taken`: by cuMemGetInfo since before the memory was
    allocated. None: NVML is not there, or does not know the process, as in a container."""

    what: str
    process: int | None
    card: int | None
    taken: int
    sweep_gb_s: float | None
    """Of the sweep that came next."""


class Report(msgspec.Struct, frozen=True):
    benchmark: str
    simulated: bool
    gpu: str
    machine: machine.Machine
    bytes: int
    moments: list[Moment]


class Card:
    """The calls, on the primary context of the first card, and NVML where it is there."""

    def __init__(self, library: str, kernels: Path) -> None:
        self._cuda = ctypes.CDLL(library)
        self.call("cuInit", 0)
        context = c_void_p()
        self.call("cuDevicePrimaryCtxRetain", byref(context), 0)
        self.call("cuCtxSetCurrent", context)
        self._sweep = self._kernel(kernels, b"vk_sweep")
        self._shuffled: c_void_p | None = None
        """The simulated GPU has no kernels but its own."""
        if not hasattr(self._cuda, "simReset"):
            own = Path(__file__).with_suffix(".ptx")
            self._shuffled = self._kernel(own, b"shuffled_sweep")
        count = c_int()
        self.call("cuDeviceGetAttribute", byref(count), 16, 0)  # multiprocessors
        self._grid = count.value * 8
        self._events = [c_void_p(), c_void_p()]
        for event in self._events:
            self.call("cuEventCreate", byref(event), c_uint(0))
        name = ctypes.create_string_buffer(100)
        self.call("cuDeviceGetName", name, 100, 0)
        self.name = name.value.decode()
        self._nvml = self._open_nvml()
        self._before = self.free()

    def call(self, name: str, *arguments: object) -> None:
        result = getattr(self._cuda, name)(*arguments)
        if result != 0:
            sys.exit(f"{name} returned error {result}")

    def _kernel(self, path: Path, name: bytes) -> c_void_p:
        module, function = c_void_p(), c_void_p()
        self.call("cuModuleLoadData", byref(module), path.read_bytes() + b"\0")
        self.call("cuModuleGetFunction", byref(function), module, name)
        return function

    def _open_nvml(self) -> Any:
        if hasattr(self._cuda, "simReset"):
            return None  # it would show another card
        uuid = (ctypes.c_ubyte * 16)()
        self.call("cuDeviceGetUuid_v2", uuid, 0)
        try:
            import pynvml

            from vramkit.share.daemon.nvml import uuid_text

            pynvml.nvmlInit()
            return pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid_text(bytes(uuid)))
        except Exception as error:
            print(f"no NVML: {error}", file=sys.stderr)
            return None

    def free(self) -> int:
        free, total = c_size_t(), c_size_t()
        self.call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value

    def look(self, what: str, sweep_gb_s: float | None = None) -> Moment:
        process = card = None
        if self._nvml is not None:
            module, handle = self._nvml
            card = int(module.nvmlDeviceGetMemoryInfo(handle).used)
            for each in module.nvmlDeviceGetComputeRunningProcesses(handle):
                if each.pid == os.getpid():
                    process = each.usedGpuMemory
        return Moment(what, process, card, self._before - self.free(), sweep_gb_s)

    def sweep(self, address: c_uint64, nbytes: int) -> float:
        """GB/s of the memory, each word read and written once."""
        return self._timed(self._sweep, nbytes, address, c_uint64(nbytes // 4), c_uint(1))

    def sweep_shuffled(self, address: c_uint64, nbytes: int) -> float:
        """The same of the first part of it, a power of two of pages in random order."""
        pages = 1 << (min(nbytes, SHUFFLED) // 4096).bit_length() - 1
        values = (address, c_uint64(pages), c_uint64(MULTIPLIER))
        return self._timed(self._shuffled, pages * 4096, *values)

    @property
    def can_shuffle(self) -> bool:
        return self._shuffled is not None

    def _timed(self, kernel: c_void_p | None, nbytes: int, *values: Any) -> float:
        pointers = (c_void_p * 3)(*(ctypes.addressof(each) for each in values))
        shape = [c_uint(each) for each in (self._grid, 1, 1, 256, 1, 1, 0)]
        self.call("cuEventRecord", self._events[0], None)
        self.call("cuLaunchKernel", kernel, *shape, None, pointers, None)
        self.call("cuEventRecord", self._events[1], None)
        self.call("cuCtxSynchronize")
        milliseconds = c_float()
        self.call("cuEventElapsedTime", byref(milliseconds), self._events[0], self._events[1])
        return nbytes / milliseconds.value / 1e6

    def wait(self) -> None:
        self.call("cuCtxSynchronize")


def measure(card: Card, nbytes: int) -> list[Moment]:
    address = c_uint64()
    moments = [card.look(IDLE)]

    def moment(what: str, sweep: Callable[[c_uint64, int], float] = card.sweep) -> None:
        before = card.look(what)
        moments.append(msgspec.structs.replace(before, sweep_gb_s=sweep(address, nbytes)))

    def evict() -> None:
        card.call("cuMemPrefetchAsync", address, c_size_t(nbytes), c_int(HOST), None)
        card.wait()

    card.call("cuMemAlloc_v2", byref(address), c_size_t(nbytes))
    moment(NATIVE)
    card.call("cuMemFree_v2", address)
    card.call("cuMemAllocManaged", byref(address), c_size_t(nbytes), c_uint(GLOBAL))
    moment(UNTOUCHED)
    moment(SWEPT)
    evict()
    moment(EVICTED)
    moment("managed, swept again")
    if card.can_shuffle:
        evict()
        moment(EVICTED_SHUFFLED, card.sweep_shuffled)
        moment(SHUFFLED_AGAIN, card.sweep_shuffled)
    card.call("cuMemFree_v2", address)
    moments.append(card.look("freed"))
    return moments


def managed(report: Report) -> Managed:
    """For the study's claims."""
    found = {each.what: each for each in report.moments}
    native, first, later = (
        (found[what].sweep_gb_s or 0.0) * 1e9 for what in (NATIVE, UNTOUCHED, SWEPT)
    )
    shown = None
    for kind in ("card", "process"):
        idle, swept = (getattr(found[what], kind) for what in (IDLE, SWEPT))
        if idle is not None and swept is not None:
            shown = max(0, swept - idle)
    return Managed(report.gpu, report.bytes, native, first, later, shown)


def answer(report: Report) -> str:
    """The study's question, by the figures."""
    found = {each.what: each for each in report.moments}
    idle, native = found[IDLE], found[NATIVE]
    stages = [found[name] for name in (UNTOUCHED, SWEPT, EVICTED)]

    def parts(values: list[int], base: int) -> str:
        before, swept, evicted = (f"{(value - base) / report.bytes:.0%}" for value in values)
        return f"{before} before it is touched, {swept} after a sweep, {evicted} when evicted"

    lines = [
        f"Of {gib(report.bytes)} of managed memory cuMemGetInfo counts "
        f"{parts([each.taken for each in stages], idle.taken)}."
    ]
    for kind in ("process", "card"):
        base, *shown = (getattr(each, kind) for each in (idle, *stages))
        if base is not None and None not in shown:
            lines.append(f"NVML shows for the {kind}: {parts(shown, base)}.")
            lines.append(conclusion(kind, *((each - base) / report.bytes for each in shown[1:])))
    lines.append(
        f"What is on the card is swept at {rate(stages[1])} GB/s, memory of cuMemAlloc at "
        f"{rate(native)} GB/s, and the sweep that has to bring it back "
        f"goes at {rate(stages[2])} GB/s."
    )
    if EVICTED_SHUFFLED in found:
        lines.append(
            f"In random order of pages it comes back at {rate(found[EVICTED_SHUFFLED])} GB/s; "
            f"what is there already is swept in that order at {rate(found[SHUFFLED_AGAIN])} GB/s."
        )
    return " ".join(lines)


def conclusion(kind: str, counted: float, evicted: float) -> str:
    """`counted`: the part of what is on the card that NVML shows; `evicted`: of what has left."""
    if counted > 0.9:
        too = ", and what has left it too" if evicted > 0.9 else ""
        return f"So for the {kind} NVML counts what is on the card{too}."
    if counted < 0.1:
        program = ": one that is shown with 1 GiB may have all of its own on the card"
        return (
            f"So for the {kind} NVML does not count managed memory"
            f"{program if kind == 'process' else ''}."
        )
    return f"So for the {kind} NVML counts a part of what is on the card."


def rate(moment: Moment) -> str:
    if moment.sweep_gb_s is None:
        return "-"
    return f"{moment.sweep_gb_s:,.{0 if moment.sweep_gb_s >= 100 else 1}f}"


def gib(value: int | None) -> str:
    return "-" if value is None else f"{value / GIB:.2f} GiB"


def markdown(report: Report) -> str:
    on = "**Simulated** (profile `h200`)" if report.simulated else report.gpu
    lines = [
        f"{on}, {report.machine.date[:10]}; {gib(report.bytes)}.",
        "",
        "| moment | NVML: process | NVML: card | cuMemGetInfo: taken | sweep that follows, GB/s |",
        "|---|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {each.what} | {gib(each.process)} | {gib(each.card)} | {gib(each.taken)} "
        f"| {rate(each)} |"
        for each in report.moments
    ]
    return "\n".join([*lines, "", answer(report)])


def result_file(driver: str) -> Path:
    return programs.RESULTS / f"managed_memory_{'sim' if driver == 'sim' else 'h200'}.json"


def document_tables() -> str:
    """Those of both drivers, as far as they are measured."""
    tables = [
        markdown(msgspec.json.decode(path.read_bytes(), type=Report))
        for path in map(result_file, ("cuda", "sim"))
        if path.is_file()
    ]
    return "\n\n".join(tables)


def written(document: str, tables: str) -> str:
    before, mark, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not mark or not end:
        sys.exit(f"{DOCUMENT} has no {BEGIN} ... {END}")
    return f"{before}{BEGIN}\n\n{tables}\n\n{END}{after}"


def publish() -> int:
    DOCUMENT.write_text(written(DOCUMENT.read_text("utf-8"), document_tables()), "utf-8")
    return 0


def parse() -> Namespace:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("measure", "publish"), default="measure")
    parser.add_argument("--driver", choices=("cuda", "sim"), default="cuda")
    parser.add_argument("--gib", type=float, help="of managed memory; default: 6, simulated: 12")
    programs.add_files(parser, "")
    parser.add_argument("--json", type=Path, help="result file; default: in results")
    options = parser.parse_args()
    options.gib = options.gib or (12 if options.driver == "sim" else 6)
    if options.driver == "cuda" and options.gib * GIB > MOST:
        parser.error(f"--gib is {options.gib:g}; on a card it may be 8 at most")
    return options


def main() -> int:
    options = parse()
    if options.what == "publish":
        return publish()
    simulated = options.driver == "sim"
    library = "libcuda.so.1"
    if simulated:
        programs.require_files(options.sim_library)
        library = str(options.sim_library)
        # Sizes and times are all that is looked at.
        os.environ["VRAMKIT_SIM"] = "profile=h200,data=off,checker=off"
    card = Card(library, options.kernels)
    nbytes = int(options.gib * GIB) // 4096 * 4096
    report = Report(
        benchmark="managed_memory",
        simulated=simulated,
        gpu=card.name,
        machine=machine.collect(),
        bytes=nbytes,
        moments=measure(card, nbytes),
    )
    programs.publish(report, markdown(report), options.json or result_file(options.driver))
    return 0


if __name__ == "__main__":
    sys.exit(main())
