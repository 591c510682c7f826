"""Adds one to each word of an array, again and again; knows nothing of other programs.

python counts.py MIB SECONDS
"""

import sys
import time

import vramkit

words = int(sys.argv[1]) * (1 << 20) // 8
device = vramkit.driver.open().device()
with (
    device.stream() as stream,
    device.alloc(4 * words) as data,
    device.alloc(4 * words) as ones,
    device.alloc(8) as total,
    device.alloc_pinned(8) as result,
):
    device.kernels.fill(data, words, 0, stream=stream)
    device.kernels.fill(ones, words, 1, stream=stream)
    rounds = 0
    end = time.monotonic() + float(sys.argv[2])
    while time.monotonic() < end:
        device.kernels.add(data, data, ones, words, stream=stream)
        stream.synchronize()
        rounds += 1
    device.fill(total, 0, stream=stream)
    device.kernels.checksum(data, words, total, stream=stream)
    device.copy(result, total, stream=stream)
    stream.synchronize()
    right = int.from_bytes(result.read(), "little") == rounds * words
print(rounds, "right" if right else "wrong")
