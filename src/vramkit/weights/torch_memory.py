"""PyTorch tensors over memory of the card.

With CUDA a tensor is on the card, and the work that uses a group is what PyTorch issues to its
current stream. On the simulated GPU a tensor is a CPU tensor over the simulated memory, and PyTorch
computes on the host: the stream is waited for before, the checker is told of the host's access, and
a kernel that reads the group stands for the work, so that a group that is overwritten too early is
a report. That shows values and order, no times.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Protocol

from vramkit.driver.types import SupportsCudaStream
from vramkit.weights.model import part_of

if TYPE_CHECKING:
    from vramkit import Pool
    from vramkit.driver import Device


class TorchMemory(Protocol):
    """1. A tensor is valid as long as the memory behind it.
    2. begin_use() comes behind the wait for a group, end_use() before its release."""

    device: Any
    """The torch.device of the tensors."""

    def bytes_at(self, address: int, nbytes: int) -> Any: ...
    def stream(self) -> SupportsCudaStream: ...
    def begin_use(self, address: int, nbytes: int) -> None: ...
    def end_use(self, address: int, nbytes: int) -> None: ...
    def close(self) -> None: ...


class CudaMemory:
    def __init__(self, torch: Any, device: Device) -> None:
        if torch.version.cuda is None or not torch.cuda.is_available():
            raise RuntimeError(
                "this PyTorch has no CUDA: install a build with it, or choose the simulated GPU "
                "(VRAMKIT_DRIVER=sim), which shows values and order but no times"
            )
        self._torch = torch
        self.device = torch.device("cuda", device.ordinal)

    def bytes_at(self, address: int, nbytes: int) -> Any:
        return self._torch.as_tensor(_DeviceBytes(address, nbytes), device=self.device)

    def stream(self) -> SupportsCudaStream:
        return _Handle(self._torch.cuda.current_stream(self.device).cuda_stream)

    def begin_use(self, address: int, nbytes: int) -> None:
        """The stream waits already."""

    def end_use(self, address: int, nbytes: int) -> None:
        """PyTorch has issued its work to the stream."""

    def close(self) -> None:
        """PyTorch owns nothing of it."""


class _Handle:
    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle


class _DeviceBytes:
    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


class SimulatedMemory:
    def __init__(self, torch: Any, device: Device) -> None:
        self._torch, self._device = torch, device
        assert device.driver.sim is not None
        self._sim = device.driver.sim
        if not self._sim.settings().data:
            raise ValueError(
                "the simulated GPU holds no data (data=off), which PyTorch's tensors need"
            )
        self._stream = device.stream()
        self._sum = device.alloc(8)
        self.device = torch.device("cpu")
        self.synchronisations = 0

    def bytes_at(self, address: int, nbytes: int) -> Any:
        alias = self._sim.host_alias(address)
        array = (ctypes.c_uint8 * nbytes).from_address(alias)
        return self._torch.frombuffer(array, dtype=self._torch.uint8)

    def stream(self) -> SupportsCudaStream:
        return self._stream

    def begin_use(self, address: int, nbytes: int) -> None:
        self._stream.synchronize()
        self.synchronisations += 1
        self._sim.host_access(self._sim.host_alias(address), nbytes, False)

    def end_use(self, address: int, nbytes: int) -> None:
        self._device.kernels.checksum(address, nbytes // 4, self._sum, stream=self._stream)

    def close(self) -> None:
        self._stream.synchronize()
        self._sum.close()
        self._stream.close()


def storage_address(torch: Any, tensor: Any) -> int | None:
    """Where the memory of a tensor begins; None: it has none of its own, as in torch.vmap()."""
    tensor = part_of(tensor)
    if tensor.layout is not torch.strided:
        return None
    try:
        return int(tensor.untyped_storage().data_ptr())
    except RuntimeError:
        return None


def pool_of_torch(device: Device) -> Pool | None:
    """The pool that serves PyTorch on this device; None: PyTorch has memory of its own."""
    if device.driver.sim is not None:
        return None
    from vramkit.integrations.torch import serving

    pool = serving(device.ordinal)
    return pool if pool is not None and pool.device.driver is device.driver else None


def torch_memory(torch: Any, device: Device) -> TorchMemory:
    return (
        CudaMemory(torch, device) if device.driver.sim is None else SimulatedMemory(torch, device)
    )
