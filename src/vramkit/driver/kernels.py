"""The built-in kernels: work for a card, the same on a real and on a simulated one."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

from vramkit import _core
from vramkit.driver.memory import Memory
from vramkit.driver.types import Span, SupportsCudaStream, size

if TYPE_CHECKING:
    from vramkit.driver.device import Device

Words = Memory | Span | int


class Kernels:
    """Kernels of a device, loaded on first use. All of them run in the order of `stream`.

    Memory kernels take 32-bit words and by default enough blocks to fill the card.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._epoch = -1
        self._module = 0
        self._blocks = 0
        self._functions: dict[str, int] = {}

    def spin(
        self, nanoseconds: int, *, stream: SupportsCudaStream, blocks: int = 1, threads: int = 32
    ) -> None:
        """Keep `blocks` blocks of the card busy for a time and touch no memory."""
        self._launch("vk_spin", stream, blocks, threads, size(nanoseconds, "nanoseconds"))

    def fill(
        self,
        dst: Words,
        count: int,
        value: int,
        *,
        stream: SupportsCudaStream,
        blocks: int | None = None,
        threads: int = 256,
    ) -> None:
        """Set `count` words to `value`."""
        if not 0 <= value < 1 << 32:
            raise ValueError(f"value is {value}; it must fit into 32 bits without a sign")
        self._launch("vk_fill", stream, blocks, threads, words(dst, count), count, value)

    def add(
        self,
        dst: Words,
        a: Words,
        b: Words,
        count: int,
        *,
        stream: SupportsCudaStream,
        blocks: int | None = None,
        threads: int = 256,
    ) -> None:
        """dst = a + b, word by word, modulo 2**32."""
        places = words(dst, count), words(a, count), words(b, count)
        self._launch("vk_add", stream, blocks, threads, *places, count)

    def sweep(
        self,
        data: Words,
        count: int,
        rounds: int = 1,
        *,
        stream: SupportsCudaStream,
        blocks: int | None = None,
        threads: int = 256,
    ) -> None:
        """Read and write each word `rounds` times: bound by the card's memory."""
        rounds = size(rounds, "rounds")
        self._launch("vk_sweep", stream, blocks, threads, words(data, count), count, rounds)

    def checksum(
        self,
        src: Words,
        count: int,
        out: Words,
        *,
        stream: SupportsCudaStream,
        blocks: int | None = None,
        threads: int = 256,
    ) -> None:
        """Add the sum of `count` words to the 64-bit word at `out`, modulo 2**64."""
        places = words(src, count), count, words(out, 2)
        self._launch("vk_checksum", stream, blocks, threads, *places)

    def _launch(
        self,
        name: str,
        stream: SupportsCudaStream,
        blocks: int | None,
        threads: int,
        *arguments: int,
    ) -> None:
        device = self._device
        function = self._function(name)
        grid = self._blocks if blocks is None else size(blocks, "blocks")
        block = size(threads, "threads")
        with device.recorded(name, "compute", stream, 0):
            _core.launch(device, function, grid, block, stream, list(arguments))

    def _function(self, name: str) -> int:
        """Loaded once, and again after a reset of the simulated GPU."""
        if self._epoch != self._device.epoch:
            image = files("vramkit.driver").joinpath("kernels.ptx").read_bytes()
            self._module = _core.module_load(self._device, image)
            self._functions = {}
            self._blocks = self._device.multiprocessors * 8
            self._epoch = self._device.epoch
        if name not in self._functions:
            self._functions[name] = _core.module_function(self._device, self._module, name)
        return self._functions[name]


def words(place: Words, count: int) -> int:
    """The address of `count` words, checked against the size where that is known."""
    count = size(count, "count")
    if isinstance(place, int):
        return place
    if count * 4 > place.nbytes:
        raise ValueError(f"{count} words take {count * 4} bytes; there are {place.nbytes}")
    return place.address
