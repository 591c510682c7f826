"""Copies of boxes and batches of copies on the simulated GPU that vramkit has open."""

from __future__ import annotations

import ctypes

from vramkit.driver import Stream

from .raw_calls import RawCalls

HOST, DEVICE, ARRAY = 1, 2, 3


class Side(ctypes.Structure):
    _fields_ = [
        ("x", ctypes.c_size_t),
        ("y", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("host", ctypes.c_uint64),
        ("device", ctypes.c_uint64),
        ("array", ctypes.c_void_p),
        ("pitch", ctypes.c_size_t),
    ]


class Copy(ctypes.Structure):
    """CUDA_MEMCPY2D."""

    _fields_ = [
        ("source", Side),
        ("destination", Side),
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
    ]


class Attributes(ctypes.Structure):
    """CUmemcpyAttributes; the hints stay empty."""

    _fields_ = [("order", ctypes.c_int), ("hints", ctypes.c_int * 4), ("flags", ctypes.c_uint)]


def side(address: int, pitch: int, kind: int = DEVICE) -> Side:
    return Side(type=kind, pitch=pitch, host=address, device=address)


class BoxCalls(RawCalls):
    def copy(self, to: Side, source: Side, width: int, height: int, stream: Stream) -> None:
        given = Copy(source, to, width, height)
        self.call("cuMemcpy2DAsync_v2", ctypes.byref(given), ctypes.c_void_p(stream.handle))

    def batch(self, copies: list[tuple[int, int, int]], stream: Stream, *, order: int = 1) -> None:
        """copies: (destination, source, bytes)."""
        count = len(copies)
        columns = [(ctypes.c_uint64 * count)(*column) for column in zip(*copies, strict=True)]
        first = ctypes.c_size_t(0)
        self.call(
            "cuMemcpyBatchAsync_v2",
            *columns,
            ctypes.c_size_t(count),
            ctypes.byref(Attributes(order=order)),
            ctypes.byref(first),
            ctypes.c_size_t(1),
            ctypes.c_void_p(stream.handle),
        )
