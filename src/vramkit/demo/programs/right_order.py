"""Sums an array once it has arrived."""

import vramkit

WORDS = 1 << 20

device = vramkit.driver.open().device()
with (
    device.stream() as copies,
    device.stream() as compute,
    device.alloc_pinned(4 * WORDS) as host,
    device.alloc(4 * WORDS) as data,
    device.alloc(8) as total,
):
    host.write(b"\x01\x00\x00\x00" * WORDS)
    device.fill(total, 0)
    device.synchronize()

    device.copy(data, host, stream=copies)
    compute.wait(copies.record())
    device.kernels.checksum(data, WORDS, total, stream=compute)

    device.synchronize()
