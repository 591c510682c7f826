"""What else streams the weights of a PyTorch model, each as its documentation says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from typing import Any


@contextmanager
def accelerate_offload(model: Any) -> Iterator[None]:
    """As its documentation says for a model that is in host memory."""
    cuda = import_module("torch").cuda.is_available()
    import_module("accelerate").cpu_offload(model, execution_device=0 if cuda else "cpu")
    try:
        yield
    finally:
        import_module("accelerate.hooks").remove_hook_from_module(model, recurse=True)


@contextmanager
def diffusers_offload(model: Any) -> Iterator[None]:
    """With streams, block by block, and pinned ahead: the setting that its documentation advises
    for speed. It cannot be undone, so it comes last."""
    torch = import_module("torch")
    import_module("diffusers.hooks").apply_group_offloading(
        model,
        onload_device=torch.device("cuda"),
        offload_device=torch.device("cpu"),
        offload_type="block_level",
        num_blocks_per_group=1,
        use_stream=True,
        record_stream=True,
        low_cpu_mem_usage=False,
    )
    yield


PEERS: dict[str, Callable[[Any], AbstractContextManager[None]]] = {
    "accelerate": accelerate_offload,
    "diffusers": diffusers_offload,
}
"""By the name of the package."""
