"""Allocates on two streams, with work that the host waits for; prints what it had and held.

The first argument is the resource: direct or pool.
"""

import json
import sys

import vramkit
from vramkit.resources import DirectResource

MIB = 1 << 20

device = vramkit.driver.open().device()
make = {"direct": DirectResource, "pool": vramkit.Pool}[sys.argv[1]]
in_use = peak = 0
with device.stream() as first, device.stream() as second, make(device=device) as resource:
    live = []
    for step in range(24):
        stream = (first, second)[step % 2]
        size = (1 + step % 5) * MIB
        live.append((resource.malloc(size, stream), size))
        in_use += size
        peak = max(peak, in_use)
        device.kernels.spin(1000, stream=stream)
        if step % 4 == 3:
            first.record(event := device.event())
            second.wait(event)
            second.synchronize()
            address, size = live.pop(0)
            resource.free(address, size, second)
            in_use -= size
    first.synchronize()
    for address, size in live:
        resource.free(address, size)
    held = resource.stats().peak_reserved if sys.argv[1] == "pool" else peak
print(json.dumps({"in_use": peak, "held": held}))
