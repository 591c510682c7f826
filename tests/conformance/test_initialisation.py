"""Initialisation, devices, their attributes, and the texts of error codes."""

from __future__ import annotations

import ctypes

import pytest

from .support import INVALID_DEVICE, INVALID_VALUE, NOT_INITIALIZED, SUCCESS, RawEnum, name, ok

NO_SUCH_DEVICE = 99


def test_initialising_again_succeeds(cu):
    assert name(cu.cuInit(0)) == SUCCESS


def test_initialising_with_flags_is_refused(cu):
    assert name(cu.cuInit(1)) == INVALID_VALUE


def test_calls_before_initialisation(isolated, observe):
    outcome = isolated(
        """
        note("version", name(cu.cuDriverGetVersion()))
        note("error name", name(cu.cuGetErrorName(cu.CUresult.CUDA_ERROR_OUT_OF_MEMORY)))
        note("entry point", name(cu.cuGetProcAddress(b"cuMemAlloc", 12000, 0)))
        note("capture mode", name(cu.cuThreadExchangeStreamCaptureMode(
            cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)))
        note("count", name(cu.cuDeviceGetCount()))
        note("device", name(cu.cuDeviceGet(0)))
        note("alloc", name(cu.cuMemAlloc(256)))
        note("current", name(cu.cuCtxGetCurrent()))
        note("stream", name(cu.cuStreamCreate(0)))
        """,
        start="uninitialised",
    )
    assert outcome["version"] == outcome["error name"] == SUCCESS
    for call in ("count", "device", "alloc", "current", "stream"):
        assert outcome[call] == NOT_INITIALIZED
    observe("calls before cuInit", outcome)


def test_driver_version_is_of_cuda_13(cu):
    assert ok(cu.cuDriverGetVersion()) // 1000 == 13


def test_device_count_is_positive(cu):
    assert ok(cu.cuDeviceGetCount()) >= 1


@pytest.mark.parametrize("ordinal", [-1, NO_SUCH_DEVICE])
def test_no_device_of_that_ordinal(cu, ordinal):
    assert name(cu.cuDeviceGet(ordinal)) == INVALID_DEVICE


def test_ordinal_just_past_the_last_device(cu):
    assert name(cu.cuDeviceGet(ok(cu.cuDeviceGetCount()))) == INVALID_DEVICE


@pytest.mark.parametrize(
    "call",
    [
        lambda cu: cu.cuDeviceGetName(64, NO_SUCH_DEVICE),
        lambda cu: cu.cuDeviceTotalMem(NO_SUCH_DEVICE),
        lambda cu: cu.cuDeviceGetUuid(NO_SUCH_DEVICE),
        lambda cu: cu.cuDeviceGetPCIBusId(32, NO_SUCH_DEVICE),
        lambda cu: cu.cuDevicePrimaryCtxRetain(NO_SUCH_DEVICE),
        lambda cu: cu.cuDevicePrimaryCtxGetState(NO_SUCH_DEVICE),
        lambda cu: cu.cuDeviceGetAttribute(
            cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_WARP_SIZE, NO_SUCH_DEVICE
        ),
    ],
    ids=["name", "total memory", "uuid", "bus id", "retain", "state", "attribute"],
)
def test_questions_about_a_device_that_is_not_there(cu, call):
    assert name(call(cu)) == INVALID_DEVICE


def test_device_name_says_whether_it_is_simulated(cu, driver_spec):
    text = ok(cu.cuDeviceGetName(64, cu.device)).partition(b"\0")[0].decode()
    assert text.endswith("(simulated)") == driver_spec.startswith("sim")


def test_device_name_in_a_short_buffer(cu, raw, observe):
    buffer = ctypes.create_string_buffer(b"\xff" * 16, 16)
    answer = raw.cuDeviceGetName(buffer, ctypes.c_int(7), ctypes.c_int(int(cu.device)))
    assert buffer.raw[7:] == b"\xff" * 9
    observe("device name in 7 bytes", [answer, buffer.raw[:7].hex()])


def test_uuid_is_not_blank_and_stable(cu):
    first = bytes(ok(cu.cuDeviceGetUuid(cu.device)).bytes)
    assert first == bytes(ok(cu.cuDeviceGetUuid(cu.device)).bytes)
    assert len(first) == 16
    assert any(first)


def test_bus_id_leads_back_to_the_device(cu):
    bus_id = ok(cu.cuDeviceGetPCIBusId(32, cu.device)).rstrip(b"\0")
    assert int(ok(cu.cuDeviceGetByPCIBusId(bus_id))) == int(cu.device)


