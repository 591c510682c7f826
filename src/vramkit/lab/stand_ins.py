"""Which subjects stand for the three that the studies of allocators measured."""

from __future__ import annotations

from collections.abc import Collection

Kind = tuple[str, ...]
POOL: Kind = ("rmm_pool", "fixed_pool")
ASYNC: Kind = ("rmm_async", "async")
ARENA: Kind = ("rmm_arena", "arena")
KINDS = (POOL, ASYNC, ARENA)
"""RMM's own where it was measured, else the same method here."""


def one_of(kind: Kind, measured: Collection[str]) -> str:
    """The first that was measured; the last of the kind where none was."""
    return next((name for name in kind if name in measured), kind[-1])
