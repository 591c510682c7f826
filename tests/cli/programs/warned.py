"""Reads a result that only cuMemFree, by an undocumented wait, has made sure of: a warning."""

import vramkit

device = vramkit.driver.open().device()
with device.stream() as stream, device.alloc(4096) as data, device.alloc_pinned(4096) as host:
    other = device.alloc(4096)
    device.copy(host, data, stream=stream)
    other.close()
    host.read()
    stream.synchronize()
