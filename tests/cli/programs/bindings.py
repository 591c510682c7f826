"""NVIDIA's own Python bindings: two streams write one buffer; `ordered` lets the second wait."""

import sys

from cuda.bindings import driver as cuda


def call(function, *arguments):
    status, *values = function(*arguments)
    assert status == cuda.CUresult.CUDA_SUCCESS, (function, status)
    return values[0] if len(values) == 1 else values


call(cuda.cuInit, 0)
device = call(cuda.cuDeviceGet, 0)
context = call(cuda.cuDevicePrimaryCtxRetain, device)
call(cuda.cuCtxSetCurrent, context)
flags = cuda.CUstream_flags.CU_STREAM_NON_BLOCKING
first, second = (call(cuda.cuStreamCreate, flags) for _ in range(2))
event = call(cuda.cuEventCreate, 0)
data = call(cuda.cuMemAlloc, 4096)
call(cuda.cuMemsetD8Async, data, 1, 4096, first)
if sys.argv[1] == "ordered":
    call(cuda.cuEventRecord, event, first)
    call(cuda.cuStreamWaitEvent, second, event, 0)
call(cuda.cuMemsetD8Async, data, 2, 4096, second)
call(cuda.cuCtxSynchronize)
call(cuda.cuMemFree, data)
