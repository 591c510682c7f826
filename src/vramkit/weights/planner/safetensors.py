"""The tensors of a safetensors checkpoint, from the headers of its files: no values are read."""

from __future__ import annotations

from pathlib import Path

import msgspec

from vramkit.report.units import bytes_text
from vramkit.weights.planner.arithmetic import Tensor
from vramkit.weights.planner.shape import ModelError

LARGEST_HEADER = 100_000_000  # the format's own limit
INDEX = ".safetensors.index.json"


class _Entry(msgspec.Struct):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


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


def read_header(path: Path) -> list[Tensor]:
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
    try:
        entries = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        entries.pop("__metadata__", None)
        return [_tensor(name, msgspec.json.decode(e, type=_Entry)) for name, e in entries.items()]
    except msgspec.DecodeError as error:
        raise ModelError(f"the header of {path} cannot be read: {error}") from None


def _tensor(name: str, entry: _Entry) -> Tensor:
    begin, end = entry.data_offsets
    return Tensor(name, entry.shape, end - begin)
