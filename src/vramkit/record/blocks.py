"""Which blocks of device memory a program has, as its calls tell."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class Block:
    """Memory that the program has taken: a block, or a handle of virtual memory."""

    number: int
    size: int
    device: int
    context: int = 0
    """0: a handle, which belongs to none."""
    references: int = 1
    mappings: int = 0


@dataclass
class Blocks:
    """Blocks by their address, handles of virtual memory by handle and by where they are mapped.

    `in_use` is what the program holds of the driver, `peak` the most it has held.
    """

    count: int = 0
    in_use: int = 0
    peak: int = 0
    _by_address: dict[int, Block] = field(default_factory=dict)
    _by_handle: dict[int, Block] = field(default_factory=dict)
    _mapped: dict[int, tuple[int, Block]] = field(default_factory=dict)
    _mapped_at: list[int] = field(default_factory=list)

    def _new(self, size: int, device: int, context: int) -> Block:
        block = Block(self.count, size, device, context)
        self.count += 1
        self.in_use += size
        self.peak = max(self.peak, self.in_use)
        return block

    def allocate(self, address: int, size: int, device: int, context: int) -> Block:
        block = self._by_address[address] = self._new(size, device, context)
        return block

    def free(self, address: int) -> Block | None:
        """None for memory that did not come from a recorded call."""
        block = self._by_address.pop(address, None)
        if block is not None:
            self.in_use -= block.size
        return block

    def free_context(self, context: int) -> Iterator[Block]:
        """A context takes its blocks with it."""
        gone = [at for at, block in self._by_address.items() if block.context == context]
        for address in gone:
            if (block := self.free(address)) is not None:
                yield block

    # Virtual memory: a handle that was released lives on while it is mapped.

    def create(self, handle: int, size: int, device: int) -> Block:
        block = self._by_handle[handle] = self._new(size, device, 0)
        return block

    def retain(self, handle: int) -> None:
        if handle in self._by_handle:
            self._by_handle[handle].references += 1

    def forget(self, handle: int) -> Block | None:
        """Drops all references; the block, if it is free now."""
        if handle in self._by_handle:
            self._by_handle[handle].references = 1
        return self.release(handle)

    def release(self, handle: int) -> Block | None:
        """The block, if it is free now."""
        block = self._by_handle.get(handle)
        if block is None:
            return None
        block.references -= 1
        if block.references == 0:
            del self._by_handle[handle]
        return self._if_free(block)

    def map(self, address: int, size: int, handle: int) -> Block | None:
        """Where nothing is mapped. None for a handle that was imported."""
        block = self._by_handle.get(handle)
        if block is not None:
            block.mappings += 1
            self._mapped[address] = (size, block)
            insort(self._mapped_at, address)
        return block

    def unmap(self, address: int, size: int) -> Iterator[tuple[int, Block, bool]]:
        """Bytes, block and whether it is free now, of each mapping in the range."""
        first = bisect_left(self._mapped_at, address)
        end = bisect_left(self._mapped_at, address + size)
        gone = self._mapped_at[first:end]
        del self._mapped_at[first:end]
        for at in gone:
            mapped, block = self._mapped.pop(at)
            block.mappings -= 1
            yield mapped, block, self._if_free(block) is not None

    def _if_free(self, block: Block) -> Block | None:
        if block.references or block.mappings:
            return None
        self.in_use -= block.size
        return block
