"""On each node of Ray: puts the workers of `options()` under the gate, and keeps the daemon.

Ray's agent of the node loads this class (RAY_RUNTIME_ENV_PLUGINS) and asks it before it starts a
worker, so that paths, socket and settings are the node's own.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ray._private.runtime_env.plugin import RuntimeEnvPlugin

from vramkit.integrations.ray.options import FIELD, from_field
from vramkit.share import paths
from vramkit.share.keeper import Keeper
from vramkit.share.run import RunOptions, environment_here

if TYPE_CHECKING:
    import logging


class Gate(RuntimeEnvPlugin):  # type: ignore[misc]
    name = FIELD
    # After those that set variables of their own.
    priority = 90

    def __init__(self) -> None:
        self._keeper = Keeper(paths.chosen_socket())

    @staticmethod
    def validate(runtime_env_dict: dict[str, Any]) -> None:
        from_field(runtime_env_dict[FIELD])

    async def create(
        self, uri: str | None, runtime_env: Any, context: Any, logger: logging.Logger
    ) -> float:
        """Sets the variables of a worker. What fails here is the error of its task or actor."""
        chosen = from_field(runtime_env[FIELD])
        base = {**os.environ, **context.env_vars}
        added = await asyncio.to_thread(self._added, chosen, base)
        context.env_vars.update(added)
        return 0

    def _added(self, chosen: RunOptions, base: Mapping[str, str]) -> dict[str, str]:
        self._keeper.start()
        return environment_here(chosen, base)
