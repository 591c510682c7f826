"""Copies between host and device in every direction and form, and copies that cannot be."""

from __future__ import annotations

import ctypes

import pytest

from .support import INVALID_VALUE, MIB, NOT_READY, SUCCESS, name, ok

PATTERN = bytes(range(256)) * 16


def host_memory(scope, kind: str, nbytes: int) -> int:
    return int(
        {"pageable": scope.pages, "pinned": scope.pinned, "registered": scope.registered}[kind](
            nbytes
        )
    )


@pytest.mark.parametrize("kind", ["pageable", "pinned", "registered"])
@pytest.mark.parametrize("form", ["sync", "async", "unified", "unified async"])
def test_round_trip_through_the_device(cu, scope, kind, form):
    host, memory, stream = host_memory(scope, kind, 4096), scope.alloc(4096), scope.stream()
    ctypes.memmove(host, PATTERN, 4096)
    if form == "sync":
        ok(cu.cuMemcpyHtoD(memory, host, 4096))
    elif form == "async":
        ok(cu.cuMemcpyHtoDAsync(memory, host, 4096, stream))
    elif form == "unified":
        ok(cu.cuMemcpy(memory, host, 4096))
    else:
        ok(cu.cuMemcpyAsync(memory, host, 4096, stream))
    ok(cu.cuCtxSynchronize())
    ctypes.memset(host, 0, 4096)
    if form == "sync":
        ok(cu.cuMemcpyDtoH(host, memory, 4096))
    elif form == "async":
        ok(cu.cuMemcpyDtoHAsync(host, memory, 4096, stream))
    elif form == "unified":
        ok(cu.cuMemcpy(host, memory, 4096))
    else:
        ok(cu.cuMemcpyAsync(host, memory, 4096, stream))
    ok(cu.cuCtxSynchronize())
    assert ctypes.string_at(host, 4096) == PATTERN


@pytest.mark.parametrize("form", ["sync", "async", "unified", "unified async"])
def test_device_to_device(cu, scope, form):
    source, target, stream = scope.alloc(4096), scope.alloc(4096), scope.stream()
    scope.write(source, PATTERN)
    if form == "sync":
        ok(cu.cuMemcpyDtoD(target, source, 4096))
    elif form == "async":
        ok(cu.cuMemcpyDtoDAsync(target, source, 4096, stream))
    elif form == "unified":
        ok(cu.cuMemcpy(target, source, 4096))
    else:
        ok(cu.cuMemcpyAsync(target, source, 4096, stream))
    ok(cu.cuCtxSynchronize())
    assert scope.read(target, 4096) == PATTERN


@pytest.mark.parametrize(
    ("source_kind", "target_kind"),
    [("pinned", "pinned"), ("pageable", "pageable"), ("pageable", "pinned")],
)
def test_host_to_host_in_the_unified_form(cu, scope, source_kind, target_kind):
    source, target = host_memory(scope, source_kind, 4096), host_memory(scope, target_kind, 4096)
    ctypes.memmove(source, PATTERN, 4096)
    ok(cu.cuMemcpy(target, source, 4096))
    ok(cu.cuCtxSynchronize())
    assert ctypes.string_at(target, 4096) == PATTERN


@pytest.mark.parametrize("nbytes", [1, 3, 4097, MIB + 1])
def test_odd_sizes_and_offsets(cu, scope, nbytes):
    memory = scope.alloc(nbytes + 16)
    ok(cu.cuMemsetD8(memory, 0xEE, nbytes + 16))
    data = bytes(index % 253 for index in range(nbytes))
    scope.write(memory + 7, data)
    whole = scope.read(memory, nbytes + 16)
    assert whole == b"\xee" * 7 + data + b"\xee" * 9


