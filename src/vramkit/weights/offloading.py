"""A PyTorch model that is larger than the card: its weights are streamed while it computes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Self, SupportsIndex

import vramkit.driver
from vramkit.driver.types import Span, SupportsCudaStream, integer, shown
from vramkit.integrations._frameworks import imported
from vramkit.report.units import bytes_text
from vramkit.weights.backward import Backward
from vramkit.weights.budget import parse_budget
from vramkit.weights.layout import ALIGNMENT, BudgetError
from vramkit.weights.manager import WeightManager, WeightStats, plan_schedule
from vramkit.weights.model import SMALL, Model, Part, Weight, analyse
from vramkit.weights.report import OffloadReport, make_report
from vramkit.weights.schedule import Policy
from vramkit.weights.slab import Slab
from vramkit.weights.torch_memory import TorchMemory, torch_memory

if TYPE_CHECKING:
    from vramkit.driver import Device

LINK_SAMPLE = 256 << 20
"""Bytes whose copy tells the rate of the link."""

_offloaded: weakref.WeakSet[Any] = weakref.WeakSet()  # modules


def offload(
    model: Any,
    budget: SupportsIndex | str,
    *,
    device: Device | int | None = None,
    policy: str | Policy = "auto",
    ring: int | None = None,
    keep_below: int = SMALL,
    progress: Callable[[int, int], object] | None = None,
) -> Offload:
    """Run a torch.nn.Module with its weights in host memory and `budget` of the card.

    Works in place, until the with statement ends or close(): the module is called as before, and
    what it returns is what it returns with all weights on the card, bit for bit. `budget` is bytes,
    or text such as "24GiB" or "60%" of the card. `ring` is the most that weights on their way may
    take of it (default: two layers); the rest holds resident weights. Weights of modules with less
    than `keep_below` bytes stay on the card. `progress(done, total)` is called in bytes while
    weights are laid out in pinned host memory.

    Inference runs under torch.no_grad() or torch.inference_mode(). To train adapters, freeze the
    other weights before this call: what is trained stays on the card, and backward streams the
    frozen weights once more, in its own order.
    """
    return Offload(
        model,
        budget,
        device=device,
        policy=policy,
        ring=ring,
        keep_below=keep_below,
        progress=progress,
    )


class Offload:
    """What offload() returns. While it is open, a parameter outside of its module's forward is the
    one in host memory, or on the card if it is resident: reading it and state_dict() see the right
    values. A parameter that was moved or replaced meanwhile is an error of the next forward."""

    def __init__(
        self,
        model: Any,
        budget: SupportsIndex | str,
        *,
        device: Device | int | None,
        policy: str | Policy,
        ring: int | None,
        keep_below: int,
        progress: Callable[[int, int], object] | None,
    ) -> None:
        torch = imported("torch", "torch")
        self._torch, self.model = torch, model
        self.device = _chosen_device(device)
        parsed = analyse(torch, model, small=integer(keep_below, "keep_below"))
        _refuse_second(model)
        self.budget = parse_budget(budget, self.device.memory_info().total)
        kept = sum(-(-weight.nbytes // ALIGNMENT) * ALIGNMENT for weight in parsed.kept)
        if not parsed.groups:
            raise ValueError(
                f"the {type(model).__name__} has only {bytes_text(kept)} of weights, in modules of "
                f"less than {bytes_text(keep_below)}: nothing is worth streaming; use .to(device)"
            )
        if kept >= self.budget:
            raise BudgetError(
                f"budget is {bytes_text(self.budget)}; {bytes_text(kept)} of weights are small, "
                "trained, or held by modules that have parts, and stay on the card"
            )
        self.kept_bytes = kept
        # The first parameter tells other libraries on which device a model is.
        settings: dict[str, Any] = {
            "budget": self.budget - kept,
            "ring": ring,
            "policy": policy,
            "prefer": [0],
        }
        plan_schedule(self.device, parsed.groups, **settings)  # before anything moves
        with ExitStack() as undo:
            self._memory: TorchMemory = torch_memory(torch, self.device)
            undo.callback(self._memory.close)
            self._store = _Store(torch, self.device, parsed, progress)
            undo.callback(self._store.close)
            self.manager = WeightManager(
                self.device,
                parsed.groups,
                self._store.addresses,
                timing=self.device.driver.sim is None,
                **settings,
            )
            undo.callback(self.manager.close)
            self._kept = _Kept(parsed.kept, self._memory.device)
            undo.callback(self._kept.restore)
            self._groups = [
                _OnCard(self.manager, number, self._store, self._memory, parsed.weights[number])
                for number in range(len(parsed.groups))
            ]
            for group in self._groups:
                undo.callback(group.restore)
                if group.resident:
                    group.settle()
            _offloaded.add(model)
            undo.callback(_offloaded.discard, model)
            backward = Backward(torch)
            undo.callback(backward.finish)
            for part in parsed.parts:
                groups = [self._groups[number] for number in part.groups]
                undo.enter_context(_hooked(torch, part, groups, backward))
            undo.enter_context(_called(torch, model, self.manager, self._memory.device, backward))
            self._link = _link_rate(self.manager, self._store.addresses[0])
            self._undo = undo.pop_all()

    def report(self) -> OffloadReport:
        """Memory, bound, the last pass and what would help. Waits for the work of that pass; call
        it between two passes."""
        timed = self.device.driver.sim is None and not self.closed
        return make_report(
            device=f"{self.device.name} ({self.device.driver.description})",
            budget=self.budget,
            kept_bytes=self.kept_bytes,
            host_bytes=self._store.nbytes,
            layout=self.manager.layout,
            link_bytes_per_s=self._link,
            last=self.manager.last_pass() if timed else None,
            counts=self.stats(),
        )

    def stats(self) -> WeightStats:
        """Copies and misses so far."""
        return self.manager.stats()

    @property
    def closed(self) -> bool:
        return self.manager.closed

    def close(self) -> None:
        """Wait for the work that uses the weights, and undo it all: parameters, strides, ties,
        flags and hooks are as before. They stay views of one stretch of host memory, which is no
        longer pinned. A second time does nothing."""
        self._undo.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else bytes_text(self.budget)
        return f"<Offload of a {type(self.model).__name__}, {state}>"


def _link_rate(manager: WeightManager, source: int) -> float | None:
    """Bytes a second from pinned memory to the ring, which holds no weights yet. A few ms."""
    device, layout = manager.device, manager.layout
    nbytes = min(layout.ring_bytes, layout.groups[0].nbytes, LINK_SAMPLE)
    if device.driver.sim is not None or nbytes == 0:
        return None
    ring, slab = Span(manager.ring_address, nbytes, "device"), Span(source, nbytes, "host")
    with device.stream() as stream, device.event() as begin, device.event() as end:
        device.copy(ring, slab, stream=stream)  # warms up
        begin.record(stream)
        device.copy(ring, slab, stream=stream)
        end.record(stream)
        end.synchronize()
        return nbytes / end.elapsed_since(begin)


def _chosen_device(device: Device | int | None) -> Device:
    if isinstance(device, vramkit.driver.Device):
        return device
    if device is not None and not hasattr(type(device), "__index__"):
        raise TypeError(
            f"device is {shown(device)}; it may be None, a number, or a Device of vramkit.driver"
        )
    return vramkit.driver.open().device(0 if device is None else integer(device, "device"))


def _refuse_second(model: Any) -> None:
    for module in model.modules():
        if module in _offloaded:
            which = "this model" if module is model else f"its part {type(module).__name__}"
            raise ValueError(f"{which} is offloaded already; close that Offload first")


# Host memory


class _Store:
    """All groups in one slab; parameters are views of it until they are used."""

    def __init__(
        self,
        torch: Any,
        device: Device,
        model: Model,
        progress: Callable[[int, int], object] | None,
    ) -> None:
        self._torch = torch
        self._offsets: list[int] = []
        total = 0
        for group in model.groups:
            self._offsets.append(total)
            total += group.nbytes
        in_host = sum(
            weight.nbytes
            for weights in model.weights
            for weight in weights
            if weight.tensor.device.type == "cpu"
        )
        self._slab = Slab.unpinned(device, total, released=min(in_host, total))
        self._bytes = torch.frombuffer(self._slab.view(), dtype=torch.uint8)
        self._homes: list[tuple[Any, Any]] = []  # tensors that were not in host memory, and where
        try:
            self._fill(model, progress)
            self._slab.pin()
        except BaseException:
            self._restore_homes()
            raise

    def _fill(self, model: Model, progress: Callable[[int, int], object] | None) -> None:
        """Group by group: each tensor's old memory goes when its values are in the slab."""
        total, done = self._slab.nbytes, 0
        for number, weights in enumerate(model.weights):
            for weight in weights:
                tensor = weight.tensor
                view = self.view(number, weight)
                with self._torch.no_grad():
                    view.copy_(tensor.detach())
                if tensor.device.type != "cpu":
                    self._homes.append((tensor, tensor.device))
                tensor.data = view
            done += model.groups[number].nbytes
            if progress is not None:
                progress(done, total)

    @property
    def nbytes(self) -> int:
        return self._slab.nbytes

    @property
    def addresses(self) -> list[int]:
        return [self._slab.address + offset for offset in self._offsets]

    def view(self, number: int, weight: Weight) -> Any:
        """The host tensor of a weight."""
        begin = self._offsets[number] + weight.offset
        return shaped(self._bytes[begin : begin + weight.nbytes], weight.tensor)

    def close(self) -> None:
        self._restore_homes()
        self._slab.unpin()

    def _restore_homes(self) -> None:
        for tensor, home in self._homes:
            # Where the card has no room, it stays in host memory.
            with suppress(self._torch.cuda.OutOfMemoryError):
                tensor.data = tensor.data.to(home)
        self._homes.clear()


