"""What a chapter is.

A chapter
1. is one object in `chapters.CHAPTERS`: a title and a function from Context to ChapterResult;
2. shows itself by blocks alone and never prints;
3. gives its figures as `facts` too, for --json;
4. leaves the card as it found it, also where it fails, and never takes most of its memory: other
   programs may be on it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from vramkit.report.blocks import Block, Callout, Text

if TYPE_CHECKING:
    from vramkit.driver import Device, Driver


@dataclass(frozen=True)
class Context:
    """What all chapters share."""

    driver: Driver
    device: Device
    profile: str | None  # where the card is a simulated one
    why_simulated: str | None  # where that was not asked for


class ChapterResult(msgspec.Struct, frozen=True):
    blocks: list[Block]
    facts: dict[str, object]
    failure: Exception | None = None
    """Set by attempt(): a chapter raises what goes wrong."""


@dataclass(frozen=True)
class Chapter:
    title: str
    run: Callable[[Context], ChapterResult]


def attempt(chapter: Chapter, context: Context) -> ChapterResult:
    """What the chapter shows; where it fails, its error, so that the other chapters go on."""
    try:
        return chapter.run(context)
    except Exception as failure:
        text = f"{type(failure).__name__}: {failure}"
        return ChapterResult([Callout("bad", "This chapter failed", text)], {}, failure)


def same_results(same: bool, of_what: str) -> Block:
    """Whether two ways to do the same work came to the same result, by a checksum."""
    if same:
        return Text(f"Both computed the same checksum of all {of_what}.")
    return Callout("bad", "The results differ", f"the checksums of all {of_what} are not the same")