@pytest.mark.parametrize("nbytes", [64 * 1024, 64 * 1024 + 1, 32 * MIB])
def test_sizes_around_the_staging_buffers(cu, scope, nbytes):
    memory = scope.alloc(nbytes)
    data = (b"vramkit!" * (nbytes // 8 + 1))[:nbytes]
    scope.write(memory, data)
    assert scope.read(memory, nbytes) == data


def test_copy_of_zero_bytes(cu, scope):
    memory, host = scope.alloc(256), ctypes.create_string_buffer(256)
    address = ctypes.addressof(host)
    assert name(cu.cuMemcpyHtoD(memory, address, 0)) == SUCCESS
    assert name(cu.cuMemcpyDtoH(address, memory, 0)) == SUCCESS
    assert name(cu.cuMemcpyDtoD(memory, memory, 0)) == SUCCESS
    assert name(cu.cuMemcpyHtoDAsync(memory, address, 0, scope.stream())) == SUCCESS


def test_copy_of_zero_bytes_between_null_pointers(cu, observe):
    outcome = {
        "HtoD": name(cu.cuMemcpyHtoD(0, 0, 0)),
        "DtoH": name(cu.cuMemcpyDtoH(0, 0, 0)),
        "DtoD": name(cu.cuMemcpyDtoD(0, 0, 0)),
        "unified": name(cu.cuMemcpy(0, 0, 0)),
        "HtoD async": name(cu.cuMemcpyHtoDAsync(0, 0, 0, 0)),
    }
    observe("copies of zero bytes between null pointers", outcome)


def test_null_pointers(cu, scope):
    memory, host = scope.alloc(256), ctypes.create_string_buffer(256)
    address = ctypes.addressof(host)
    assert name(cu.cuMemcpyHtoD(0, address, 256)) == INVALID_VALUE
    assert name(cu.cuMemcpyHtoD(memory, 0, 256)) == INVALID_VALUE
    assert name(cu.cuMemcpyDtoH(0, memory, 256)) == INVALID_VALUE
    assert name(cu.cuMemcpyDtoH(address, 0, 256)) == INVALID_VALUE
    assert name(cu.cuMemcpyDtoD(memory, 0, 256)) == INVALID_VALUE
    assert name(cu.cuMemcpyDtoD(0, memory, 256)) == INVALID_VALUE


def test_null_pointers_in_streams(cu, scope):
    memory, host, stream = scope.alloc(256), scope.pinned(256), scope.stream()
    assert name(cu.cuMemcpyHtoDAsync(0, host, 256, stream)) == INVALID_VALUE
    assert name(cu.cuMemcpyDtoHAsync(host, 0, 256, stream)) == INVALID_VALUE
    assert name(cu.cuMemcpyDtoDAsync(memory, 0, 256, stream)) == INVALID_VALUE
    assert name(cu.cuMemcpyAsync(0, memory, 256, stream)) == INVALID_VALUE


def test_copies_and_memsets_past_the_end_of_a_block(isolated, observe):
    outcome = isolated(
        """
        host, stream = scope.pinned(16 * MIB), scope.stream()
        small, large, other = scope.alloc(1000), scope.alloc(4 * MIB), scope.alloc(16 * MIB)
        for label, memory, nbytes in [
            ("one byte past 1000", small, 1001),
            ("4 MiB from 1000", small, 4 * MIB),
            ("one byte past 4 MiB", large, 4 * MIB + 1),
            ("16 MiB from 4 MiB", large, 16 * MIB),
        ]:
            for call, make in {
                "HtoD": lambda: cu.cuMemcpyHtoD(memory, host, nbytes),
                "DtoH": lambda: cu.cuMemcpyDtoH(host, memory, nbytes),
                "DtoD": lambda: cu.cuMemcpyDtoD(other, memory, nbytes),
                "memset": lambda: cu.cuMemsetD8(memory, 1, nbytes),
                "HtoD in a stream": lambda: cu.cuMemcpyHtoDAsync(memory, host, nbytes, stream),
                "DtoH in a stream": lambda: cu.cuMemcpyDtoHAsync(host, memory, nbytes, stream),
                "DtoD in a stream": lambda: cu.cuMemcpyDtoDAsync(other, memory, nbytes, stream),
                "unified in a stream": lambda: cu.cuMemcpyAsync(other, memory, nbytes, stream),
                "memset in a stream": lambda: cu.cuMemsetD8Async(memory, 1, nbytes, stream),
                "health": lambda: cu.cuCtxSynchronize(),
            }.items():
                note(f"{label}, {call}", name(make()))
        """
    )
    observe("copies and memsets past the end of a block", outcome)


def test_copy_at_a_reserved_address_without_memory(isolated, observe):
    outcome = isolated(
        """
        reserved, memory = scope.reserve(4 * MIB), scope.alloc(4096)
        host, stream = scope.pinned(4096), scope.stream()
        note("HtoD", name(cu.cuMemcpyHtoD(reserved, host, 4096)))
        note("DtoH", name(cu.cuMemcpyDtoH(host, reserved, 4096)))
        note("DtoD", name(cu.cuMemcpyDtoD(memory, reserved, 4096)))
        note("HtoD in a stream", name(cu.cuMemcpyHtoDAsync(reserved, host, 4096, stream)))
        note("DtoH in a stream", name(cu.cuMemcpyDtoHAsync(host, reserved, 4096, stream)))
        note("unified in a stream", name(cu.cuMemcpyAsync(memory, reserved, 4096, stream)))
        note("memset", name(cu.cuMemsetD8(reserved, 1, 4096)))
        note("memset in a stream", name(cu.cuMemsetD8Async(reserved, 1, 4096, stream)))
        note("health", name(cu.cuCtxSynchronize()))
        """
    )
    observe("copies at a reserved address without memory", outcome)


def test_captured_copies_at_a_reserved_address_without_memory(isolated, observe):
    outcome = isolated(
        """
        reserved, memory = scope.reserve(4 * MIB), scope.alloc(4096)
        stream = scope.stream()
        for label, call in {
            "DtoD to it": lambda: cu.cuMemcpyDtoDAsync(reserved, memory, 4096, stream),
            "DtoD from it": lambda: cu.cuMemcpyDtoDAsync(memory, reserved, 4096, stream),
            "memset": lambda: cu.cuMemsetD8Async(reserved, 1, 4096, stream),
        }.items():
            ok(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode(2)))
            note(label, name(call()))
            note(f"{label}, end", name(cu.cuStreamEndCapture(stream)))
        note("health", name(cu.cuCtxSynchronize()))
        """
    )
    observe("captured copies at a reserved address without memory", outcome)


def test_copies_to_freed_memory_and_to_an_address_of_nobody(isolated, observe):
    outcome = isolated(
        """
        host, freed = scope.pinned(4096), int(ok(cu.cuMemAlloc(8 * MIB)))
        ok(cu.cuMemFree(freed))
        for label, address in [("freed", freed), ("nobody's", 0x0123_4560_0000)]:
            note(f"{label}, HtoD", name(cu.cuMemcpyHtoD(address, host, 4096)))
            note(f"{label}, memset", name(cu.cuMemsetD8(address, 1, 4096)))
            note(f"{label}, HtoD in a stream", name(cu.cuMemcpyHtoDAsync(address, host, 4096, 0)))
            note(f"{label}, memset in a stream", name(cu.cuMemsetD8Async(address, 1, 4096, 0)))
            note(f"{label}, health", name(cu.cuCtxSynchronize()))
        """
    )
    observe("copies to freed memory and to an address of nobody", outcome)


def test_pointers_of_the_wrong_kind(isolated, observe):
    outcome = isolated(
        """
        pinned, pages, memory = scope.pinned(4096), scope.pages(4096), scope.alloc(4096)
        note("pinned to pinned as HtoD", name(cu.cuMemcpyHtoD(pinned, pages, 4096)))
        note("pinned as source of DtoD", name(cu.cuMemcpyDtoD(memory, pinned, 4096)))
        note("pinned as source of DtoH", name(cu.cuMemcpyDtoH(pages, pinned, 4096)))
        note("pageable as target of HtoD", name(cu.cuMemcpyHtoD(pages, pinned, 4096)))
        note("pageable as source of DtoD", name(cu.cuMemcpyDtoD(memory, pages, 4096)))
        note("pageable as source of DtoH", name(cu.cuMemcpyDtoH(pinned, pages, 4096)))
        note("memset of pageable", name(cu.cuMemsetD8(pages, 1, 4096)))
        note("health", name(cu.cuCtxSynchronize()))
        source = scope.alloc(4096)
        ok(cu.cuMemsetD8(source, 9, 4096))
        note("device as source of HtoD", name(cu.cuMemcpyHtoD(memory, source, 4096)))
        note("moved", scope.read(memory, 4096) == bytes([9]) * 4096)
        note("device as target of DtoH", name(cu.cuMemcpyDtoH(memory, source, 4096)))
        note("in a stream", name(cu.cuMemcpyHtoDAsync(memory, source, 4096, 0)))
        note("past the end of pinned", name(cu.cuMemcpyHtoD(memory, pinned + 4088, 16)))
        note("health at the end", name(cu.cuCtxSynchronize()))
        """
    )
    observe("copies with pointers of the wrong kind", outcome)


def test_copy_in_a_stream_waits_its_turn(cu, scope, kernels):
    stream, memory, host = scope.stream(), scope.alloc(4096), scope.pinned(4096)
    kernels.spin(stream)
    kernels.run("vk_fill", memory, 1024, 3, stream=stream)
    ok(cu.cuMemcpyDtoHAsync(host, memory, 4096, stream))
    assert name(cu.cuStreamQuery(stream)) == NOT_READY
    ok(cu.cuStreamSynchronize(stream))
    assert ctypes.string_at(host, 4096) == (3).to_bytes(4, "little") * 1024


def test_copy_from_pageable_memory_has_read_its_source_on_return(cu, scope, kernels):
    stream, memory, host = scope.stream(), scope.alloc(4096), scope.pages(4096)
    ctypes.memset(host, 1, 4096)
    kernels.spin(stream)
    ok(cu.cuMemcpyHtoDAsync(memory, host, 4096, stream))
    ctypes.memset(host, 2, 4096)
    ok(cu.cuStreamSynchronize(stream))
    assert scope.read(memory, 4096) == b"\x01" * 4096


def test_copy_from_pageable_memory_does_not_wait_for_the_stream(cu, scope, kernels):
    stream, memory, host = scope.stream(), scope.alloc(MIB), scope.pages(MIB)
    kernels.spin(stream)
    event = scope.recorded(stream)
    ok(cu.cuMemcpyHtoDAsync(memory, host, MIB, stream))
    assert name(cu.cuEventQuery(event)) == NOT_READY


def test_copy_to_pageable_memory_is_complete_on_return(cu, scope, kernels):
    stream, memory, host = scope.stream(), scope.alloc(4096), scope.pages(4096)
    kernels.spin(stream)
    kernels.run("vk_fill", memory, 1024, 0x04040404, stream=stream)
    ok(cu.cuMemcpyDtoHAsync(host, memory, 4096, stream))
    assert ctypes.string_at(host, 4096) == b"\x04" * 4096


@pytest.mark.parametrize("stream", [0, 1, 2])
def test_copy_in_each_default_stream(cu, scope, stream):
    memory, host = scope.alloc(4096), scope.pinned(4096)
    ctypes.memset(host, 8, 4096)
    ok(cu.cuMemcpyHtoDAsync(memory, host, 4096, stream))
    ok(cu.cuStreamSynchronize(stream))
    assert scope.read(memory, 4096) == b"\x08" * 4096
