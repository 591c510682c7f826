"""The weights of a model in host memory: groups in one pinned slab; what is kept, on the card."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from vramkit.host.available import HostMemoryError, require
from vramkit.weights.checkpoint import Checkpoint, Reading, read_all
from vramkit.weights.model import Model, Weight
from vramkit.weights.packing import Packing
from vramkit.weights.progress import Progress
from vramkit.weights.safetensors import ModelError, StoredTensor
from vramkit.weights.slab import Slab, is_in_slab

if TYPE_CHECKING:
    from vramkit.driver import Device


Source = str | os.PathLike[str] | Callable[[Any], object]
"""Where a model on the meta device gets its values: a checkpoint, or a function that loads it."""


class _InSlab:
    """What is in one pinned slab, group by group."""

    _torch: Any
    _slab: Slab
    _offsets: list[int]  # of the groups
    _homes: list[tuple[Any, Any]]  # tensors that were not in host memory, and where
    fixed: str | None = None
    """When a weight must not be written; None: it may be."""

    @property
    def nbytes(self) -> int:
        return self._slab.nbytes

    @property
    def addresses(self) -> list[int]:
        return [self._slab.address + offset for offset in self._offsets]

    def _lay_out(self, sizes: Sequence[int]) -> int:
        """One behind the other. Returns the bytes of all."""
        ends = list(accumulate(sizes))
        self._offsets = [0, *ends[:-1]]
        return ends[-1]

    def keep(self, host: Any, value: Any) -> None:
        """What was written on the card, into the host tensor of a weight."""
        host.copy_(value)

    def close(self) -> None:
        _return_home(self._torch, self._homes)
        self._slab.unpin()


class Store(_InSlab):
    """All groups in one slab; parameters are views of it until they are used."""

    def __init__(
        self,
        torch: Any,
        device: Device,
        model: Model,
    ) -> None:
        self._torch, self._model = torch, model
        total = self._lay_out([group.nbytes for group in model.groups])
        self._slab = self._make_slab(device, total)
        self._bytes = torch.frombuffer(self._slab.view(), dtype=torch.uint8)
        self._homes = []
        self._were_meta: list[Weight] = []
        self.packings: list[Packing | None] = []

    def _make_slab(self, device: Device, nbytes: int) -> Slab:
        known = self._earlier_slab(device, nbytes)
        return known or Slab.unpinned(device, nbytes, released=min(self._released(), nbytes))

    def _earlier_slab(self, device: Device, nbytes: int) -> Slab | None:
        """The slab in which an earlier Offload left the weights: there must not be a second one."""
        begins = {
            weight.tensor.data_ptr() - weight.offset - offset
            for weights, offset in zip(self._model.weights, self._offsets, strict=True)
            for weight in weights
            if weight.tensor.device.type == "cpu"
        }
        on_host = all(w.tensor.device.type == "cpu" for ws in self._model.weights for w in ws)
        return Slab.again(device, begins.pop(), nbytes) if on_host and len(begins) == 1 else None

    def _released(self) -> int:
        """Bytes of weights that are freed one by one as they move."""
        return sum(
            weight.nbytes
            for weights in self._model.weights
            for weight in weights
            if weight.tensor.device.type == "cpu" and not is_in_slab(weight.tensor.data_ptr())
        )

    def fill(self, source: Source | None, progress: Progress | None) -> None:
        """Moves the weights here, and pins them. Raises what the source raises."""
        self._progress, self._told = progress, 0
        try:
            if source is None:
                self._take_over()
            elif callable(source):
                self._load_by(source)
            else:
                self._read_from(Checkpoint(source))
            self._slab.pin()
        except BaseException:
            _return_home(self._torch, self._homes)
            for weight in self._were_meta:
                self._swap(weight, self._torch.empty_like(weight.tensor, device="meta"))
            raise

    def _take_over(self) -> None:
        for number in range(len(self._offsets)):
            self._take_over_group(number)

    def _take_over_group(self, number: int, *, copied: bool = False) -> None:
        """Each tensor's old memory goes when its values are in the slab. `copied`: they are."""
        for weight in self._model.weights[number]:
            tensor = weight.tensor
            view = self.view(number, weight)
            # Else it is there from an earlier time.
            if not copied and view.data_ptr() != tensor.data_ptr():
                with self._torch.no_grad():
                    view.copy_(tensor.detach())
            if tensor.device.type != "cpu":
                self._homes.append((tensor, tensor.device))
            tensor.data = view
        _return_freed()
        self._tell(number)

    def _read_from(self, checkpoint: Checkpoint) -> None:
        """Straight from the files: only the slab is in host memory."""
        found = {
            id(weight.tensor): checkpoint.find(weight.names, weight.tensor)
            for weight in self._without_values()
        }
        self._read_groups(found)
        for weight in self._model.kept:
            if id(weight.tensor) in found:
                value = self._torch.empty_like(weight.tensor, device="cpu")
                read_all([Reading(found[id(weight.tensor)], memory_of(value))])
                self._show(weight, value)

    def _read_groups(self, found: Mapping[int, StoredTensor]) -> None:
        for number in range(len(self._offsets)):
            self._read_group(number, found)

    def _read_group(
        self, number: int, found: Mapping[int, StoredTensor], *, is_read: bool = False
    ) -> None:
        weights = self._model.weights[number]
        views = {id(weight.tensor): self.view(number, weight) for weight in weights}
        if not is_read:
            read_all([Reading(found[key], memory_of(view)) for key, view in views.items()])
        for weight in weights:
            self._show(weight, views[id(weight.tensor)])
        self._tell(number)

    def _load_by(self, load: Callable[[Any], object]) -> None:
        """By the model's own loader, which writes into the slab."""
        for number, weights in enumerate(self._model.weights):
            for weight in weights:
                self._show(weight, self.view(number, weight))
        for weight in self._model.kept:
            if weight.tensor.is_meta:
                self._show(weight, self._torch.empty_like(weight.tensor, device="cpu"))
        unwritten = [_Unwritten(weight) for weight in self._were_meta if weight.nbytes]
        load(self._model.module)
        for each in unwritten:
            each.require_written()
        if self._progress is not None:
            self._progress(self._slab.nbytes, self._slab.nbytes)

    def _without_values(self) -> list[Weight]:
        every = [weight for weights in self._model.weights for weight in weights]
        return every + [weight for weight in self._model.kept if weight.tensor.is_meta]

    def _show(self, weight: Weight, value: Any) -> None:
        """The parameter itself stays the same object, and so do its ties."""
        if not weight.tensor.is_meta:
            weight.tensor.data = value
            return
        self._were_meta.append(weight)
        self._swap(weight, value)

    def _swap(self, weight: Weight, value: Any) -> None:
        if weight.is_buffer:
            value = value.data  # a view would count the writes to all views of the slab
        else:
            value = self._torch.nn.Parameter(value, requires_grad=weight.tensor.requires_grad)
        self._torch.utils.swap_tensors(weight.tensor, value)

    def _tell(self, number: int) -> None:
        self._told += self._model.groups[number].nbytes
        if self._progress is not None:
            self._progress(self._told, self._slab.nbytes)

    def view(self, number: int, weight: Weight) -> Any:
        """The host tensor of a weight."""
        begin = self._offsets[number] + weight.offset
        return shaped(self._bytes[begin : begin + weight.nbytes], weight.tensor)


