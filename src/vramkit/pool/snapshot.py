"""What a pool holds at one moment, as data: to look at, to keep and to compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from datetime import UTC, datetime
from io import StringIO
from operator import index
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from vramkit.driver.types import whole

if TYPE_CHECKING:
    from vramkit.pool.pool import Pool
    from vramkit.resources import Tracking

FORMAT: Final = "vramkit.snapshot"
VERSION: Final = 3
NARROWEST: Final = 40  # columns; in fewer, figures and labels have no room

State = Literal["live", "cached", "waiting", "idle"]


class Extent(msgspec.Struct, frozen=True, gc=False):
    """Contiguous mapped memory; `pieces` are the bytes of each handle of the driver in it.

    What lies in no slab and no block of it is idle.
    """

    address: int
    bytes: int
    pieces: list[int]


class Slab(msgspec.Struct, frozen=True, gc=False):
    """A part of an extent that is cut into `count` equal blocks."""

    address: int
    bytes: int
    block_bytes: int
    count: int


class Block(msgspec.Struct, frozen=True, gc=False):
    """`asked` is 0 unless live; `stream` is an index in Snapshot.streams, -1 for idle blocks."""

    address: int
    bytes: int
    asked: int
    state: State
    stream: int


class Stream(msgspec.Struct, frozen=True, gc=False):
    """`id` is the driver's; 0 for the legacy default stream, which is known by its kind."""

    id: int
    kind: Literal["stream", "capture", "legacy"] = "stream"
    ended: bool = False

    @property
    def name(self) -> str:
        if self.kind == "legacy":
            return "legacy default stream"
        return f"{self.kind} {self.id}" + (" (ended)" if self.ended else "")


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Made by Pool.snapshot(). Extents, slabs and blocks are in the order of their addresses.

    Exact if no other thread uses the pool meanwhile: blocks and `stats` are read one after the
    other.
    """

    format: Literal["vramkit.snapshot"] = FORMAT
    version: Literal[3] = VERSION
    time: datetime
    device: str
    driver: str
    simulated: str | None
    """The profile, if the card is a simulated one."""
    stats: dict[str, Any]
    """Pool.stats() by name."""
    extents: list[Extent]
    slabs: list[Slab]
    blocks: list[Block]
    streams: list[Stream]
    stacks: dict[int, list[str]] = {}
    """By address of a live block: where it was allocated, the innermost frame first."""

    def __post_init__(self) -> None:
        if not isinstance(self.stats.get("fragmentation_bytes"), int):
            raise ValueError("its stats have no fragmentation_bytes")
        _require_order("extents", self.extents)
        _require_order("slabs", self.slabs)
        _require_order("blocks", self.blocks)
        _require_within("slab", self.slabs, self.extents)
        _require_within("block", self.blocks, self.extents)
        for block in self.blocks:
            if not -1 <= block.stream < len(self.streams):
                raise ValueError(
                    f"the block at {block.address:#x} is of stream number {block.stream}; "
                    f"there are {len(self.streams)}"
                )
        if self.stacks:
            live = {block.address for block in self.blocks if block.state == "live"}
            _require_live(self.stacks, live)

    @property
    def fragmentation_bytes(self) -> int:
        """Free, in ranges below the largest size asked for lately."""
        nbytes: int = self.stats["fragmentation_bytes"]
        return nbytes

    def stream_name(self, number: int) -> str:
        """Of Block.stream."""
        return "no stream" if number < 0 else self.streams[number].name

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()

    def to_html(self) -> str:
        """The map as one page that fetches nothing."""
        from vramkit.pool.map import document
        from vramkit.report.html import page

        return page(document(self))

    def to_text(self, width: int = 100) -> str:
        """Figures, map and sums for a terminal of that many columns, without colours."""
        if (width := whole(width, "width")) < NARROWEST:
            raise ValueError(f"width is {width}; it may be {NARROWEST} columns or more")
        from rich.console import Console

        from vramkit.pool.map import terminal_blocks
        from vramkit.report.terminal import print_block

        console = Console(file=StringIO(), width=width, color_system=None)
        for block in terminal_blocks(self):
            print_block(console, block)
        assert isinstance(console.file, StringIO)
        return console.file.getvalue().lstrip("\n")

    def save(self, path: str | PathLike[str]) -> None:
        """Write a .json file, which read() takes, or the map as an .html page."""
        forms = {".json": self.to_json, ".html": self.to_html}
        form = forms.get(Path(path).suffix.lower())
        if form is None:
            raise ValueError(
                f"cannot save a snapshot as {path}: the name may end in .json or .html"
            )
        Path(path).write_text(form(), encoding="utf-8")

    @classmethod
    def read(cls, path: str | PathLike[str]) -> Snapshot:
        """The snapshot in a .json file that save() wrote. Raises ValueError if it is not one."""
        content = Path(path).read_bytes()
        try:
            head = msgspec.json.decode(content, type=_Head)
            if head.format != FORMAT:
                raise ValueError(f"its format is {head.format!r}, not {FORMAT!r}")
            if head.version != VERSION:
                raise ValueError(
                    f"it is of version {head.version}, and this vramkit reads {VERSION}"
                )
            return msgspec.json.decode(content, type=cls)
        except ValueError as error:  # msgspec's errors are of that kind
            raise ValueError(
                f"{path} is no snapshot: {error}. Give a .json file that Snapshot.save() wrote"
            ) from None


class _Head(msgspec.Struct):
    format: str = ""
    version: int = 0


def take(
    pool: Pool, layout: Mapping[str, Any], stacks: Mapping[int, Sequence[str]] | Tracking | None
) -> Snapshot:
    """From the layout that the engine returns. Raises ValueError for a stack whose address is no
    live block. Such stacks of a Tracking adaptor are left out instead: another thread may have
    freed the block meanwhile.
    """
    driver = pool.device.driver
    live = {block["address"] for block in layout["blocks"] if block["state"] == "live"}
    frames = _lines(stacks)
    if isinstance(stacks, Mapping):
        _require_live(frames, live)
    frames = {at: lines for at, lines in frames.items() if at in live}
    return msgspec.convert(
        {
            "time": datetime.now(UTC),
            "device": pool.device.name,
            "driver": driver.description,
            "simulated": None if driver.sim is None else driver.sim.settings().profile,
            "stats": msgspec.to_builtins(pool.stats()),
            **layout,
            "stacks": frames,
        },
        Snapshot,
    )


def _lines(stacks: Mapping[int, Sequence[str]] | Tracking | None) -> dict[int, list[str]]:
    from vramkit.resources import Tracking

    if stacks is None:
        return {}
    if isinstance(stacks, Tracking):
        return {block.address: list(map(str, block.stack)) for block in stacks.outstanding()}
    if not isinstance(stacks, Mapping):
        raise TypeError(
            f"stacks is of type {type(stacks).__name__}; it may be a Tracking adaptor, or a "
            "mapping from addresses to lists of lines of text"
        )
    for address, lines in stacks.items():
        if not hasattr(type(address), "__index__"):
            raise TypeError(f"stacks has the key {address!r}; it may be an address, an integer")
        if (
            isinstance(lines, str)
            or not isinstance(lines, Sequence)
            or not all(isinstance(line, str) for line in lines)
        ):
            raise TypeError(
                f"the stack of {address!r} is {lines!r}; it may be a list of lines of text"
            )
    return {index(address): list(lines) for address, lines in stacks.items()}


def _require_live(stacks: Mapping[int, object], live: Set[int]) -> None:
    for address in stacks:
        if address not in live:
            raise ValueError(
                f"stacks has the address {address:#x}, which is of no live block: leave it out"
            )


def _require_order(what: str, placed: Sequence[Extent | Slab | Block]) -> None:
    end = 0
    for one in placed:
        if one.address < end or one.bytes <= 0:
            raise ValueError(f"{what} overlap, or are out of order, at {one.address:#x}")
        end = one.address + one.bytes


def _require_within(what: str, placed: Sequence[Slab | Block], extents: Sequence[Extent]) -> None:
    """Both are in the order of their addresses."""
    holders = iter(extents)
    holder = next(holders, None)
    for one in placed:
        while holder is not None and holder.address + holder.bytes <= one.address:
            holder = next(holders, None)
        if (
            holder is None
            or one.address < holder.address
            or one.address + one.bytes > holder.address + holder.bytes
        ):
            raise ValueError(f"the {what} at {one.address:#x} does not lie in an extent")
