"""Allocates by vramkit's own resources, which reach the driver through the gate."""

import vramkit
from vramkit.resources import AsyncResource, DirectResource

driver = vramkit.driver.open()
device = driver.device()
assert driver.sim is not None
assert driver.path.endswith("_lib/sim/libcuda.so.1")
with device.stream() as stream, vramkit.Pool(device=device) as pool:
    with pool.allocate(1 << 20, stream=stream) as block:
        for value in range(3):
            device.kernels.fill(block.address, 1 << 18, value, stream=stream)
    stream.synchronize()
    with DirectResource(device=device).allocate(12345):
        pass
    with AsyncResource(device=device).allocate(54321, stream=stream):
        pass
assert driver.sim.reports() == []
# Where memory is shared, the library that moves it launches kernels of its own.
assert driver.sim.call_counts()["cuLaunchKernel"] >= 3
print("done")
