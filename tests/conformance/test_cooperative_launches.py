"""Cooperative launches, how many blocks fit on a card at once, and what a function may be told."""

from __future__ import annotations

import pytest

from .capturing import capturing
from .kernels import PARAMETERS, image
from .support import INVALID_VALUE, NOT_FOUND, SUCCESS, name, ok

TOO_LARGE = "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE"
FORMS = ["its own call", "attribute"]


def occupancy(cu, function, threads: int, shared_bytes: int = 0) -> int:
    return int(ok(cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, threads, shared_bytes)))


def device_attribute(cu, attribute: str) -> int:
    which = getattr(cu.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{attribute}")
    return int(ok(cu.cuDeviceGetAttribute(which, cu.device)))


def launch(cu, kernels, entry: str, values, *, form: str, blocks: int, threads: int, stream) -> str:
    function, given = kernels.functions[entry], (values, PARAMETERS[entry])
    if form == "its own call":
        return name(
            cu.cuLaunchCooperativeKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, given)
        )
    attribute = cu.CUlaunchAttribute()
    attribute.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
    attribute.value.cooperative = 1
    config = cu.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = blocks, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
    config.hStream = stream
    config.attrs, config.numAttrs = [attribute], 1
    return name(cu.cuLaunchKernelEx(config, function, given, 0))


def test_the_card_can(cu):
    assert device_attribute(cu, "COOPERATIVE_LAUNCH") == 1


@pytest.mark.parametrize("form", FORMS)
def test_cooperative_launch_runs_the_kernel(cu, scope, kernels, form):
    stream, memory = scope.stream(), scope.alloc(4096)
    answer = launch(
        cu, kernels, "vk_fill", (memory, 1024, 9), form=form, blocks=4, threads=64, stream=stream
    )
    assert answer == SUCCESS
    ok(cu.cuStreamSynchronize(stream))
    assert scope.read(memory, 4096) == (9).to_bytes(4, "little") * 1024


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("threads", [32, 1000, 1024])
def test_all_blocks_must_fit_at_once(cu, scope, kernels, form, threads):
    stream = scope.stream()
    most = occupancy(cu, kernels.functions["vk_spin"], threads) * device_attribute(
        cu, "MULTIPROCESSOR_COUNT"
    )
    for blocks, expected in ((most, SUCCESS), (most + 1, TOO_LARGE)):
        answer = launch(
            cu, kernels, "vk_spin", (0,), form=form, blocks=blocks, threads=threads, stream=stream
        )
        assert answer == expected
    # An ordinary launch has no such limit.
    kernels.run("vk_spin", 0, stream=stream, blocks=most + 1)
    ok(cu.cuStreamSynchronize(stream))


@pytest.mark.parametrize("form", FORMS)
def test_cooperative_launch_is_captured(cu, scope, kernels, form):
    stream, memory = scope.stream(), scope.alloc(4096)
    ok(cu.cuMemsetD8(memory, 0, 4096))
    ok(cu.cuCtxSynchronize())
    with capturing(cu, scope, stream) as capture:
        values = (memory, 1024, 2)
        answer = launch(
            cu, kernels, "vk_fill", values, form=form, blocks=2, threads=32, stream=stream
        )
        assert answer == SUCCESS
    assert capture.nodes() == 1
    assert scope.read(memory, 4096) == bytes(4096)
    ok(cu.cuGraphLaunch(capture.executable(), stream))
    ok(cu.cuStreamSynchronize(stream))
    assert scope.read(memory, 4096) == (2).to_bytes(4, "little") * 1024


# Occupancy


def test_blocks_fit_until_their_threads_fill_the_multiprocessor(cu, kernels):
    function = kernels.functions["vk_spin"]
    threads = device_attribute(cu, "MAX_THREADS_PER_MULTIPROCESSOR")
    blocks = device_attribute(cu, "MAX_BLOCKS_PER_MULTIPROCESSOR")
    assert occupancy(cu, function, 1024) == threads // 1024
    assert occupancy(cu, function, 32) == min(blocks, threads // 32)
    flags = cu.CUoccupancy_flags.CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE
    with_flags = cu.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        function, 1024, 0, int(flags)
    )
    assert int(ok(with_flags)) == threads // 1024


def test_shared_memory_leaves_room_for_fewer_blocks(cu, kernels):
    function = kernels.functions["vk_spin"]
    whole = device_attribute(cu, "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR")
    fits = occupancy(cu, function, 32, 48 * 1024)
    assert 1 <= fits <= whole // (48 * 1024)


def test_blocks_without_threads(cu, kernels):
    function = kernels.functions["vk_spin"]
    answer = cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, 0, 0)
    assert name(answer) == INVALID_VALUE


# Functions and modules


def test_function_may_be_allowed_more_shared_memory(cu, scope):
    module = ok(cu.cuModuleLoadData(image()))
    scope.undo(cu.cuModuleUnload, module)
    function = ok(cu.cuModuleGetFunction(module, b"vk_spin"))
    which = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    most = device_attribute(cu, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
    stream, usual = scope.stream(), device_attribute(cu, "MAX_SHARED_MEMORY_PER_BLOCK")

    def run(shared_bytes: int) -> str:
        given = ((0,), PARAMETERS["vk_spin"])
        return name(cu.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, shared_bytes, stream, given, 0))

    assert int(ok(cu.cuFuncGetAttribute(which, function))) == usual
    assert run(usual + 1024) == INVALID_VALUE
    ok(cu.cuFuncSetAttribute(function, which, most))
    assert int(ok(cu.cuFuncGetAttribute(which, function))) == most
    assert run(usual + 1024) == SUCCESS
    assert name(cu.cuFuncSetAttribute(function, which, most + 1)) == INVALID_VALUE
    ok(cu.cuStreamSynchronize(stream))


def test_what_a_function_is_like_cannot_be_set(cu, kernels):
    which = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NUM_REGS
    answer = cu.cuFuncSetAttribute(kernels.functions["vk_spin"], which, 1)
    assert name(answer) == INVALID_VALUE


def test_preferred_cache(cu, kernels):
    preference = cu.CUfunc_cache.CU_FUNC_CACHE_PREFER_SHARED
    ok(cu.cuFuncSetCacheConfig(kernels.functions["vk_spin"], preference))


def test_module_has_no_variable_of_that_name(cu, kernels):
    assert name(cu.cuModuleGetGlobal(kernels.module, b"vk_nothing")) == NOT_FOUND
