"""Groups of a checkpoint, by the names of its tensors.

They are those that offload() would make of the module: a layer is what has a number in its name,
its parts are the next words, and what is small stays on the card.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from vramkit.weights.layout import Group
from vramkit.weights.model import SMALL, group_names
from vramkit.weights.planner.arithmetic import Arithmetic, Experts, Tensor, count
from vramkit.weights.planner.shape import ModelError, ModelShape, aligned, make_shape

_LAST = re.compile(r"head|output|norm|ln_f|final|pooler|classifier|score|logits")
_LOOKED_UP = re.compile(r"embed|(^|\.)(wte|wpe|shared)(\.|$)")
_NO_WORDS = re.compile(r"pos|wpe|type")


class _Part(NamedTuple):
    """Where its tensors come in a pass, and what its name begins with."""

    stage: int  # before the layers, in them, behind them
    stack: str
    layer: int
    path: str


def shape_of(
    tensors: Sequence[Tensor],
    source: str,
    *,
    experts: Experts | None = None,
    small: int = SMALL,
) -> ModelShape:
    parts: dict[_Part, list[Tensor]] = {}
    for tensor in tensors:
        parts.setdefault(_part(tensor.name), []).append(_marked(tensor))
    stacks = _in_order(list(parts))
    layers: dict[tuple[int, str, int], list[_Part]] = {}

    def place(part: _Part) -> tuple[int, bool, int, int]:
        """Words are embedded before their positions are."""
        beside = part.stage == 0 and bool(_NO_WORDS.search(part.path))
        return part.stage, beside, stacks.index(part.stack), part.layer

    for part in sorted(parts, key=place):
        # Outside of layers each module is by itself, as if it were one.
        alone = part.path if part.stage != 1 else part.stack
        layers.setdefault((part.stage, alone, part.layer), []).append(part)
    groups: list[Group] = []
    arithmetic: list[Arithmetic] = []
    kept = 0
    for number, members in enumerate(layers.values()):
        members.sort(key=lambda part: _rank(part.path))
        for part, name in zip(members, group_names([m.path for m in members]), strict=True):
            inside = parts[part]
            nbytes = aligned([tensor.nbytes for tensor in inside])
            if sum(tensor.nbytes for tensor in inside) < small:
                kept += nbytes
                continue
            groups.append(Group(number, name, nbytes))
            arithmetic.append(count(inside, experts=experts))
    if not groups:
        raise ModelError(f"{source} has no weights worth streaming: no part of {small} bytes")
    _add_tied_head(parts, arithmetic)
    return make_shape(source, groups, arithmetic, kept, experts)


def _part(name: str) -> _Part:
    words = name.split(".")
    numbers = [place for place, word in enumerate(words[:-1]) if word.isdecimal() and place]
    if not numbers:
        path = ".".join(words[:-1]) or name
        return _Part(2 if _LAST.search(path.rpartition(".")[2]) else 0, "", 0, path)
    place = numbers[0]
    # A part that is one of a list has the number of it: "layer.0".
    end = place + 2
    if place + 2 in numbers:
        end += 1
    inside = words[place + 1 : end] if end < len(words) else words[place + 1 : -1]
    stack = ".".join(words[:place])
    return _Part(1, stack, int(words[place]), ".".join([stack, words[place], *inside]))


def _in_order(parts: Sequence[_Part]) -> list[str]:
    """Stacks of layers: encoders first, else as the file has them."""
    stacks = list(dict.fromkeys(part.stack for part in parts))
    return sorted(stacks, key=lambda stack: not re.search("encoder|vision|visual", stack))


def _rank(path: str) -> tuple[int, str]:
    """The attention comes before the feed-forward; parts that count, in that order."""
    word = path.lower()
    if "att" in word:
        return 0, path
    return 2 if re.search("mlp|ffn|feed|moe|expert|fc", word) else 1, path


def _marked(tensor: Tensor) -> Tensor:
    module = tensor.name.rpartition(".")[0]
    return tensor._replace(looked_up=bool(_LOOKED_UP.search(module)))


def _add_tied_head(parts: dict[_Part, list[Tensor]], arithmetic: list[Arithmetic]) -> None:
    """A model that has an embedding of words and no head multiplies with the embedding at its end,
    where the checkpoint has one tensor for both."""
    everything = [tensor for inside in parts.values() for tensor in inside]
    embeddings = (
        tensor
        for tensor in everything
        if tensor.looked_up and len(tensor.shape) == 2 and not _NO_WORDS.search(tensor.name)
    )
    words = max(embeddings, key=lambda tensor: tensor.nbytes, default=None)
    if words is None or any(t.shape == words.shape for t in everything if not t.looked_up):
        return
    head = words._replace(looked_up=False)
    arithmetic[-1] = arithmetic[-1].plus(count([head], experts=None))