def shaped(raw: Any, like: Any) -> Any:
    """Bytes as a tensor with the type, shape and strides of another."""
    return raw.view(like.dtype).as_strided(like.shape, like.stride())


class _Kept:
    """Small weights, on the card while the model is offloaded."""

    def __init__(self, weights: Sequence[Weight], device: Any) -> None:
        self._moved = []
        for weight in weights:
            tensor = weight.tensor
            if tensor.device != device and not tensor.is_meta:
                self._moved.append((tensor, tensor.data))
                tensor.data = tensor.data.to(device)

    def restore(self) -> None:
        for tensor, before in self._moved:
            before.copy_(tensor.data)  # a buffer may have been written
            tensor.data = before


# On the card


class _OnCard:
    """A group's tensors: those on the card while a part uses them, else those in host memory."""

    def __init__(
        self,
        manager: WeightManager,
        number: int,
        store: _Store,
        memory: TorchMemory,
        weights: Sequence[Weight],
    ) -> None:
        self._manager, self._memory, self._weights = manager, memory, weights
        self._group = manager.layout.groups[number]
        self.resident = manager.layout.resident[number]
        self._address = manager.address(self._group.layer, self._group.name)
        self.raw = memory.bytes_at(self._address, self._group.nbytes)
        self._on_card = [
            shaped(self.raw[weight.offset : weight.offset + weight.nbytes], weight.tensor)
            for weight in weights
        ]
        self._in_host = [store.view(number, weight) for weight in weights]
        self._written = [weight.version for weight in weights]
        self._calls = 0  # of parts that show its parameters on the card

    def begin(self) -> SupportsCudaStream:
        """A part's forward uses it: its parameters are those on the card."""
        if self._calls == 0 and not self.resident:
            self._check()
        stream = self.begin_use()
        if self._calls == 0 and not self.resident:
            self._show(self._on_card)
        self._calls += 1
        return stream

    def end(self, stream: SupportsCudaStream) -> None:
        self._calls -= 1
        if self._calls == 0 and not self.resident:
            self._show(self._in_host)
        self.end_use(stream)
        if self._calls or self.resident:
            return
        for weight, version in zip(self._weights, self._written, strict=True):
            if weight.version != version:
                raise RuntimeError(
                    f"{weight.names[0]} was written in forward: streamed weights are read only. "
                    "What was written is lost; train it, or leave it out of offload()"
                )

    def stream(self) -> SupportsCudaStream:
        """The one to which work is issued now."""
        if self._manager.closed:
            raise RuntimeError(
                "backward needs weights that were streamed in forward, and their Offload is closed"
            )
        return self._memory.stream()

    def begin_use(self) -> SupportsCudaStream:
        """Work that is issued to the stream from now on may use its memory."""
        stream = self.stream()
        layer, name, nbytes = self._group.layer, self._group.name, self._group.nbytes
        self._manager.wait_group_ready(layer, name, compute_stream=stream)
        self._memory.begin_use(self._address, nbytes)
        return stream

    def end_use(self, stream: SupportsCudaStream) -> None:
        if not self._manager.closed:
            self._memory.end_use(self._address, self._group.nbytes)
            self._manager.release(self._group.layer, self._group.name, compute_stream=stream)

    def require_frozen(self) -> None:
        for weight in self._weights:
            if weight.tensor.requires_grad:
                raise RuntimeError(
                    f"{weight.names[0]} is streamed and requires a gradient: for inference, call "
                    "the model under torch.no_grad() or torch.inference_mode(); to train adapters, "
                    "freeze the other weights (requires_grad_(False)) before offload()"
                )

    def settle(self) -> None:
        """It stays on the card."""
        self._manager.ensure_group_on_gpu(self._group.layer, self._group.name)
        self._show(self._on_card)

    def restore(self) -> None:
        """It is in host memory again, with what was written on the card."""
        if self.resident:
            for weight, version, before in zip(
                self._weights, self._written, self._in_host, strict=True
            ):
                if weight.version != version:
                    before.copy_(weight.tensor.data)
        self._show(self._in_host)

    def _show(self, tensors: Sequence[Any]) -> None:
        for weight, tensor in zip(self._weights, tensors, strict=True):
            weight.tensor.data = tensor

    def _check(self) -> None:
        """Nobody moved, replaced or changed a weight since its last use."""
        for number, (weight, host) in enumerate(zip(self._weights, self._in_host, strict=True)):
            tensor = weight.tensor
            moved = tensor.data_ptr() != host.data_ptr() or tensor.dtype != host.dtype
            if moved or any(_attribute(*owner) is not tensor for owner in weight.owners):
                raise RuntimeError(
                    f"{weight.names[0]} was moved or replaced while the model is offloaded; close "
                    "the Offload first, then change the model"
                )
            if weight.version != self._written[number]:
                # Written in host memory: what is on the card is old.
                self._written[number] = weight.version
                self._manager.evict(self._group.layer, self._group.name)


