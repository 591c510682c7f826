"""NumPy in CuPy's place, which needs a card: what the engine for tables uses of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

numpy = pytest.importorskip("numpy")


class Stream:
    """Notes what waits for what."""

    def __init__(self, non_blocking: bool = False) -> None:
        assert non_blocking, "a blocking stream would wait for the default one"
        self.waits: list[Stream] = []
        self.ptr = 0

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *ending: object) -> None:
        pass

    def record(self) -> Stream:
        return self

    def wait_event(self, event: Stream) -> None:
        self.waits.append(event)

    def synchronize(self) -> None:
        pass


class Cupy:
    """What the engine uses of CuPy; arrays are NumPy's."""

    def __init__(self) -> None:
        self.cuda = SimpleNamespace(Stream=Stream, Device=lambda: Stream(non_blocking=True))

    def __getattr__(self, name: str) -> Any:
        return getattr(numpy, name)

    def ElementwiseKernel(self, inputs: str, output: str, code: str, name: str) -> Any:
        names = [each.split()[1] for each in inputs.split(", ")]
        assert code == f"y = {' + '.join(names)}" and output == "int64 y"

        def kernel(*columns: Any) -> Any:
            assert len(columns) == len(names)
            return sum(columns)

        return kernel
