"""The status of one node of a cluster, as commands show it."""

from __future__ import annotations

import msgspec

from vramkit.share.status import Status


class NodeStatus(msgspec.Struct, frozen=True):
    node: str
    """Its id in the cluster."""
    name: str
    address: str
    announced_mib: int
    problem: str
    """Why there is no status, or why it does not mean what it should; empty: all is well."""
    status: Status | None