class _Unwritten:
    """A weight that a source must write: it is marked, as some write to `.data`, which a tensor's
    version does not count."""

    def __init__(self, weight: Weight) -> None:
        self._weight, self._version = weight, weight.version
        self._address = weight.tensor.data_ptr()
        self._begin = memory_of(weight.tensor)[:64]
        self._mark = os.urandom(len(self._begin))
        self._begin[:] = self._mark

    def require_written(self) -> None:
        """Raises ModelError."""
        weight = self._weight
        owner, key = weight.owners[0]
        now, name = getattr(owner, key), weight.names[0]
        if now is not weight.tensor or now.data_ptr() != self._address:
            raise ModelError(
                f"the source replaced {name} instead of writing its values in place "
                "(load_state_dict() without assign=True does that)"
            )
        if weight.version == self._version and self._begin == self._mark:
            raise ModelError(
                f"the source did not write {name}; a buffer that is computed and not saved must "
                "have its values before offload(), or be written by the source too"
            )


class PackedStore(_InSlab):
    """Groups in one slab, packed where that takes fewer bytes. The weights themselves stay where
    they were, in ordinary host memory, for whoever reads them: 1.75 times their bytes in all."""

    fixed = "after it was packed"

    def __init__(
        self,
        torch: Any,
        device: Device,
        model: Model,
    ) -> None:
        self._torch, self._model = torch, model
        largest = max(group.nbytes for group in model.groups)
        self._buffer = torch.zeros(largest, dtype=torch.uint8)
        self.packings = [self._plan(number) for number in range(len(model.groups))]
        total = self._lay_out(
            [
                group.nbytes if packing is None else packing.nbytes
                for group, packing in zip(model.groups, self.packings, strict=True)
            ]
        )
        self._slab = Slab.unpinned(device, total)
        self._homes = []

    def fill(self, source: Source | None, progress: Progress | None) -> None:
        """Packs the groups into the slab, and pins it."""
        assert source is None  # refused by Offload
        try:
            self._pack(progress)
            self._slab.pin()
        except BaseException:
            self.close()
            raise

    def _pack(self, progress: Progress | None) -> None:
        total = sum(group.nbytes for group in self._model.groups)
        done = 0
        with self._slab.view() as slab:
            for number, packing in enumerate(self.packings):
                weights = self._gathered(number)
                begin = self._offsets[number]
                if packing is None:
                    slab[begin : begin + weights.nbytes] = weights
                else:
                    with slab[begin : begin + packing.nbytes] as out:
                        packing.pack(weights, out)
                for weight in self._model.weights[number]:
                    tensor = weight.tensor
                    if tensor.device.type != "cpu":
                        self._homes.append((tensor, tensor.device))
                        tensor.data = tensor.data.cpu()
                done += weights.nbytes
                if progress is not None:
                    progress(done, total)
        del self._buffer

    def _plan(self, number: int) -> Packing | None:
        weights = self._model.weights[number]
        low = sum(w.nbytes for w in weights if w.tensor.dtype is self._torch.bfloat16)
        if 2 * low < self._model.groups[number].nbytes:
            return None
        packing = Packing(self._gathered(number))
        return packing if packing.pays else None

    def _gathered(self, number: int) -> memoryview:
        """A group as it is on the card, zeros between its tensors."""
        whole = self._buffer[: self._model.groups[number].nbytes]
        whole.zero_()
        with self._torch.no_grad():
            for weight in self._model.weights[number]:
                part = whole[weight.offset : weight.offset + weight.nbytes]
                shaped(part, weight.tensor).copy_(weight.tensor.detach())
        return memory_of(whole)

    def view(self, number: int, weight: Weight) -> Any:
        """The host tensor of a weight."""
        return weight.tensor.data


