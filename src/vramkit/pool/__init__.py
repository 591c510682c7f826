"""The pool: device memory at the price of a list operation, with nothing to configure."""

from vramkit._core import DeviceBuffer as Buffer
from vramkit.pool.config import PoolConfig, PoolStats
from vramkit.pool.pool import Pool
from vramkit.pool.snapshot import Snapshot

__all__ = ["Buffer", "Pool", "PoolConfig", "PoolStats", "Snapshot"]
