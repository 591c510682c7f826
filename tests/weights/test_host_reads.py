"""Models use no weights in host memory while they run: on a card that is an error of PyTorch, or
tensors that are made on the wrong device. The simulated GPU has only one kind of tensor, so that
nothing else would show it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from vramkit import offload

from .models import FAMILIES, example, torch

if TYPE_CHECKING:
    from vramkit.driver import Driver

MIB = 1 << 20
pytestmark = pytest.mark.sim_only

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


@pytest.mark.parametrize("family", FAMILIES)
def test_models_use_no_weights_in_host_memory(
    driver: Driver, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VRAMKIT_DRIVER", "sim")
    model, inputs, generates = example(family)
    with torch.no_grad(), offload(model, "4.2MiB", keep_below=4096, ring=2 * MIB) as o:
        streamed = next(group for group in o._groups if not group.resident)
        with HostReads(o._store.addresses[0], o._store.nbytes) as reads:
            model(**inputs)
            if generates:
                inputs.pop("decoder_input_ids", None)
                model.generate(**inputs, max_new_tokens=2, do_sample=False)
            assert reads.found == []
            assert streamed._weights[0].tensor.add(1).device.type == "cpu"
        assert reads.found == ["add at test_models_use_no_weights_in_host_memory"]
