"""Gives frameworks vramkit's pool as soon as a program has imported them.

Runs inside foreign programs: a failure is logged, and the framework keeps its own allocator.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import logging
import sys
from collections.abc import Sequence
from types import ModuleType

logger = logging.getLogger(__name__)

FRAMEWORKS = ("torch", "cupy", "rmm")


class _Loader(importlib.abc.Loader):
    """The framework's own loader, and the installation behind it."""

    def __init__(self, name: str, loader: importlib.abc.Loader) -> None:
        self._name, self._loader = name, loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # From here on the module is as if its own loader had been found.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        _install_in(self._name)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the frameworks by the other finders, once each."""

    def __init__(self) -> None:
        self._waiting = set(FRAMEWORKS)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._waiting:
            return None
        self._waiting.discard(fullname)
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(fullname, spec.loader)
                return spec
        self._waiting.add(fullname)
        return None


def install() -> None:
    """From now on each framework that is imported allocates from a pool."""
    sys.meta_path.insert(0, _Finder())


def _install_in(name: str) -> None:
    from importlib import import_module

    try:
        import_module(f"vramkit.integrations.{name}").install()
        logger.info("%s allocates from vramkit's pool", name)
    except Exception as error:
        # No card, the simulated GPU, a build without CUDA: the program itself must not notice.
        logger.warning("%s keeps its own allocator: %s", name, error)
