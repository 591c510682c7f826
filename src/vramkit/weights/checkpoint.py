"""Weights straight from the files of a checkpoint into the memory where they will stay."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from vramkit.host.pages import default_threads
from vramkit.report.units import bytes_text
from vramkit.weights.safetensors import ModelError, StoredTensor, files_at, read_header

PIECE = 64 << 20
"""Bytes a thread reads at a time."""

DTYPES = {
    "bfloat16": "BF16",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "uint8": "U8",
    "bool": "BOOL",
}


class Reading(NamedTuple):
    """A tensor of the checkpoint, and the bytes that it fills."""

    stored: StoredTensor
    target: memoryview


class Checkpoint:
    """The tensors of a safetensors checkpoint by name. Raises ModelError, OSError."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._tensors = {
            stored.name: stored for file in files_at(self._path) for stored in read_header(file)
        }

    def find(self, names: Sequence[str], tensor: Any) -> StoredTensor:
        """By any of its names. Raises ModelError if it is not there as it is in the model."""
        stored = next((self._tensors[name] for name in names if name in self._tensors), None)
        if stored is None:
            raise ModelError(f"{names[0]} is not in {self._path}; {_OTHERWISE}")
        wanted = DTYPES.get(str(tensor.dtype).rpartition(".")[2], str(tensor.dtype))
        if (stored.dtype, stored.shape) != (wanted, tuple(tensor.shape)):
            raise ModelError(
                f"{stored.name} is {stored.dtype} {stored.shape} in {stored.path}, and {wanted} "
                f"{tuple(tensor.shape)} in the model; {_OTHERWISE}"
            )
        nbytes = tensor.numel() * tensor.element_size()
        if stored.nbytes != nbytes:
            raise ModelError(
                f"{stored.name} has {bytes_text(stored.nbytes)} in {stored.path}, and {wanted} "
                f"{stored.shape} takes {bytes_text(nbytes)}: the file is damaged"
            )
        if not tensor.is_contiguous():
            raise ModelError(f"{stored.name} is not contiguous in the model; {_OTHERWISE}")
        return stored


_OTHERWISE = (
    "source may also be a function that is given the model and loads it, such as "
    "lambda model: model.load_state_dict(...)"
)


def read_all(readings: Sequence[Reading]) -> None:
    """By several threads. Raises OSError; ModelError if a file ends too early."""
    pieces = [
        (reading, begin) for reading in readings for begin in range(0, reading.stored.nbytes, PIECE)
    ]
    files = {reading.stored.path: -1 for reading in readings}
    try:
        for path in files:
            files[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        with ThreadPoolExecutor(default_threads()) as pool:
            for _ in pool.map(lambda piece: _read(files, *piece), pieces):
                pass
    finally:
        for descriptor in files.values():
            if descriptor >= 0:
                os.close(descriptor)


def _read(files: dict[Path, int], reading: Reading, begin: int) -> None:
    stored = reading.stored
    end = min(begin + PIECE, stored.nbytes)
    while begin < end:
        got = os.preadv(files[stored.path], [reading.target[begin:end]], stored.offset + begin)
        if got == 0:
            raise ModelError(f"{stored.path} ends inside of {stored.name}: it is not complete")
        begin += got
