"""Stand-ins for RMM, CuPy and PyTorch, which run on NVIDIA's driver only: what their documentation
says of the calls that the subjects make, over memory of the driver under test."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from vramkit.driver import Device, DeviceMemory, OutOfMemoryError


class Card:
    """Blocks by address, each straight from the driver; notes the stream of each call."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.blocks: dict[int, DeviceMemory] = {}
        self.most = 1 << 62
        self.notes: list[tuple[object, ...]] = []

    @property
    def taken(self) -> int:
        return sum(block.nbytes for block in self.blocks.values())

    def take(self, size: int, error: type[BaseException]) -> int:
        if self.taken + size > self.most:
            raise error("no more than that")
        try:
            block = self.device.alloc(size)
        except OutOfMemoryError as short:
            raise error("the card is full") from short
        self.blocks[block.address] = block
        return block.address

    def give(self, address: int) -> None:
        self.device.synchronize()
        self.blocks.pop(address).close()


def _module(patch: pytest.MonkeyPatch, name: str, **contents: object) -> Any:
    module = ModuleType(name)
    vars(module).update(contents)
    patch.setitem(sys.modules, name, module)
    return module


def rmm(patch: pytest.MonkeyPatch, card: Card) -> None:
    class Stream:
        def __init__(self, obj: Any) -> None:
            version, self.handle = obj.__cuda_stream__()
            assert version == 0

    class Cuda:
        def allocate(self, size: int, stream: Stream) -> int:
            card.notes.append(("allocate", size, stream.handle))
            return card.take(size, MemoryError)

        def deallocate(self, address: int, size: int, stream: Stream) -> None:
            card.notes.append(("deallocate", size, stream.handle))
            card.give(address)

    class Over(Cuda):
        """Passes everything on."""

        def __init__(self, upstream_mr: Cuda, *args: int, **named: int | None) -> None:
            self.upstream = upstream_mr
            card.notes.append((type(self).__name__, *args, named))
            most = named.get("maximum_pool_size") or named.get("arena_size")
            if most is not None:
                card.most = most

        def allocate(self, size: int, stream: Stream) -> int:
            return self.upstream.allocate(size, stream)

        def deallocate(self, address: int, size: int, stream: Stream) -> None:
            self.upstream.deallocate(address, size, stream)

    class StatisticsResourceAdaptor(Over):
        @property
        def allocation_counts(self) -> SimpleNamespace:
            return SimpleNamespace(current_bytes=card.taken)

    mr = SimpleNamespace(
        CudaMemoryResource=Cuda,
        CudaAsyncMemoryResource=type("CudaAsyncMemoryResource", (Cuda,), {}),
        StatisticsResourceAdaptor=StatisticsResourceAdaptor,
        PoolMemoryResource=type("PoolMemoryResource", (Over,), {}),
        ArenaMemoryResource=type("ArenaMemoryResource", (Over,), {}),
        BinningMemoryResource=type("BinningMemoryResource", (Over,), {}),
    )
    _module(patch, "rmm", mr=mr)
    _module(patch, "rmm.pylibrmm")
    _module(patch, "rmm.pylibrmm.stream", Stream=Stream)


def cupy(patch: pytest.MonkeyPatch, card: Card) -> None:
    current: list[int] = []

    class Short(MemoryError):
        pass

    class ExternalStream:
        def __init__(self, ptr: int, device_id: int = -1) -> None:
            self.ptr = ptr

        def __enter__(self) -> None:
            current.append(self.ptr)

        def __exit__(self, *ending: object) -> None:
            current.pop()

    class MemoryPointer:
        """Freed with the last reference to it."""

        def __init__(self, ptr: int) -> None:
            self.ptr = ptr

        def __del__(self) -> None:
            card.give(self.ptr)

    class Pool:
        def malloc(self, size: int) -> MemoryPointer:
            card.notes.append(("malloc", size, current[-1]))
            return MemoryPointer(card.take(size, Short))

        def total_bytes(self) -> int:
            return card.taken

        def set_limit(self, size: int) -> None:
            card.most = size

        def free_all_blocks(self) -> None:
            card.notes.append(("free_all_blocks",))

    cuda = SimpleNamespace(
        MemoryPool=Pool,
        MemoryAsyncPool=type("MemoryAsyncPool", (Pool,), {"set_limit": None}),
        ExternalStream=ExternalStream,
        memory=SimpleNamespace(OutOfMemoryError=Short),
    )
    _module(patch, "cupy", cuda=cuda)


def torch(patch: pytest.MonkeyPatch, card: Card, *, expandable: bool) -> None:
    class Short(RuntimeError):
        pass

    def alloc(size: int, device: int, stream: int = 0) -> int:
        card.notes.append(("alloc", size, stream))
        return card.take(size, Short)

    def fraction(part: float, device: int) -> None:
        assert isinstance(part, float)
        card.most = int(part * card.device.memory_info().total)

    cuda = SimpleNamespace(
        OutOfMemoryError=Short,
        init=lambda: None,
        empty_cache=lambda: card.notes.append(("empty_cache",)),
        caching_allocator_alloc=alloc,
        caching_allocator_delete=card.give,
        memory_stats_as_nested_dict=lambda device: {
            "reserved_bytes": {"all": {"current": card.taken}}
        },
        memory_snapshot=lambda: [{"is_expandable": expandable}],
        set_per_process_memory_fraction=fraction,
    )
    _module(patch, "torch", cuda=cuda)
