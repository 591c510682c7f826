"""The weights of a PyTorch module, in the groups in which they are streamed.

A layer is an entry of a ModuleList or of a Sequential. Each part of it that is called on its own
and has weights worth a copy (its attention, its feed-forward) is a group. Outside of layers, each
module that holds such weights itself is one, and so is whatever torch.compile was applied to. What
is small stays on the card. Experts may be groups of their own, of which only those that are chosen
come to the card.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from vramkit.weights.layout import ALIGNMENT, Group

SMALL = 1 << 20
"""Bytes of weights below which a module's stay on the card: a copy of its own, with two waits,
would take longer than the 19 us of the bytes."""


class Weight(NamedTuple):
    """A parameter or buffer, under all the names that refer to it."""

    tensor: Any
    names: tuple[str, ...]
    owners: tuple[tuple[Any, str], ...]
    """Modules that have it, and the attribute."""
    is_buffer: bool
    offset: int = 0
    """In its group."""
    whole: Any = None
    """The DTensor of which `tensor` is this rank's part; None: it is no part."""

    @property
    def nbytes(self) -> int:
        return int(self.tensor.numel() * self.tensor.element_size())

    @property
    def version(self) -> int:
        """Counts the writes to it, but for those to `.data`."""
        written = 0 if self.whole is None else self.whole._version
        return int(self.tensor._version + written)

    @property
    def requires_grad(self) -> bool:
        shown = self.tensor if self.whole is None else self.whole
        return bool(shown.requires_grad)


class Part(NamedTuple):
    """A module whose call uses groups."""

    name: str
    module: Any
    groups: tuple[int, ...]


class Experts(NamedTuple):
    """A module that is given, for each token, the experts to use; `argument` says where."""

    name: str
    module: Any
    number: int
    argument: tuple[int, str]


class Model(NamedTuple):
    """`weights[i]` are those of `groups[i]`; `kept` are small, trained, or no module's own. Groups
    of `experts`, in this order, come behind all others."""

    module: Any
    groups: tuple[Group, ...]
    weights: tuple[tuple[Weight, ...], ...]
    parts: tuple[Part, ...]
    kept: tuple[Weight, ...]
    experts: tuple[Experts, ...] = ()

    @property
    def scheduled(self) -> int:
        """Groups that are used in every pass: all but experts."""
        return len(self.groups) - len(self.experts)


class UnsupportedModel(ValueError):
    """The model has a weight that cannot be streamed."""