PAYS = 0.9
"""Packed weights of at most this part of their bytes are worth a second copy in host memory."""


def packed_if_it_pays(torch: Any, device: Device, model: Model) -> PackedStore | None:
    """None where packing saves too little, or host memory does not hold the packed weights too."""
    total = sum(group.nbytes for group in model.groups)
    low = sum(
        weight.nbytes
        for weights in model.weights
        for weight in weights
        if weight.tensor.dtype is torch.bfloat16
    )
    if 2 * low < total:
        return None
    try:
        require(int(PAYS * total), "packed weights beside the weights")
        packed = PackedStore(torch, device, model)
    except HostMemoryError:
        return None
    if packed.nbytes <= PAYS * total:
        return packed
    packed.close()
    return None


def _return_home(torch: Any, homes: list[tuple[Any, Any]]) -> None:
    for tensor, home in homes:
        # Where the card has no room, it stays in host memory.
        with suppress(torch.cuda.OutOfMemoryError):
            move(tensor, tensor.data.to(home))
    homes.clear()


def _return_freed() -> None:
    """glibc keeps freed blocks of up to 32 MiB for itself: there would be two copies of a model of
    small layers."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def memory_of(tensor: Any) -> memoryview:
    """Of a contiguous tensor in host memory."""
    return bytes_at(tensor.data_ptr(), tensor.numel() * tensor.element_size())


def bytes_at(address: int, nbytes: int) -> memoryview:
    """Of host memory, which the caller keeps."""
    return memoryview((ctypes.c_uint8 * nbytes).from_address(address)).cast("B")


def shaped(raw: Any, like: Any) -> Any:
    """Bytes as a tensor with the type, shape and strides of another."""
    return raw.view(like.dtype).as_strided(like.shape, like.stride())


class Kept:
    """Small weights, on the card while the model is offloaded."""

    def __init__(self, weights: Sequence[Weight], device: Any) -> None:
        self._moved: list[tuple[Any, Any]] = []
        try:
            for weight in weights:
                tensor = weight.tensor
                if tensor.device != device and not tensor.is_meta:
                    before = tensor.data
                    move(tensor, before.to(device))
                    self._moved.append((tensor, before))
        except BaseException:
            for tensor, before in self._moved:
                move(tensor, before)
            raise

    def restore(self) -> None:
        with ExitStack() as each:  # all of them, if one raises
            for tensor, before in self._moved:
                each.callback(move, tensor, before)
                # Forward may have written a buffer, training a parameter.
                each.callback(before.copy_, tensor.data)


def move(tensor: Any, value: Any) -> None:
    """The tensor shows `value`, on whatever device, and its gradient goes there too."""
    gradient, tensor.grad = tensor.grad, None
    tensor.data = value
    if gradient is not None:
        tensor.grad = gradient.to(value.device)
