"""A program on the driver's C interface by ctypes: runs on a real card and on the simulated one.

    KERNELS=kernels.ptx python plain.py memory|train|add --bytes N ...

memory: each step goes over all of its memory. train: small kernels, many of them. add: z = x + y.
"""

import ctypes
import os
from argparse import Namespace
from ctypes import byref, c_int, c_uint, c_uint64, c_void_p

from steps import Work, parse, play

MULTIPLY, ADD, WORD = 1664525, 1013904223, 2**32  # of vk_sweep


class Driver:
    """The calls that the programs need, on the primary context of the first card."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        context, self._module = c_void_p(), c_void_p()
        self.call("cuDevicePrimaryCtxRetain", byref(context), 0)
        self.call("cuCtxSetCurrent", context)
        with open(os.environ["KERNELS"], "rb") as kernels:
            self.call("cuModuleLoadData", byref(self._module), kernels.read() + b"\0")
        count = c_int()
        self.call("cuDeviceGetAttribute", byref(count), 16, 0)  # multiprocessors
        self._grid = count.value * 8

    def call(self, name: str, *arguments: object) -> None:
        result = getattr(self._cuda, name)(*arguments)
        if result != 0:
            raise SystemExit(f"{name} returned error {result}")

    def allocate(self, nbytes: int) -> int:
        address = c_uint64()
        self.call("cuMemAlloc_v2", byref(address), c_uint64(nbytes))
        return address.value

    def function(self, name: str) -> c_void_p:
        found = c_void_p()
        self.call("cuModuleGetFunction", byref(found), self._module, name.encode())
        return found

    def launch(self, function: c_void_p, *arguments: int) -> None:
        values = [c_uint64(each) for each in arguments]
        pointers = (c_void_p * len(values))(*(ctypes.addressof(each) for each in values))
        shape = [c_uint(each) for each in (self._grid, 1, 1, 256, 1, 1, 0)]
        self.call("cuLaunchKernel", function, *shape, None, pointers, None)

    def wait(self) -> None:
        self.call("cuCtxSynchronize")

    def word(self, address: int) -> int:
        value = c_uint64()
        self.call("cuMemcpyDtoH_v2", byref(value), c_uint64(address), c_uint64(8))
        return value.value


class Base:
    def __init__(self, options: Namespace) -> None:
        self.driver = Driver()
        names = ("vk_fill", "vk_add", "vk_sweep", "vk_checksum")
        self.fill, self.add, self.sweep, self.sum = map(self.driver.function, names)
        self.options = options

    def blocks(self, count: int, nbytes: int) -> None:
        """Each with a value of its own."""
        self.words = nbytes // 4
        self.memory = [self.driver.allocate(nbytes) for _ in range(count)]
        self.out = self.driver.allocate(8)
        for number, block in enumerate(self.memory):
            self.driver.launch(self.fill, block, self.words, number + 1)
        self.driver.launch(self.fill, self.out, 2, 0)
        self.driver.wait()

    def checksum(self, block: int) -> int:
        self.driver.launch(self.fill, self.out, 2, 0)
        self.driver.launch(self.sum, block, self.words, self.out)
        return self.driver.word(self.out)

    def wrong(self, expected: list[int]) -> int:
        """Blocks whose words do not add up to what all of them must be."""
        sums = [self.checksum(block) for block in self.memory]
        return sum(
            found != value * self.words % 2**64 for found, value in zip(sums, expected, strict=True)
        )


class Memory(Base):
    def begin(self) -> None:
        self.blocks(self.options.blocks, self.options.bytes // self.options.blocks)
        self.written = round(self.options.writes * len(self.memory))

    def step(self, number: int) -> None:
        for block in self.memory[: self.written]:
            self.driver.launch(self.sweep, block, self.words, 1)
        for block in self.memory[self.written :]:
            self.driver.launch(self.sum, block, self.words, self.out)
        self.driver.wait()

    def result(self, steps: int) -> dict[str, object]:
        expected = []
        for number in range(len(self.memory)):
            value = number + 1
            if number < self.written:
                for _ in range(steps):
                    value = (value * MULTIPLY + ADD) % WORD
            expected.append(value)
        return {"wrong": self.wrong(expected)}


class Train(Base):
    def begin(self) -> None:
        self.blocks(4, self.options.bytes // 4)

    def step(self, number: int) -> None:
        first, second, third, fourth = self.memory
        few = min(self.words, 1 << 14)
        for _ in range(self.options.batch):
            self.driver.launch(self.add, third, first, second, few)
            self.driver.launch(self.add, fourth, third, second, few)
            self.driver.launch(self.sweep, first, few, 1)
        self.driver.wait()

    def result(self, steps: int) -> dict[str, object]:
        return {"wrong": 0, "result": [hex(self.checksum(block)) for block in self.memory]}


class Add(Base):
    def begin(self) -> None:
        self.blocks(3, self.options.bytes // 3 // 4096 * 4096)

    def step(self, number: int) -> None:
        x, y, z = self.memory
        for _ in range(self.options.batch):
            self.driver.launch(self.add, z, x, y, self.words)
        self.driver.wait()

    def result(self, steps: int) -> dict[str, object]:
        return {"wrong": self.wrong([1, 2, 3])}


WORKS: dict[str, type[Work]] = {"memory": Memory, "train": Train, "add": Add}

if __name__ == "__main__":
    chosen = parse(tuple(WORKS))
    play(WORKS[chosen.kind](chosen), chosen)
