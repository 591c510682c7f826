"""Finds out what kind of model was given: a path, a module, or groups."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import structs

from vramkit.report.units import count_text
from vramkit.weights.layout import Group
from vramkit.weights.planner.arithmetic import Experts, Tensor
from vramkit.weights.planner.config import (
    experts_of,
    missing_packages,
    read_config,
    shape_of_config,
)
from vramkit.weights.planner.module import shape_of_module
from vramkit.weights.planner.names import shape_of
from vramkit.weights.planner.shape import ModelError, ModelShape
from vramkit.weights.safetensors import INDEX, files_in, files_of, read_header

ALLOWED = (
    "a folder with config.json or *.safetensors, one of these files, an index "
    "(*.safetensors.index.json), a torch.nn.Module, or a list of Group"
)
CONFIG = "config.json"


def read_model(model: Any) -> ModelShape:
    """Raises ModelError, TypeError, OSError; ModuleNotFoundError where a config needs packages."""
    if isinstance(model, str | os.PathLike):
        return _at(Path(model))
    if isinstance(model, Sequence) and model and all(isinstance(each, Group) for each in model):
        layers = count_text(len({group.layer for group in model}), "layer")
        return ModelShape(f"{layers} given by hand", tuple(model))
    torch = sys.modules.get("torch")  # who has a module has imported it
    if torch is not None and isinstance(model, torch.nn.Module):
        name = f"a {type(model).__name__} in memory"
        return shape_of_module(torch, model, name, experts=_experts_of(model))
    raise TypeError(f"model is a {type(model).__name__}; it may be {ALLOWED}")


def _at(path: Path) -> ModelShape:
    if not path.exists():
        raise ModelError(f"there is no {path}; the model may be {ALLOWED}")
    if path.is_dir():
        return _in_folder(path)
    if path.name.endswith(INDEX):
        return _checkpoint(path, files_of(path))
    if path.suffix == ".safetensors":
        return _checkpoint(path, [path])
    if path.suffix == ".json":
        return shape_of_config(path, read_config(path))
    raise ModelError(f"{path} is neither a config nor a checkpoint; the model may be {ALLOWED}")


def _in_folder(folder: Path) -> ModelShape:
    """The config tells the modules, as offload() will see them; the checkpoint of a quantised model
    tells its sizes, and serves where transformers is not installed."""
    config = folder / CONFIG
    if config.is_file():
        settings, missing = read_config(config), missing_packages()
        if not missing and "quantization_config" not in settings:
            return shape_of_config(config, settings)
        if not (files := files_in(folder)):
            return shape_of_config(config, settings)  # raises what is missing
        why = f"{missing} not installed" if missing else "the model is quantised"
        found = _checkpoint(folder, files)
        note = f"groups are by the names in the checkpoint's header: {why}"
        return structs.replace(found, notes=(*found.notes, note))
    if files := files_in(folder):
        return _checkpoint(folder, files)
    raise ModelError(f"{folder} has neither {CONFIG} nor *.safetensors; the model may be {ALLOWED}")


def _checkpoint(path: Path, files: Sequence[Path]) -> ModelShape:
    tensors = [
        Tensor(stored.name, stored.shape, stored.nbytes)
        for file in files
        for stored in read_header(file)
    ]
    return shape_of(tensors, f"checkpoint {path}", experts=_experts_beside(files[0]))


def _experts_of(model: Any) -> Experts | None:
    """Those of the config that a transformers model carries."""
    to_dict = getattr(getattr(model, "config", None), "to_dict", None)
    return experts_of(to_dict()) if callable(to_dict) else None


def _experts_beside(file: Path) -> Experts | None:
    config = file.parent / CONFIG
    return experts_of(read_config(config)) if config.is_file() else None
