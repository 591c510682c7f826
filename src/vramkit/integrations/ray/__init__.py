"""Ray places tasks and actors by GPU memory; vramkit enforces it, and switches what does not fit.

`start_node()` on each machine, `options(memory="12GiB")` for each task or actor, `status()` for
all. See docs/ray.md.
"""

from vramkit.cluster.status import NodeStatus
from vramkit.integrations.ray.cluster import connected, status
from vramkit.integrations.ray.node import RESOURCE, node_environment, node_resources, start_node
from vramkit.integrations.ray.options import options

__all__ = [
    "RESOURCE",
    "NodeStatus",
    "connected",
    "node_environment",
    "node_resources",
    "options",
    "start_node",
    "status",
]
