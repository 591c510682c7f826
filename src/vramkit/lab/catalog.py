"""The experiments, by the names of their commands."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from vramkit.lab.allocators import ALLOCATORS
from vramkit.lab.experiment import Experiment
from vramkit.lab.fragmentation import FRAGMENTATION
from vramkit.lab.sharing import SHARING
from vramkit.lab.weights import SWEEP, WEIGHTS

_ALL: tuple[Experiment, ...] = (ALLOCATORS, FRAGMENTATION, WEIGHTS, SWEEP, SHARING)
EXPERIMENTS: dict[str, Experiment] = {each.name: each for each in _ALL}


def find(name: str) -> Experiment:
    """One of EXPERIMENTS, or any other by the place of the object: "package.module:NAME".

    Raises ValueError where there is none.
    """
    if name in EXPERIMENTS:
        return EXPERIMENTS[name]
    module, colon, attribute = name.partition(":")
    if not colon:
        known = ", ".join(EXPERIMENTS) or "none"
        raise ValueError(f"no experiment is called {name!r}; there are: {known}")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"no experiment is at {name!r}: {error}") from error
    return cast(Experiment, found)
