"""What runs on Ray's workers: plain programs of the driver API, which know nothing of vramkit run.

Sent to the workers by value: they need not find this file.
"""

import os
import subprocess
import sys
import time

MIB = 1 << 20


class Adder:
    """Adds one to each word of an array, again and again."""

    def __init__(self, mib):
        import vramkit

        self.device = vramkit.driver.open().device()
        self.words = mib * MIB // 8
        self.stream = self.device.stream()
        self.data = self.device.alloc(4 * self.words)
        self.ones = self.device.alloc(4 * self.words)
        self.device.kernels.fill(self.data, self.words, 0, stream=self.stream)
        self.device.kernels.fill(self.ones, self.words, 1, stream=self.stream)
        self.rounds = 0

    def work(self, rounds):
        kernels = self.device.kernels
        for _ in range(rounds):
            kernels.add(self.data, self.data, self.ones, self.words, stream=self.stream)
            self.stream.synchronize()
            self.rounds += 1
        return self.rounds

    def is_right(self):
        with self.device.alloc(8) as total, self.device.alloc_pinned(8) as result:
            self.device.fill(total, 0, stream=self.stream)
            self.device.kernels.checksum(self.data, self.words, total, stream=self.stream)
            self.device.copy(result, total, stream=self.stream)
            self.stream.synchronize()
            return int.from_bytes(result.read(), "little") == self.rounds * self.words

    def memory(self):
        return tuple(self.device.memory_info())

    def who(self):
        """Its process and its card."""
        return os.getpid(), self.device.uuid


def die_once(path):
    """A task whose worker is killed the first time."""
    import vramkit

    with vramkit.driver.open().device().alloc(4 * MIB):
        if not os.path.exists(path):
            open(path, "w").close()
            os.kill(os.getpid(), 9)
    return "libvramkit_share" in open("/proc/self/maps").read()


class Visible:
    """Says which cards Ray shows it."""

    def cards(self):
        return os.environ.get("CUDA_VISIBLE_DEVICES")


CHILD = """
import vramkit
device = vramkit.driver.open().device()
kept = device.alloc(16 << 20)
try:
    device.alloc(16 << 20)
except vramkit.driver.DriverError as error:
    print(device.memory_info().total, error.name)
"""


def child_of_a_child():
    """What a process that a worker's process starts is told, and what it is refused."""
    nested = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
    command = [sys.executable, "-c", nested, CHILD]
    return subprocess.run(command, capture_output=True, text=True).stdout.split()


def variables():
    return dict(os.environ)


def stay(seconds):
    time.sleep(seconds)
