"""The built-in kernels: work for a card, the same on a real and on a simulated one."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

from vramkit import _core
from vramkit.driver.operands import Addressed, addressed
from vramkit.driver.types import Owner, SupportsCudaStream, integer, size

if TYPE_CHECKING:
    from vramkit.driver.device import Device


class Kernels(Owner):
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
        """Run `blocks` blocks that spin for a time and access no memory."""
        self._launch("vk_spin", stream, blocks, threads, size(nanoseconds, "nanoseconds"))

    def fill(
        self,
        dst: Addressed,
        count: int,
        value: int,
        *,
        stream: SupportsCudaStream,
        blocks: int | None = None,
        threads: int = 256,
    ) -> None:
        """Set `count` words to `value`."""
        value = integer(value, "value", 0, 2**32 - 1)
        count = size(count, "count")
        self._launch("vk_fill", stream, blocks, threads, words(dst, count, "dst"), count, value)

    def add(
        self,
        dst: Addressed,
        a: Addressed,
        b: Addressed,
        count: int,
        *,
        stream: SupportsCudaStream,
        blocks: int | None = None,
        threads: int = 256,
    ) -> None:
        """dst = a + b, word by word, modulo 2**32."""
        count = size(count, "count")
        places = words(dst, count, "dst"), words(a, count, "a"), words(b, count, "b")
        self._launch("vk_add", stream, blocks, threads, *places, count)

    def sweep(
        self,
        data: Addressed,
        count: int,
        rounds: int = 1,
        *,
        stream: SupportsCudaStream,
        blocks: int | None = None,
        threads: int = 256,
    ) -> None:
        """Read and write each word `rounds` times: bound by the card's memory."""
        count, rounds = size(count, "count"), size(rounds, "rounds")
        self._launch("vk_sweep", stream, blocks, threads, words(data, count, "data"), count, rounds)

    def checksum(
        self,
        src: Addressed,
        count: int,
        out: Addressed,
        *,
        stream: SupportsCudaStream,
        blocks: int | None = None,
        threads: int = 256,
    ) -> None:
        """Add the sum of `count` words to the 64-bit word at `out`, modulo 2**64."""
        count = size(count, "count")
        places = words(src, count, "src"), count, words(out, 2, "out")
        self._launch("vk_checksum", stream, blocks, threads, *places)

    def unpack_bf16(
        self,
        dst: Addressed,
        packed: Addressed,
        count: int,
        exceptions: int,
        *,
        stream: SupportsCudaStream,
        blocks: int | None = None,
        threads: int = _core.UNPACK_THREADS,
    ) -> None:
        """Decode a packed chunk of `count` weights (vramkit.weights.packing) to `dst`.

        Two kernels, the second of them only if there are exceptions: it writes them over what the
        first one made of them. Until both are done, `dst` may hold wrong weights.
        """
        count = integer(count, "count", 1, _core.MOST_WEIGHTS_IN_CHUNK)
        exceptions = integer(exceptions, "exceptions", 0, count)
        out = wide(dst, 2 * count, f"{count} weights take", "dst")
        chunk = f"{count} packed weights with {exceptions} exceptions take"
        source = wide(packed, _core.packed_bytes(count, exceptions), chunk, "packed")
        grid = _core.unpack_blocks(count) if blocks is None else blocks
        self._launch("vk_unpack_bf16", stream, grid, threads, out, source, count)
        if exceptions > 0:
            grid = _core.patch_blocks(exceptions) if blocks is None else blocks
            places = out, source, count, exceptions
            self._launch("vk_patch_bf16", stream, grid, threads, *places)

    def _launch(
        self,
        name: str,
        stream: SupportsCudaStream,
        blocks: int | None,
        threads: int,
        *arguments: int,
    ) -> None:
        device = self._device
        function = self.function(name)
        grid = self._blocks if blocks is None else integer(blocks, "blocks", 0, 2**32 - 1)
        block = integer(threads, "threads", 0, 2**32 - 1)
        with device.recorded(name, "compute", stream, 0):
            _core.launch(device, function, grid, block, stream, list(arguments))

    def function(self, name: str) -> int:
        """The driver's handle of a kernel, for native code that launches it. Loaded once, and again
        after a reset of the simulated GPU."""
        if self._epoch != self._device.epoch:
            image = files("vramkit.driver").joinpath("kernels.ptx").read_bytes()
            self._module = _core.module_load(self._device, image)
            self._functions = {}
            self._blocks = self._device.multiprocessors * 8
            self._epoch = self._device.epoch
        if name not in self._functions:
            self._functions[name] = _core.module_function(self._device, self._module, name)
        return self._functions[name]


def words(place: Addressed, count: int, what: str) -> int:
    """The address of `count` words, checked against the size if that is known."""
    address, nbytes = addressed(place, what)
    if nbytes is not None and count * 4 > nbytes:
        raise ValueError(f"{count} words take {count * 4} bytes; {what} has {nbytes}")
    return address


def wide(place: Addressed, needed: int, why: str, what: str) -> int:
    """The address of `needed` bytes that are read or written 16 at a time."""
    address, nbytes = addressed(place, what)
    if nbytes is not None and needed > nbytes:
        raise ValueError(f"{why} {needed} bytes; {what} has {nbytes}")
    if address % 16:
        raise ValueError(f"{what} is at address {address}; it may be a multiple of 16")
    return address
