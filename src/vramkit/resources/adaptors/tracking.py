"""Where the live blocks came from."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from vramkit.driver.types import integer
from vramkit.resources.adaptors.adaptor import Adaptor

if TYPE_CHECKING:
    from vramkit.resources.resource import Resource

_OWN_FOLDER = str(Path(__file__).parent)


class Frame(NamedTuple):
    """A line of Python that was being executed."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


Stack = tuple[Frame, ...]


class Outstanding(NamedTuple):
    """A live block and the Python stack that asked for it, the innermost frame first."""

    address: int
    size: int
    stack: Stack


class Tracking(Adaptor):
    """Remembers the Python stack of every live block, to find out what holds or leaks memory.

    depth: frames kept of each stack. Frames of adaptors are left out.
    """

    def __init__(self, upstream: Resource, *, depth: int = 16) -> None:
        depth = integer(depth, "depth", 1)
        super().__init__(upstream)
        self._depth = depth

    @property
    def depth(self) -> int:
        return self._depth

    def outstanding(self) -> list[Outstanding]:
        """The live blocks, the largest first."""
        with self._lock:
            live = self._live.copy()
        found = [Outstanding(address, *block) for address, block in live.items()]
        return sorted(found, key=lambda block: (-block.size, block.address))

    def report(self) -> str:
        """The live blocks by stack, the stack that holds most first, as text."""
        groups: dict[Stack, list[int]] = {}
        for block in self.outstanding():
            groups.setdefault(block.stack, []).append(block.size)
        total = sum(map(sum, groups.values()))
        blocks = sum(map(len, groups.values()))
        lines = [f"{total:,} bytes in {_blocks(blocks)} from {len(groups)} place(s)"]
        for stack, sizes in sorted(groups.items(), key=lambda group: -sum(group[1])):
            lines.append(f"{sum(sizes):,} bytes in {_blocks(len(sizes))}:")
            lines.extend(f"    {frame}" for frame in stack)
        return "\n".join(lines)

    def allocated(self, address: int, size: int, stream: object | None) -> Stack:
        return _stack(self._depth)


def _blocks(count: int) -> str:
    return "1 block" if count == 1 else f"{count:,} blocks"


def _stack(depth: int) -> Stack:
    frames: list[Frame] = []
    frame = sys._getframe(1)
    while frame is not None and len(frames) < depth:
        code = frame.f_code
        if not code.co_filename.startswith(_OWN_FOLDER):
            frames.append(Frame(code.co_filename, frame.f_lineno, code.co_qualname))
        frame = frame.f_back  # type: ignore[assignment]
    return tuple(frames)