def _attribute(module: Any, key: str) -> Any:
    return module._parameters.get(key, module._buffers.get(key))


# Hooks


class _hooked:
    """Hooks around a part's forward, in a with statement."""

    def __init__(
        self, torch: Any, part: Part, groups: Sequence[_OnCard], backward: Backward
    ) -> None:
        self._torch, self._part, self._groups, self._backward = torch, part, groups, backward
        self._streamed = [group for group in groups if not group.resident]
        self._calls: list[_Call] = []  # under way

    def __enter__(self) -> Self:
        module = self._part.module
        self._compiled = module._compiled_call_impl
        if self._compiled is not None:
            # Hooks would be compiled with it.
            module._compiled_call_impl = self._call_compiled
            return self
        self._handles = [
            module.register_forward_pre_hook(self._before, prepend=True),
            module.register_forward_hook(self._after, always_call=True),
        ]
        return self

    def __exit__(self, *args: object) -> None:
        if self._compiled is not None:
            self._part.module._compiled_call_impl = self._compiled
            return
        for handle in self._handles:
            handle.remove()

    def _call_compiled(self, *arguments: Any, **keywords: Any) -> Any:
        self._before(None, arguments)
        try:
            return self._compiled(*arguments, **keywords)
        finally:
            self._after(None, arguments, None)

    def _before(self, module: Any, arguments: Any) -> None:
        call = _Call([], ExitStack())
        self._calls.append(call)
        if self._streamed and self._torch.is_grad_enabled():
            for group in self._streamed:
                group.require_frozen()
        for group in self._groups:
            call.begun.append((group, group.begin()))
        if self._streamed and self._torch.is_grad_enabled():
            call.saving.enter_context(self._backward.saved_tensors(self._streamed))

    def _after(self, module: Any, arguments: Any, result: Any) -> None:
        """Also if forward, or a hook before it, has raised."""
        if not self._calls:
            return
        call = self._calls.pop()
        call.saving.close()
        for group, stream in call.begun:
            group.end(stream)


