"""The pool of a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any

import msgspec

from vramkit import _core
from vramkit.driver.opening import device_of
from vramkit.driver.types import shown
from vramkit.pool.config import PoolConfig, PoolStats
from vramkit.pool.shortage import ShortageCallback

if TYPE_CHECKING:
    from vramkit.driver import Device
    from vramkit.pool.snapshot import Snapshot
    from vramkit.resources import Tracking

_instances: dict[tuple[int, int], Pool] = {}
_lock = Lock()


class Pool(_core.PoolEngine):
    """Hands out device memory in stream order. Grows as needed: there is no size to choose.

    malloc and free may be called from any thread. A block that is freed and allocated again on one
    stream costs no driver call and, below 2 MiB, no lock except at a new peak of usage. Settings
    are those of PoolConfig, as keywords.
    """

    def __init__(self, *, device: Device | int | None = None, **settings: Any) -> None:
        config = _configured(PoolConfig(), settings)
        self._open(device_of(device), config, config.for_engine())

    @staticmethod
    def instance(device: Device | int | None = None) -> Pool:
        """The process-wide pool of a device, made on first use and again after it was closed.

        Always a plain Pool, also when called on a subclass. C programs get the same pool by
        vramkit_pool_instance(device).
        """
        found = device_of(device)
        key = (id(found.driver), found.ordinal)
        with _lock:
            pool = _instances.get(key)
            if pool is None or pool.closed:
                pool = Pool.__new__(Pool)
                pool._open(found, PoolConfig(), None)
                _instances[key] = pool
            return pool

    def _open(self, device: Device, config: PoolConfig, engine: _core.PoolConfig | None) -> None:
        """Without settings for the engine it is the process-wide one."""
        self._device = device
        self._config = config
        self._changing = Lock()
        _core.PoolEngine.__init__(self, device, engine)

    @property
    def device(self) -> Device:
        return self._device

    @property
    def config(self) -> PoolConfig:
        return self._config

    def configure(self, **settings: Any) -> None:
        """Change settings at run time; those left out stay."""
        self._require_present()  # in a forked child the lock may be held for ever
        with self._changing:
            changed = _configured(self._config, settings)
            self._apply(changed.for_engine())
            self._config = changed

    def stats(self) -> PoolStats:
        return msgspec.convert(self._counts(), PoolStats)

    def print_stats(self) -> None:
        """A table of stats() on standard output."""
        from rich.console import Console
        from rich.table import Table

        stats = self.stats()
        table = Table("what", "figure", title=f"Pool on {self._device.name}")
        for name, value in msgspec.structs.asdict(stats).items():
            table.add_row(
                name.replace("_", " "),
                f"{value:,.3f}" if isinstance(value, float) else f"{value:,}",
            )
        Console().print(table)

    def snapshot(self, stacks: Mapping[int, Sequence[str]] | Tracking | None = None) -> Snapshot:
        """The memory of the pool as it is now. `stacks` says where blocks were allocated: stack
        lines by the address of a live block, or a Tracking adaptor over this pool.
        """
        from vramkit.pool.snapshot import take

        return take(self, self._layout(), stacks)

    def on_shortage(self, callback: Callable[[int], int]) -> ShortageCallback:
        """When a malloc lacks memory, call `callback(nbytes)`: it frees blocks to the pool
        and returns how many bytes that were, 0 for none. The malloc then tries again, asks again if
        that was not enough, and fails when nothing more comes.

        It runs on the thread that allocates, which may be one of another library: it must not wait
        for other threads. A malloc inside it asks nobody. What it raises goes to
        sys.unraisablehook. It is called until close() of what is returned.
        """
        if not callable(callback):
            raise TypeError(f"callback is {shown(callback)}; it must be callable with the bytes")
        return ShortageCallback(self, self._add_shortage_callback(callback))

    def trim(self) -> int:
        """Give idle memory whose work is done back to the driver. Returns the bytes released."""
        return self._give_back(False)

    def release_all(self) -> int:
        """Wait for the work of idle memory, give all of it back, and reset the counters."""
        released = self._give_back(True)
        self.reset_stats()
        return released

    def close(self) -> None:
        """Give everything back. Raises ValueError while blocks are in use. Twice is harmless."""
        self._shut()


def _configured(base: PoolConfig, settings: dict[str, Any]) -> PoolConfig:
    known = PoolConfig.__struct_fields__
    for name in settings:
        if name not in known:
            raise TypeError(f"a pool has no setting {name!r}; it has {', '.join(known)}")
    return PoolConfig(**(msgspec.structs.asdict(base) | settings))