def test_unknown_bus_id(cu, observe):
    observe("device by unknown bus id", name(cu.cuDeviceGetByPCIBusId(b"0000:ff:1f.0")))
    observe("device by malformed bus id", name(cu.cuDeviceGetByPCIBusId(b"nonsense")))


ATTRIBUTES = """
MAX_THREADS_PER_BLOCK MAX_BLOCK_DIM_X MAX_BLOCK_DIM_Y MAX_BLOCK_DIM_Z MAX_GRID_DIM_X
MAX_GRID_DIM_Y MAX_GRID_DIM_Z WARP_SIZE MULTIPROCESSOR_COUNT COMPUTE_CAPABILITY_MAJOR
COMPUTE_CAPABILITY_MINOR CONCURRENT_KERNELS ASYNC_ENGINE_COUNT UNIFIED_ADDRESSING
CAN_MAP_HOST_MEMORY STREAM_PRIORITIES_SUPPORTED VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
CAN_USE_64_BIT_STREAM_MEM_OPS CAN_USE_STREAM_WAIT_VALUE_NOR
CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM HOST_REGISTER_SUPPORTED INTEGRATED
MAX_SHARED_MEMORY_PER_BLOCK MAX_REGISTERS_PER_BLOCK
MAX_THREADS_PER_MULTIPROCESSOR TOTAL_CONSTANT_MEMORY COMPUTE_MODE TEXTURE_ALIGNMENT
"""


@pytest.mark.parametrize("attribute", ATTRIBUTES.split())
def test_device_attribute(cu, observe, attribute):
    member = getattr(cu.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{attribute}")
    observe(f"attribute {attribute}", ok(cu.cuDeviceGetAttribute(member, cu.device)))


@pytest.mark.parametrize("number", [0, 100_000])
def test_attribute_that_does_not_exist(cu, number):
    assert name(cu.cuDeviceGetAttribute(RawEnum(number), cu.device)) == INVALID_VALUE


def test_total_memory_is_what_memory_information_says(cu, observe):
    total = ok(cu.cuDeviceTotalMem(cu.device))
    free, total_of_context = ok(cu.cuMemGetInfo())
    assert 0 < free <= total_of_context
    observe("both totals of memory are equal", total == total_of_context)


@pytest.mark.parametrize(
    "error", ["CUDA_SUCCESS", "CUDA_ERROR_OUT_OF_MEMORY", "CUDA_ERROR_ILLEGAL_ADDRESS"]
)
def test_error_name_is_the_enumerator(cu, error):
    assert ok(cu.cuGetErrorName(getattr(cu.CUresult, error))).decode() == error


@pytest.mark.parametrize("error", [0, 1, 2, 3, 100, 101, 200, 201, 400, 500, 600, 700, 719, 801])
def test_error_has_a_description(cu, error):
    assert ok(cu.cuGetErrorString(cu.CUresult(error)))


def test_unknown_error_code_has_no_texts(raw):
    text = ctypes.c_char_p(b"left over")
    assert raw.cuGetErrorName(ctypes.c_int(424242), ctypes.byref(text)) == INVALID_VALUE
    assert text.value is None
    text = ctypes.c_char_p(b"left over")
    assert raw.cuGetErrorString(ctypes.c_int(424242), ctypes.byref(text)) == INVALID_VALUE
    assert text.value is None


def test_null_place_for_the_answer(isolated, observe):
    outcome = isolated(
        """
        raw = Raw(cu)
        size, zero = ctypes.c_size_t(256), ctypes.c_int(0)
        note("cuDriverGetVersion", raw.cuDriverGetVersion(None))
        note("cuDeviceGetCount", raw.cuDeviceGetCount(None))
        note("cuDeviceGet", raw.cuDeviceGet(None, zero))
        note("cuDeviceGetAttribute", raw.cuDeviceGetAttribute(None, ctypes.c_int(1), zero))
        note("cuMemAlloc", raw.cuMemAlloc(None, size))
        note("cuMemHostAlloc", raw.cuMemHostAlloc(None, size, zero))
        note("cuStreamCreate", raw.cuStreamCreate(None, zero))
        note("cuEventCreate", raw.cuEventCreate(None, zero))
        note("cuCtxGetCurrent", raw.cuCtxGetCurrent(None))
        note("cuMemGetInfo", raw.cuMemGetInfo(None, None))
        version, flags = ctypes.c_int(13000), ctypes.c_uint64(0)
        place = ctypes.byref(ctypes.c_void_p(0))
        note("entry point", raw.cuGetProcAddress(b"cuMemAlloc", None, version, flags, None))
        note("entry point without a name", raw.cuGetProcAddress(None, place, version, flags, None))
        """
    )
    assert outcome["cuMemAlloc"] == outcome["cuDeviceGetCount"] == INVALID_VALUE
    observe("null places for answers", outcome)