# Code that is compiled around a part stops here: torch.compiler.disable() without its import.
_hooked._before._torchdynamo_disable = True  # type: ignore[attr-defined]
_hooked._after._torchdynamo_disable = True  # type: ignore[attr-defined]


class _Call(NamedTuple):
    begun: list[tuple[_OnCard, SupportsCudaStream]]
    saving: ExitStack


class _called:
    """Hooks around the model's own forward, in a with statement: they tell the manager where a pass
    begins and ends, and bring arguments to the card. If the arguments had to be moved, results go
    back to where those came from."""

    def __init__(
        self, torch: Any, model: Any, manager: WeightManager, device: Any, backward: Backward
    ) -> None:
        self._torch, self._model, self._manager, self._device = torch, model, manager, device
        self._backward = backward
        self._homes: list[Any] = []  # where the arguments of each call under way came from

    def __enter__(self) -> Self:
        self._handles = [
            self._model.register_forward_pre_hook(self._before, prepend=True, with_kwargs=True),
            self._model.register_forward_hook(self._after, always_call=True),
        ]
        return self

    def __exit__(self, *args: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _before(self, module: Any, arguments: Any, keywords: Any) -> tuple[Any, Any]:
        self._homes.append(None)
        self._backward.finish()  # one that raised
        self._manager.begin_pass()

        def move(tensor: Any) -> Any:
            if tensor.device == self._device:
                return tensor
            self._homes[-1] = tensor.device
            return tensor.to(self._device)

        return (
            map_tensors(self._torch, move, arguments),
            map_tensors(self._torch, move, keywords),
        )

    def _after(self, module: Any, arguments: Any, result: Any) -> Any:
        """Also if forward, or a hook before it, has raised."""
        if not self._homes:
            return None
        self._manager.begin_pass()
        home = self._homes.pop()
        if home is None:
            return None

        return map_tensors(self._torch, lambda tensor: tensor.to(home), result)


def map_tensors(torch: Any, change: Callable[[Any], Any], value: Any) -> Any:
    """Applies `change` to a tensor, and to those in lists, tuples, dicts and classes of these.
    Objects of other classes, such as a cache that the model writes, are passed as they are."""

    def changed(each: Any) -> Any:
        return map_tensors(torch, change, each)

    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        items = {key: changed(each) for key, each in value.items()}
        if all(items[key] is value[key] for key in items):
            return value
        return items if type(value) is dict else type(value)(**items)
    if isinstance(value, list | tuple):
        items_in_order = [changed(each) for each in value]
        if all(new is old for new, old in zip(items_in_order, value, strict=True)):
            return value
        if hasattr(value, "_fields"):
            return type(value)(*items_in_order)
        return type(value)(items_in_order)
    return value
