"""A kernel reads what another stream is still copying in: a race."""

import vramkit

device = vramkit.driver.open().device()
with (
    device.stream() as copies,
    device.stream() as compute,
    device.alloc_pinned(4096) as host,
    device.alloc(4096) as data,
    device.alloc(8) as total,
):
    device.fill(total, 0)
    device.synchronize()
    device.copy(data, host, stream=copies)  # first
    device.kernels.checksum(data, 1024, total, stream=compute)  # second
    device.synchronize()
