"""Notes uses of weights in host memory. On a card they are an error of PyTorch, or tensors that are
made on the wrong device; the simulated GPU has only one kind of tensor, so that nothing else would
show it."""

from __future__ import annotations

import sys
from typing import Any

from .models import torch

# These tell nothing of the device.
HARMLESS = {"dtype", "shape", "requires_grad", "is_floating_point", "size", "dim", "numel"}


class HostReads(torch.overrides.TorchFunctionMode):  # type: ignore[misc,name-defined]
    """Notes what is done with tensors in a range of memory, but for what vramkit does."""

    def __init__(self, begin: int, nbytes: int) -> None:
        super().__init__()
        self.range, self.found = range(begin, begin + nbytes), list[str]()

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        caller = sys._getframe(1)
        is_ours = caller.f_globals["__name__"].startswith("vramkit.")
        # A property is called by its __get__.
        name = getattr(getattr(function, "__self__", None), "__name__", function.__name__)
        if not is_ours and name not in HARMLESS:
            for each in torch.utils._pytree.tree_leaves((args, kwargs)):
                if isinstance(each, torch.Tensor) and each.data_ptr() in self.range:
                    self.found.append(f"{name} at {caller.f_code.co_name}")
        return function(*args, **(kwargs or {}))
