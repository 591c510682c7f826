"""Run as a program: prints what the simulated GPU makes of VRAMKIT_SIM, as its JSON.

It loads the library, so it is run in a process of its own: one that has loaded the simulated
libcuda.so.1 gives it to every later request for that name.
"""

from __future__ import annotations

import ctypes
import sys


def read_settings(library: str) -> bytes:
    read = ctypes.CDLL(library).simSettings
    read.argtypes = (ctypes.c_char_p, ctypes.c_size_t)
    read.restype = ctypes.c_size_t
    buffer = ctypes.create_string_buffer(read(None, 0) + 1)
    read(buffer, len(buffer))
    return buffer.value


if __name__ == "__main__":
    sys.stdout.buffer.write(read_settings(sys.argv[1]))
