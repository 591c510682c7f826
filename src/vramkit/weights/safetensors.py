"""The tensors of a safetensors checkpoint, from the headers of its files: no values are read."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec

from vramkit.report.units import bytes_text

LARGEST_HEADER = 100_000_000  # the format's own limit
INDEX = ".safetensors.index.json"


class ModelError(ValueError):
    """What was given is no model or checkpoint that can be read; the text says why and what can."""


class StoredTensor(NamedTuple):
    """Where the values of a tensor are. `dtype` is the format's word: "BF16"."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    offset: int
    nbytes: int


class _Entry(msgspec.Struct):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def files_at(path: Path) -> list[Path]:
    """The files of the checkpoint at a path: a folder, an index, or the one file. Raises
    ModelError."""
    if path.is_dir():
        if files := files_in(path):
            return files
        raise ModelError(f"{path} has no *.safetensors")
    if path.name.endswith(INDEX):
        return files_of(path)
    if path.suffix == ".safetensors" and path.is_file():
        return [path]
    raise ModelError(
        f"{path} is no checkpoint; it may be a folder with *.safetensors, such a file, or an index "
        f"(*{INDEX})"
    )


def files_in(folder: Path) -> list[Path]:
    """The files of the checkpoint in a folder; those of its index, if there is one."""
    indexes = sorted(folder.glob(f"*{INDEX}"))
    if indexes:
        return files_of(indexes[0])
    return sorted(folder.glob("*.safetensors"))


def files_of(index: Path) -> list[Path]:
    """The files that an index names. Raises ModelError if one is missing."""
    try:
        named = msgspec.json.decode(index.read_bytes(), type=_Index).weight_map.values()
    except msgspec.DecodeError as error:
        raise ModelError(f"{index} is no index of a safetensors checkpoint: {error}") from None
    files = [index.parent / name for name in sorted(set(named))]
    if not files:
        raise ModelError(f"{index} names no files")
    missing = [path.name for path in files if not path.is_file()]
    if missing:
        raise ModelError(
            f"{index} names {len(files)} files, of which {len(missing)} are not beside it "
            f"({missing[0]}, ...); their headers are needed"
        )
    return files


def read_header(path: Path) -> list[StoredTensor]:
    """In the order of the file. Raises ModelError, OSError."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        whole = path.stat().st_size
        if not 2 <= length <= min(LARGEST_HEADER, whole - 8):
            raise ModelError(
                f"{path} is no safetensors file: its first 8 bytes give a header of "
                f"{bytes_text(length)}, and the file has {bytes_text(whole)}"
            )
        text = file.read(length)
    begin = 8 + length
    try:
        entries = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        entries.pop("__metadata__", None)
        read = {name: msgspec.json.decode(raw, type=_Entry) for name, raw in entries.items()}
    except msgspec.DecodeError as error:
        raise ModelError(f"the header of {path} cannot be read: {error}") from None
    return [
        StoredTensor(
            name,
            entry.dtype,
            entry.shape,
            path,
            begin + entry.data_offsets[0],
            entry.data_offsets[1] - entry.data_offsets[0],
        )
        for name, entry in read.items()
    ]
