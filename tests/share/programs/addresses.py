"""Asks the driver about memory of cuMemAlloc and cuMemAllocPitch, and prints the answers.

With an argument prefetches fail, but for the first so many.
"""

import ctypes
import os
import sys

cuda = ctypes.CDLL("libcuda.so.1")
MIB = 1 << 20


def call(name, *arguments):
    result = getattr(cuda, name)(*arguments)
    if result != 0:
        print(name, result)


u64 = ctypes.c_uint64
context, module, fill = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
plain, pitched, pitch, size = u64(), u64(), u64(), u64()
call("cuInit", 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
call("cuCtxSetCurrent", context)
with open(os.environ["KERNELS"], "rb") as kernels:
    call("cuModuleLoadData", ctypes.byref(module), kernels.read())
call("cuModuleGetFunction", ctypes.byref(fill), module, b"vk_fill")
call("cuMemAlloc_v2", ctypes.byref(plain), u64(70 * MIB))
call(
    "cuMemAllocPitch_v2", ctypes.byref(pitched), ctypes.byref(pitch), u64(1000), u64(10),
    ctypes.c_uint(4),
)  # fmt: skip
print("pitch", pitch.value)

for pointer in plain, pitched:
    inside = u64(pointer.value + 100)
    base = u64()
    call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), inside)
    print("range", base.value == pointer.value, size.value)
    # Context, memory type, device pointer, managed, ordinal, start and size of the range, mapped.
    for attribute in 1, 2, 3, 8, 9, 11, 12, 13:
        answer = u64(0)
        call("cuPointerGetAttribute", ctypes.byref(answer), attribute, inside)
        known = {context.value: "context", pointer.value: "begin", inside.value: "inside"}
        print(attribute, known.get(answer.value, answer.value))

if len(sys.argv) > 1:
    sim = ctypes.CDLL(os.path.join(os.environ["SIM"], "libcuda.so.1"))
    first = u64(int(sys.argv[1]) + 1)
    if sim.simInject(b"cuMemPrefetchAsync*", first, u64(1 << 40), 999, ctypes.c_double(0)) != 0:
        print("no such call")
words = u64(70 * MIB // 4)
for round_ in range(12):
    value = ctypes.c_uint(round_)
    pointers = (ctypes.c_void_p * 3)(*(ctypes.addressof(each) for each in (plain, words, value)))
    call("cuLaunchKernel", fill, 2, 1, 1, 128, 1, 1, 0, None, pointers, None)
    got = (ctypes.c_uint * 2)()
    call("cuMemcpyDtoH_v2", got, u64(plain.value + 64 * MIB), u64(8))
    print(list(got))
call("cuMemFree_v2", pitched)
call("cuMemFree_v2", plain)
print("freed again", cuda.cuMemFree_v2(plain))
