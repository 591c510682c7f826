"""How a manager ends: closed with work in flight, dropped, reset, forked, at exit."""

from __future__ import annotations

import copy
import gc
import subprocess
import sys

import pytest

from vramkit.driver import ClosedError, Device, Simulator
from vramkit.weights import WeightManager

from .support import GRANULE, PROFILE, layers, loaded, sources

pytestmark = [pytest.mark.sim_only, pytest.mark.sim(profile=PROFILE)]

RING = 4 * GRANULE
SPIN = 1_000_000  # ns


def test_close_waits_for_copies_and_for_work(device: Device, sim: Simulator) -> None:
    with device.stream() as stream, loaded(device, layers(9), budget=RING) as model:
        manager = model.manager
        model.use(0, stream)
        model.manager.wait_group_ready(0, "ffn", compute_stream=stream)
        device.kernels.spin(SPIN, stream=stream)
        model.read(1, stream)
        manager.release(0, "ffn")
        manager.prefetch_group_async(1, "attn")
        begun = sim.now()
        manager.close()
        assert sim.now() - begun >= 0.9e-9 * SPIN


def test_close_waits_for_work_on_groups_that_were_not_released(
    device: Device, sim: Simulator
) -> None:
    with device.stream() as stream, loaded(device, layers(9), budget=RING) as model:
        manager = model.manager
        manager.wait_group_ready(0, "attn", compute_stream=stream)
        device.kernels.spin(SPIN, stream=stream)
        model.read(0, stream)
        begun = sim.now()
        manager.close()
        assert sim.now() - begun >= 0.9e-9 * SPIN
        with pytest.raises(ClosedError):
            manager.release(0, "attn")


def test_a_manager_that_is_dropped_waits_and_gives_everything_back(
    device: Device, sim: Simulator
) -> None:
    groups = layers(9)
    with device.stream() as stream, sources(device, groups) as (addresses, _):
        device.kernels.spin(1, stream=stream)  # their module is loaded
        before = sim.live_objects()
        manager = WeightManager(device, groups, addresses, budget=2 * RING, ring=RING)
        for group in groups:
            with manager.using(group.layer, group.name, compute_stream=stream) as address:
                device.kernels.spin(SPIN, stream=stream)
                device.kernels.sweep(address, group.nbytes // 4, stream=stream)
        with pytest.warns(ResourceWarning, match="unclosed <WeightManager of 18 groups on <Devi"):
            del manager
            gc.collect()
        assert sim.live_objects() == before


def test_a_reset_of_the_simulated_gpu(device: Device, sim: Simulator) -> None:
    groups = layers(9)
    slab = device.alloc_pinned(1 << 20)
    sources = [slab.address] * len(groups)
    closed = WeightManager(device, groups, sources, budget=2 * RING, ring=RING)
    dropped = WeightManager(device, groups, sources, budget=2 * RING, ring=RING)
    closed.wait_group_ready(0, "attn", compute_stream=device.stream())
    sim.reset(PROFILE)
    with device.stream() as fresh:
        sim.reset_call_counts()
        for call in (
            lambda: closed.wait_group_ready(0, "ffn", compute_stream=fresh),
            lambda: closed.release(0, "attn"),
            lambda: closed.prefetch_group_async(0, "attn"),
            lambda: closed.evict(0, "attn"),
            closed.stats,
        ):
            with pytest.raises(ClosedError, match="this WeightManager is gone: the simulated GPU"):
                call()
        closed.close()
        dropped.__del__()  # there is nothing to warn of
        assert dropped.closed
        assert not any(sim.call_counts().values())


def test_a_manager_cannot_be_copied(device: Device) -> None:
    with (
        loaded(device, layers(2), budget=RING) as model,
        pytest.raises(TypeError, match="a WeightManager can be neither copied nor pickled"),
    ):
        copy.copy(model.manager)


PROGRAM = """
import gc, os, sys, vramkit
from vramkit.weights import Group, WeightManager
driver = vramkit.driver.open("sim")
driver.sim.reset(sys.argv[1])
device = driver.device()
groups = [Group(layer, "all", 65536) for layer in range(9)]
slab, stream = device.alloc_pinned(65536), device.stream()
closed, dropped, left = (
    WeightManager(device, groups, [slab.address] * 9, budget=4 * 65536) for _ in range(3)
)
closed.wait_group_ready(0, "all", compute_stream=stream)
child = os.fork()
if child == 0:
    for call in (
        lambda: closed.wait_group_ready(1, "all", compute_stream=stream),
        lambda: closed.release(0, "all"),
        lambda: closed.prefetch_group_async(1, "all"),
        lambda: closed.ensure_group_on_gpu(1, "all"),
        lambda: closed.stats(),
    ):
        try:
            call()
        except vramkit.driver.ClosedError as error:
            assert " belongs to the parent process: a forked child cannot use it" in str(error)
        else:
            print("not refused")
    closed.close()
    repr(closed)
    del closed, dropped, call
    gc.collect()
    sys.stdout.flush()
    os._exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
closed.release(0, "all")
closed.close()
with dropped:
    with dropped.using(5, "all", compute_stream=stream):
        pass
assert driver.sim.reports() == []
print("done")
# The last one is left to the end of the process.
"""


def test_a_forked_child_and_the_end_of_the_process() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, PROFILE], capture_output=True, text=True, timeout=60
    )
    assert (ended.stdout, ended.returncode) == ("done\n", 0), ended.stderr
