"""Boxes of bytes in memory of every kind: what copies in two and three dimensions work on.

A model of the same bytes in numpy says what must come out.
"""

from __future__ import annotations

import ctypes
import random
from dataclasses import dataclass
from typing import Any

import numpy as np

from .support import ok

KINDS = ("pageable", "pinned", "device")
PAGE = 4096


@dataclass(frozen=True)
class Corner:
    """Where a box begins in a memory, and how that is laid out."""

    x: int
    y: int
    z: int
    pitch: int
    height: int

    @property
    def start(self) -> int:
        return (self.z * self.height + self.y) * self.pitch + self.x

    def bytes(self, extent: tuple[int, int, int]) -> int:
        """That a memory must have for a box of this extent (width, height, depth)."""
        width, height, depth = extent
        return self.start + ((depth - 1) * self.height + height - 1) * self.pitch + width

    def box(self, model: np.ndarray, extent: tuple[int, int, int]) -> np.ndarray:
        """The bytes of the box in a model of the memory, to be read or written."""
        width, height, depth = extent
        return np.lib.stride_tricks.as_strided(
            model[self.start :],
            shape=(depth, height, width),
            strides=(self.pitch * self.height, self.pitch, 1),
            writeable=True,
        )


def random_corner(dice: random.Random, extent: tuple[int, int, int], step: int = 1) -> Corner:
    """One with room for the box. step: its pitch is a multiple of this."""
    width, height, depth = extent
    x, y, z = dice.randrange(9), dice.randrange(4), dice.randrange(3) if depth > 1 else 0
    pitch = -(-(x + width + dice.choice([0, 1, 3, 64])) // step) * step
    return Corner(x, y, z, pitch, y + height + dice.choice([0, 1, 5]))


class Memory:
    """Memory of one kind with random bytes in it."""

    def __init__(self, cu: Any, scope: Any, kind: str, nbytes: int, dice: random.Random) -> None:
        self.kind = kind
        self._scope = scope
        self.bytes = -(-nbytes // PAGE) * PAGE
        if kind == "device":
            self.address = scope.alloc(self.bytes)
        else:
            self.address = (
                scope.pages(self.bytes) if kind == "pageable" else scope.pinned(self.bytes)
            )
        self.model = np.frombuffer(dice.randbytes(self.bytes), dtype=np.uint8).copy()
        if kind == "device":
            scope.write(self.address, self.model.tobytes())
        else:
            ctypes.memmove(self.address, self.model.tobytes(), self.bytes)

    def read(self) -> np.ndarray:
        if self.kind == "device":
            return np.frombuffer(self._scope.read(self.address, self.bytes), dtype=np.uint8)
        return np.frombuffer(ctypes.string_at(self.address, self.bytes), dtype=np.uint8)


def parameters(
    cu: Any,
    target: tuple[Memory, Corner],
    source: tuple[Memory, Corner],
    extent: tuple[int, int, int],
    *,
    dimensions: int = 2,
    unified: bool = False,
    peer: Any = None,
) -> Any:
    """The structure that the calls take. peer: the context of both sides, for cuMemcpy3DPeer."""
    types = cu.CUmemorytype
    if peer is not None:
        given = cu.CUDA_MEMCPY3D_PEER()
        given.srcContext = given.dstContext = peer
    else:
        given = cu.CUDA_MEMCPY2D() if dimensions == 2 else cu.CUDA_MEMCPY3D()
    for side, (memory, corner) in (("dst", target), ("src", source)):
        device = memory.kind == "device"
        kind = types.CU_MEMORYTYPE_DEVICE if device else types.CU_MEMORYTYPE_HOST
        setattr(given, f"{side}MemoryType", types.CU_MEMORYTYPE_UNIFIED if unified else kind)
        setattr(given, f"{side}{'Device' if device or unified else 'Host'}", memory.address)
        setattr(given, f"{side}XInBytes", corner.x)
        setattr(given, f"{side}Y", corner.y)
        setattr(given, f"{side}Pitch", corner.pitch)
        if dimensions == 3:
            setattr(given, f"{side}Z", corner.z)
            setattr(given, f"{side}Height", corner.height)
    given.WidthInBytes, given.Height = extent[:2]
    if dimensions == 3:
        given.Depth = extent[2]
    return given


def pair(
    cu: Any,
    scope: Any,
    kinds: tuple[str, str],
    extent: tuple[int, int, int],
    seed: Any,
    step: int = 1,
) -> tuple[tuple[Memory, Corner], tuple[Memory, Corner]]:
    """A random destination and source for a box; kinds of the source and of the destination."""
    dice = random.Random(str(seed))
    corners = [random_corner(dice, extent, step) for _ in kinds]
    source, target = (
        (Memory(cu, scope, kind, corner.bytes(extent) + dice.randrange(50), dice), corner)
        for kind, corner in zip(kinds, corners, strict=True)
    )
    return target, source


def check_copied(
    target: tuple[Memory, Corner], source: tuple[Memory, Corner], extent: tuple[int, int, int]
) -> None:
    """That the box has arrived, and nothing else has changed."""
    expected = target[0].model.copy()
    target[1].box(expected, extent)[...] = source[1].box(source[0].model, extent)
    assert np.array_equal(target[0].read(), expected)
    assert np.array_equal(source[0].read(), source[0].model)


def all_done(cu: Any) -> None:
    ok(cu.cuCtxSynchronize())
