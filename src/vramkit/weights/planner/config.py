"""A model from the config.json of transformers: what can be read without it, and the module."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from vramkit.weights.planner.arithmetic import Experts
from vramkit.weights.planner.module import shape_of_module
from vramkit.weights.planner.shape import ModelError, ModelShape

_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk")


def missing_packages() -> str:
    """Those that a config needs; empty where all are there."""
    return " and ".join(name for name in ("torch", "transformers") if find_spec(name) is None)


def read_config(path: Path) -> dict[str, Any]:
    """Raises ModelError, OSError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ModelError(f"{path} is no transformers config: {error}") from None


def experts_of(config: dict[str, Any]) -> Experts | None:
    for part in (config, config.get("text_config")):
        if isinstance(part, dict):
            count = next((part[key] for key in _EXPERTS if part.get(key)), None)
            used = next((part[key] for key in _PER_TOKEN if part.get(key)), None)
            if isinstance(count, int) and isinstance(used, int) and 0 < used <= count:
                return Experts(count, used)
    return None


def shape_of_config(path: Path, config: dict[str, Any]) -> ModelShape:
    """Builds the module on the meta device: sizes without memory. Raises ModelError, and
    ModuleNotFoundError where torch or transformers is not installed."""
    if "quantization_config" in config:
        raise ModelError(
            f"{path} is the config of a quantised model, which does not tell the sizes of its "
            "weights; give the checkpoint itself (the folder or a file with .safetensors)"
        )
    if "model_type" not in config:
        raise ModelError(f"{path} has no model_type: it is no transformers config")
    if missing := missing_packages():
        raise ModuleNotFoundError(
            f"a plan from {path} needs {missing}, not installed here; install torch and "
            "transformers, or give the checkpoint (*.safetensors), whose header needs neither"
        )
    torch, transformers = import_module("torch"), import_module("transformers")
    model = _built(torch, transformers, path, config)
    name = f"{type(model).__name__} of {path}"
    return shape_of_module(torch, model, name, experts=experts_of(config))


def _built(torch: Any, transformers: Any, path: Path, config: dict[str, Any]) -> Any:
    try:
        # Code that came with a config is never run.
        parsed = transformers.AutoConfig.from_pretrained(
            str(path), local_files_only=True, trust_remote_code=False
        )
        classes = (getattr(transformers, each, None) for each in parsed.architectures or [])
        chosen = next(filter(None, classes), None)
        with torch.device("meta"):
            if chosen is not None:
                model = chosen(parsed)
            else:
                model = transformers.AutoModel.from_config(parsed)
    except (ValueError, KeyError, TypeError, AttributeError, OSError, ImportError) as error:
        # A class that the installed release does not know, or settings that it refuses.
        reason = " ".join(str(error).split())[:300]
        raise ModelError(
            f"transformers {transformers.__version__} cannot build the model of {path}: {reason}"
        ) from error
    return model.to(_dtype(torch, config))


def _dtype(torch: Any, config: dict[str, Any]) -> Any:
    """That of the checkpoint, by the config; bf16 where it does not say."""
    text = config.get("text_config")
    for part in (config, text if isinstance(text, dict) else {}):
        for key in ("dtype", "torch_dtype"):
            found = getattr(torch, str(part.get(key)).removeprefix("torch."), None)
            if isinstance(found, torch.dtype) and found.is_floating_point:
                return found
    return torch.bfloat16