def analyse(
    torch: Any,
    model: Any,
    *,
    small: int = SMALL,
    whole: Collection[str] = (),
    meta: bool = False,
    routed: bool = False,
) -> Model:
    """Modules with less than `small` bytes of weights keep them on the card. Those named in `whole`
    are not divided. `meta`: weights may be on the meta device, without values. `routed`: experts
    are groups of their own.

    Raises TypeError for what is no module, UnsupportedModel by the weight's name.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model is a {type(model).__name__}; it may be a torch.nn.Module")
    if is_compiled(model):
        raise UnsupportedModel(
            "the model is compiled as a whole, and would need all its weights at once; compile its "
            "layers instead"
        )
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise UnsupportedModel(
                f"{name or 'the model'} is a ScriptModule of torch.jit, which cannot be told when "
                "it is called; give the module that it was made of"
            )
    weights = _collect(torch, model)
    if not weights:
        raise ValueError(f"the {type(model).__name__} has no parameters or buffers to stream")
    trained = _trained(weights)
    streamable = [w for w in weights if w.tensor.numel() and id(w.tensor) not in trained]
    _refuse(torch, streamable, meta)
    by_tensor = {id(weight.tensor): weight for weight in streamable}
    groups: list[Group] = []
    grouped: list[tuple[Weight, ...]] = []
    parts: list[Part] = []
    where: dict[int, int] = {}  # the group of a tensor
    found_parts = _Parts(torch, model, small, whole).found
    experts = list(_experts(model, found_parts, by_tensor, small, whole)) if routed else []
    apart = {id(tensor) for each, _ in experts for tensor in _tensors(each.module)}
    for found in found_parts:
        tensors = [
            id(tensor)
            for tensor in _tensors(found.module)
            if id(tensor) in by_tensor and id(tensor) not in apart
        ]
        new = [by_tensor[each] for each in dict.fromkeys(tensors) if each not in where]
        if new and _bytes(new) >= small:
            placed, nbytes = _place(new)
            where.update((id(weight.tensor), len(groups)) for weight in new)
            groups.append(Group(found.layer, found.group, nbytes))
            grouped.append(placed)
        for name, module in found.called:
            used = {where[id(each)] for each in _tensors(module) if id(each) in where}
            if used:
                parts.append(Part(name, module, tuple(sorted(used))))
    for each, layer in experts:
        placed, nbytes = _place([by_tensor[id(tensor)] for tensor in _tensors(each.module)])
        groups.append(Group(layer, "experts", nbytes))
        grouped.append(placed)
    kept = tuple(w for w in weights if id(w.tensor) not in where and id(w.tensor) not in apart)
    return Model(
        model,
        tuple(groups),
        tuple(grouped),
        tuple(parts),
        kept,
        tuple(each for each, _ in experts),
    )


# Experts

_CHOSEN = ("top_k_index", "router_indices")
"""What modules of transformers call the experts of each token."""


def _experts(
    model: Any,
    parts: Sequence[_Found],
    streamable: Mapping[int, Weight],
    small: int,
    whole: Collection[str],
) -> Iterator[tuple[Experts, int]]:
    """Modules of which only the chosen experts need to come, each with its layer: all their weights
    have one row an expert, and their forward is told which are chosen."""
    seen: set[int] = set()
    for path, module in model.named_modules():
        argument = _chosen_argument(module)
        own = list(_tensors(module))
        if argument is None or not own or any(own[0].shape[:1] != w.shape[:1] for w in own):
            continue
        part = next(found for found in parts if _is_inside(path, found.name))
        undivided = part.name in whole or any(
            is_compiled(model.get_submodule(outer)) for outer in _outer(path)
        )
        known = all(id(w) in streamable and id(w) not in seen for w in own)
        rows = all(w.stride(0) * w.shape[0] == w.numel() for w in own)
        count = own[0].shape[0]
        if undivided or not known or not rows or count < 2:
            continue
        if _bytes([streamable[id(w)] for w in own]) < small:
            continue
        seen.update(id(w) for w in own)
        yield Experts(path, module, count, argument), part.layer


def _chosen_argument(module: Any) -> tuple[int, str] | None:
    names = list(inspect.signature(type(module).forward).parameters)[1:]
    return next(((names.index(name), name) for name in _CHOSEN if name in names), None)


def _is_inside(path: str, part: str) -> bool:
    return part in ("", path) or path.startswith(f"{part}.")


def _outer(path: str) -> Iterator[str]:
    """The module itself and those around it, but for the model."""
    while path:
        yield path
        path = path.rpartition(".")[0]


# Weights


def _collect(torch: Any, model: Any) -> list[Weight]:
    found: dict[int, Weight] = {}
    for path, module in model.named_modules():
        for own, is_buffer in ((module._parameters, False), (module._buffers, True)):
            for key, tensor in own.items():
                if tensor is None:
                    continue
                name = f"{path}.{key}" if path else key
                part = part_of(tensor)
                whole = None if part is tensor else tensor
                known = found.get(id(part), Weight(part, (), (), is_buffer, whole=whole))
                found[id(part)] = known._replace(
                    names=(*known.names, name), owners=(*known.owners, (module, key))
                )
    return list(found.values())


def _trained(weights: Sequence[Weight]) -> set[int]:
    """Parameters that are trained while most of the model is frozen: adapters. They stay on the
    card. Where most require a gradient, nobody froze the model: it is as it was loaded."""
    parameters = [weight for weight in weights if not weight.is_buffer]
    trained = [weight for weight in parameters if weight.requires_grad]
    if 2 * _bytes(trained) > _bytes(parameters):
        return set()
    return {id(weight.tensor) for weight in trained}


def _bytes(weights: Sequence[Weight]) -> int:
    return sum(weight.nbytes for weight in weights)


def _refuse(torch: Any, weights: Sequence[Weight], meta: bool) -> None:
    plain = {torch.Tensor, torch.nn.Parameter, torch.nn.Buffer}
    spans: dict[int, list[tuple[int, int, Weight]]] = {}
    for weight in weights:
        tensor, name = weight.tensor, weight.names[0]
        if tensor.is_meta and not meta:
            raise UnsupportedModel(
                f"{name} is on the meta device and has no values; load the weights first, or give "
                "offload() their source"
            )
        if tensor.is_meta and weight.whole is not None:
            raise UnsupportedModel(f"{name} is a DTensor on the meta device: load it first")
        if type(tensor) not in plain:
            raise UnsupportedModel(
                f"{name} is a {type(tensor).__name__}, a kind of tensor whose bytes vramkit does "
                "not know how to lay out"
            )
        if tensor.is_quantized:
            raise UnsupportedModel(f"{name} is quantized ({tensor.dtype}), which is not streamed")
        if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
            raise UnsupportedModel(f"{name} is no plain strided tensor ({tensor.layout})")
        if not _dense(tensor):
            raise UnsupportedModel(
                f"{name} has gaps or overlaps between its elements (shape {tuple(tensor.shape)}, "
                f"strides {tensor.stride()}); make it contiguous first"
            )
        if tensor.is_meta:
            continue  # it has no address
        storage = tensor.untyped_storage().data_ptr()
        begin = tensor.data_ptr()
        spans.setdefault(storage, []).append((begin, begin + weight.nbytes, weight))
    for inside in spans.values():
        inside.sort(key=lambda span: span[0])
        for (_, end, one), (begin, _, other) in pairwise(inside):
            if begin < end:
                raise UnsupportedModel(
                    f"{one.names[0]} and {other.names[0]} share memory without being one tensor; "
                    "make them one parameter, or copies"
                )


def _dense(tensor: Any) -> bool:
    """Whether its elements fill a range of memory, in whatever order."""
    expected = 1
    for length, stride in sorted(
        zip(tensor.shape, tensor.stride(), strict=True), key=lambda pair: pair[1]
    ):
        if length == 1:
            continue
        if stride != expected:
            return False
        expected *= length
    return True


def _place(weights: Sequence[Weight]) -> tuple[tuple[Weight, ...], int]:
    """Offsets in one buffer, aligned as PyTorch aligns: the same kernels are chosen."""
    placed, end = [], 0
    for weight in weights:
        placed.append(weight._replace(offset=end))
        end += -(-weight.nbytes // ALIGNMENT) * ALIGNMENT
    return tuple(placed), end


def part_of(tensor: Any) -> Any:
    """What this rank has of a DTensor: an ordinary tensor, always the same one. Other tensors are
    what they are."""
    distributed = sys.modules.get("torch.distributed.tensor")
    is_whole = distributed is not None and isinstance(tensor, distributed.DTensor)
    return tensor._local_tensor if is_whole else tensor


def _tensors(module: Any) -> Iterator[Any]:
    for each in module.modules():
        for own in (each._parameters, each._buffers):
            yield from (part_of(tensor) for tensor in own.values() if tensor is not None)


# Modules


class _Found(NamedTuple):
    name: str
    module: Any
    layer: int
    group: str
    called: tuple[tuple[str, Any], ...]
    """Modules whose calls use its weights, with their names."""


class _Parts:
    """Walks a module in the order of its definition."""

    def __init__(self, torch: Any, model: Any, small: int, whole: Collection[str] = ()) -> None:
        nn, self._small = torch.nn, small
        self._uncalled = (nn.ModuleList, nn.ModuleDict)
        self._held = (nn.ParameterList, nn.ParameterDict)  # weights of the module that has them
        self._lists = (nn.ModuleList, nn.Sequential)
        self._walked = nn.Sequential.forward
        # They read the weights of their parts themselves.
        self._undivided = (nn.MultiheadAttention, nn.TransformerEncoderLayer)
        self._is_parametrized = nn.utils.parametrize.is_parametrized
        self._whole = frozenset(whole)
        self.found: list[_Found] = []
        self._layers = 0
        called = {
            name
            for name, module in model.named_modules()
            if name and not isinstance(module, self._uncalled)
        }
        if unknown := sorted(self._whole - called):
            raise ValueError(
                f"whole names {unknown[0]!r}, which is no module of the model that can be called"
            )
        self._visit(model, "")

    def _visit(self, module: Any, path: str) -> None:
        if self._is_undivided(module, path):
            self._add([(path, module)])
            return
        if self._is_stack(module):
            for name, child in module.named_children():
                if any(True for _ in _tensors(child)):
                    self._visit_layer(child, _joined(path, name))
            return
        children = list(self._children(module))
        inside = any(True for _, child in children for _ in _tensors(child))
        if not inside or (self._holds_much(module) and not self._has_layers(module)):
            self._add([(path, module)])
            return
        # What it holds itself is in use while its layers are: it stays on the card.
        for name, child in children:
            self._visit(child, _joined(path, name))

    def _visit_layer(self, layer: Any, path: str) -> None:
        if self._is_undivided(layer, path):
            self._add([(path, layer)])
        elif self._has_layers(layer):
            self._visit(layer, path)
        elif self._holds_much(layer):
            self._add([(path, layer)])
        else:
            parts = list(self._called(layer, path))
            self._add(parts or [(path, layer)])

    def _called(self, module: Any, path: str) -> Iterator[tuple[str, Any]]:
        """Parts that are modules with a forward of their own."""
        for name, child in self._children(module):
            inside = _joined(path, name)
            if isinstance(child, self._uncalled) and not self._is_undivided(child, inside):
                yield from self._called(child, inside)
            elif any(True for _ in _tensors(child)):
                yield inside, child

    def _children(self, module: Any) -> Iterator[tuple[str, Any]]:
        return (each for each in module.named_children() if not isinstance(each[1], self._held))

    def _add(self, parts: Sequence[tuple[str, Any]]) -> None:
        """The parts of one layer."""
        names = group_names([path for path, _ in parts])
        for (path, module), name in zip(parts, names, strict=True):
            called = tuple(self._entries(module, path))
            self.found.append(_Found(path, module, self._layers, name, called))
        self._layers += 1

    def _entries(self, module: Any, path: str) -> Iterator[tuple[str, Any]]:
        """Those of a Sequential are called also by who only walks over it."""
        if type(module).forward is not self._walked or self._is_undivided(module, path):
            yield path, module
            return
        for name, child in module.named_children():
            yield from self._entries(child, _joined(path, name))

    def _has_layers(self, module: Any) -> bool:
        return any(self._is_stack(each) and _alike(each) for each in module.modules())

    def _holds_much(self, module: Any) -> bool:
        """Weights of its own that are in use while its parts are."""
        lists = (child for child in module.children() if isinstance(child, self._held))
        held = [module, *lists]
        own = (t for each in held for d in (each._parameters, each._buffers) for t in d.values())
        nbytes = sum(t.numel() * t.element_size() for t in own if t is not None)
        return bool(nbytes >= max(self._small, 1))

    def _is_undivided(self, module: Any, path: str) -> bool:
        return (
            path in self._whole
            or is_compiled(module)
            or isinstance(module, self._undivided)
            or self._is_parametrized(module)
        )

    def _is_stack(self, module: Any) -> bool:
        return isinstance(module, self._lists) and len(module) > 1


def is_compiled(module: Any) -> bool:
    """Whether torch.compile was applied to it. Its call is one piece: hooks inside are not seen."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    wrapped = dynamo is not None and isinstance(module, dynamo.OptimizedModule)
    return wrapped or module._compiled_call_impl is not None


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _alike(stack: Any) -> bool:
    """Three or more of one class: layers, and not the parts of one."""
    children = list(stack.children())
    return len(children) > 2 and len({type(child) for child in children}) == 1


_KINDS = {"attn": ("att",), "ffn": ("mlp", "ffn", "feed_forward", "moe", "expert")}


def group_names(paths: Sequence[str]) -> list[str]:
    """ "attn" and "ffn" where just one part of the layer is that, else the part's own name."""
    last = [path.rpartition(".")[2] for path in paths]
    own = last if len(set(last)) == len(last) else list(paths)
    names = list(own)
    for kind, words in _KINDS.items():
        alike = [
            number
            for number, word in enumerate(last)
            if "norm" not in word.lower() and any(each in word.lower() for each in words)
        ]
        if len(alike) == 1 and kind not in own:
            names[alike[0]] = kind
    return [name or "model" for name in names]
