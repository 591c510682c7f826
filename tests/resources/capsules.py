"""Looks into DLPack capsules as a consumer would: the structures by the specification."""

from __future__ import annotations

import ctypes
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_int32,
    c_int64,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
    py_object,
)
from typing import Any

CUDA = 2
UNSIGNED = 1


class Tensor(Structure):
    _fields_ = (
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    )


Deleter = CFUNCTYPE(None, c_void_p)


class Managed(Structure):
    _fields_ = (("tensor", Tensor), ("context", c_void_p), ("deleter", Deleter))


class ManagedVersioned(Structure):
    _fields_ = (
        ("major", c_uint32),
        ("minor", c_uint32),
        ("context", c_void_p),
        ("deleter", Deleter),
        ("flags", c_uint64),
        ("tensor", Tensor),
    )


LAYOUTS: dict[bytes, type[Any]] = {b"dltensor": Managed, b"dltensor_versioned": ManagedVersioned}
USED: dict[bytes, bytes] = {name: b"used_" + name for name in LAYOUTS}  # capsules keep the pointer

_api = ctypes.pythonapi
_api.PyCapsule_GetName.restype = ctypes.c_char_p
_api.PyCapsule_GetName.argtypes = [py_object]
_api.PyCapsule_GetPointer.restype = c_void_p
_api.PyCapsule_GetPointer.argtypes = [py_object, ctypes.c_char_p]
_api.PyCapsule_SetName.argtypes = [py_object, ctypes.c_char_p]


class Consumer:
    """Takes the memory out of a capsule, and is done when told so."""

    def __init__(self, capsule: object) -> None:
        self.name: bytes = _api.PyCapsule_GetName(capsule)
        self.pointer: int = _api.PyCapsule_GetPointer(capsule, self.name)
        self.managed = LAYOUTS[self.name].from_address(self.pointer)
        self.tensor = self.managed.tensor
        _api.PyCapsule_SetName(capsule, USED[self.name])

    def done(self) -> None:
        self.managed.deleter(self.pointer)
