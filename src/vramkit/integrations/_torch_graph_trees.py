"""Inductor's graph trees, torch.compile(mode="reduce-overhead"): they need what a pool lacks.

Graph trees record several graphs in one memory pool. Between recordings they set the allocator back
to an earlier state, and they write to inputs that the allocator counts as free. PyTorch's interface
for foreign allocators has no calls for either.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any, NoReturn

REASON = (
    "inductor records CUDA graphs in trees, which need PyTorch's own allocator, not vramkit's pool"
)
ADVICE = (
    "If each result is used before the next call of the same function, set "
    "torch._inductor.config.triton.cudagraph_trees = False before torch.compile"
)


def leave_out(torch: Any) -> None:
    """From here on torch.compile goes without CUDA graphs where it would use trees, and warns."""
    if compiler := getattr(torch, "_TorchCompileInductorWrapper", None):
        _change_options(compiler)
    # For what was compiled before, or asks for graphs in another way.
    for name in (
        "_cuda_checkPoolLiveAllocations",
        "_cuda_getCheckpointState",
        "_cuda_setCheckpointPoolState",
    ):
        if hasattr(torch._C, name):
            setattr(torch._C, name, _no_checkpoints)


def _change_options(compiler: Any) -> None:
    """Of each torch.compile. The option is part of the keys of inductor's caches on disk: programs
    without vramkit find nothing there that was compiled without graphs for this reason.
    """
    apply_options = compiler.apply_options

    def apply_without_trees(self: Any, options: dict[str, Any] | None) -> None:
        apply_options(self, options)
        if self.config.get("triton.cudagraphs") and _uses_trees(self.config):
            self.config["triton.cudagraphs"] = False
            warnings.warn(
                f"torch.compile goes without CUDA graphs: {REASON}. {ADVICE}", stacklevel=5
            )

    compiler.apply_options = apply_without_trees


def _uses_trees(options: dict[str, Any]) -> bool:
    inductor = sys.modules["torch._inductor.config"]  # whoever has options has it
    return bool(options.get("triton.cudagraph_trees", inductor.triton.cudagraph_trees))


def _no_checkpoints(*arguments: object) -> NoReturn:
    raise RuntimeError(
        f"{REASON}; call vramkit.integrations.torch.install() before torch.compile, which then "
        f"goes without graphs, or choose the default mode. {ADVICE}"
    )
