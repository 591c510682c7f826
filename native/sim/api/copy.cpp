// What copies and sets do, and the exported calls of one dimension.
#include <algorithm>
#include <cstring>

#include "sim/api/copying.h"

namespace vramkit::sim {
namespace {

constexpr double kNanosecondsPerSecond = 1e9;
// What of a staged copy is still to cross the link when the host has put the last bytes in.
constexpr std::uint64_t kStagingBytes = 256 * 1024;

enum class Memory : std::uint8_t { pageable, pinned, device };

// A copy of which is known what it copies between.
struct Copy : CopyRows {
    Memory to_memory = Memory::device;
    Memory from_memory = Memory::device;
    SourceOrder order = SourceOrder::as_usual;

    bool on_host() const { return to_memory != Memory::device && from_memory != Memory::device; }
    bool on_device() const { return to_memory == Memory::device && from_memory == Memory::device; }
    bool to_device() const { return to_memory == Memory::device && !on_device(); }
    // Documented: such a copy is complete when the call returns, in a stream too.
    bool to_pageable() const {
        return from_memory == Memory::device && to_memory == Memory::pageable;
    }
};

// What lies at an address that a copy names; nothing where it is no memory, or memory of the
// program's own where the call wants some that the driver knows.
std::optional<Memory> memory_at(Call& call, std::uint64_t address, std::uint64_t bytes, bool write,
                                bool may_be_pageable) {
    Space& space = call.machine().space();
    std::vector<Piece> pieces;
    const bool known = space.resolve(address, bytes, pieces);
    if (space.is_device_address(address)) {
        for (const Piece& piece : pieces) {
            if (!piece.readable || (write && !piece.writable)) return std::nullopt;
        }
        return known ? std::optional(Memory::device) : std::nullopt;
    }
    if (known) return Memory::pinned;
    // Memory that begins page-locked must be so to the end.
    const bool begins_pinned = space.host_around(address).second != nullptr;
    if (begins_pinned || !may_be_pageable) return std::nullopt;
    return Memory::pageable;
}

// The same of a box. Only where something between the rows is not there are they looked at one by
// one: all must be of one kind.
std::optional<Memory> memory_of(Call& call, const Side& side, const Box& box, bool write) {
    if (side.address == 0 || !is_sound(box, side.strides, Space::kMostAddresses)) {
        return std::nullopt;
    }
    std::optional<Memory> whole =
        memory_at(call, side.address, span_of(box, side.strides), write, side.pageable);
    if (whole) return whole;
    bool same = true;
    each_row(box, side.strides, [&](std::uint64_t at, std::uint64_t bytes) {
        if (!same) return;
        const auto row = memory_at(call, side.address + at, bytes, write, side.pageable);
        same = row && (!whole || *whole == *row);
        whole = row;
    });
    return same ? whole : std::nullopt;
}

std::optional<Copy> look_up(Call& call, const Transfer& transfer) {
    const auto to = memory_of(call, transfer.to, transfer.box, true);
    const auto from = memory_of(call, transfer.from, transfer.box, false);
    if (!to || !from) return std::nullopt;
    return Copy{{transfer.to.address, transfer.from.address, transfer.box, transfer.to.strides,
                 transfer.from.strides},
                *to,
                *from,
                transfer.order};
}

int device_of(Call& call, std::uint64_t address) {
    return call.machine().space().mapping_around(address).second->physical->device;
}

// Between two devices the bytes cross the link of the one whose stream it is.
Lane lane_of(Call& call, const Copy& copy, const Stream& stream) {
    if (copy.on_host()) return Lane::none;
    if (copy.to_device()) return Lane::host_to_device;
    if (!copy.on_device()) return Lane::device_to_host;
    const int to = device_of(call, copy.destination);
    if (to == device_of(call, copy.source)) return Lane::on_device;
    return to == stream.context->device ? Lane::host_to_device : Lane::device_to_host;
}

double rate_of(const Link& link, Lane lane) {
    switch (lane) {
        case Lane::host_to_device:
            return link.host_to_device_bytes_per_s;
        case Lane::device_to_host:
            return link.device_to_host_bytes_per_s;
        default:
            return link.device_to_device_bytes_per_s;
    }
}

// The bytes of the source, row after row; nothing with data off.
std::vector<std::byte> take_source(Call& call, const Copy& copy) {
    std::vector<std::byte> taken;
    if (!call.machine().settings.data) return taken;
    Space& space = call.machine().space();
    const bool device = copy.from_memory == Memory::device;
    taken.reserve(copy.box.bytes());
    each_row(copy.box, copy.from, [&](std::uint64_t at, std::uint64_t bytes) {
        const std::uint64_t row = copy.source + at;
        const auto* begin = device ? space.alias(row) : reinterpret_cast<const std::byte*>(row);
        taken.insert(taken.end(), begin, begin + bytes);
    });
    return taken;
}

// Host to host: the call waits for the stream and copies.
CUresult copy_on_host(Call& call, const Copy& copy, const std::shared_ptr<Stream>& stream) {
    call.observe();
    const CUresult result = call.wait_for(stream);
    if (result != CUDA_SUCCESS) return result;
    Machine& machine = call.machine();
    each_row(copy.box, copy.from, [&](std::uint64_t at, std::uint64_t bytes) {
        machine.host_touch(copy.source + at, bytes, false, call.site());
    });
    each_row(copy.box, copy.to, [&](std::uint64_t at, std::uint64_t bytes) {
        machine.host_touch(copy.destination + at, bytes, true, call.site());
    });
    each_row(copy.box, copy.to, copy.from,
             [&](std::uint64_t to, std::uint64_t from, std::uint64_t bytes) {
                 std::memmove(reinterpret_cast<void*>(copy.destination + to),
                              reinterpret_cast<const void*>(copy.source + from), bytes);
             });
    return CUDA_SUCCESS;
}

// Tells the checker what a copy of the stream does. True: its destination may be filled with
// garbage at once, because nothing in flight may still read it.
bool touch(Call& call, Stream& stream, const Copy& copy) {
    Machine& machine = call.machine();
    bool idle = true;
    each_row(copy.box, copy.from, [&](std::uint64_t at, std::uint64_t bytes) {
        const std::uint64_t row = copy.source + at;
        // Out of stream order: nothing but what the host has waited for comes before it.
        const bool early = copy.order == SourceOrder::during_call || copy.order == SourceOrder::any;
        if (early) machine.host_touch(row, bytes, false, call.site());
        if (copy.order == SourceOrder::during_call) return;
        machine.touch(stream, row, bytes, Use::read, call.site());
    });
    each_row(copy.box, copy.to, [&](std::uint64_t at, std::uint64_t bytes) {
        machine.touch(stream, copy.destination + at, bytes, Use::write, call.site(), &idle);
    });
    // As far as is known; of host functions it is not.
    return idle && !machine.checker.awaits_deferred();
}

// The order of the call for the checker is set before.
CUresult issue(Call& call, const Copy& copy, const std::shared_ptr<Stream>& stream) {
    Machine& machine = call.machine();
    const Link& link = machine.profile().link;
    const Lane lane = lane_of(call, copy, *stream);
    const std::uint64_t bytes = copy.box.bytes();
    Operation* operation = call.prepare(Kind::copy, lane, stream);
    operation->destination = copy.destination;
    operation->source = copy.source;
    operation->bytes = bytes;
    operation->box = copy.box;
    operation->to = copy.to;
    operation->from = copy.from;
    operation->latency = link.copy_latency_ns;
    operation->work = static_cast<double>(bytes);
    operation->pageable =
        copy.from_memory == Memory::pageable || copy.to_memory == Memory::pageable;
    // A captured copy reads and writes when its graph runs, pageable memory too.
    const bool from_pageable =
        copy.to_device() && copy.from_memory == Memory::pageable && stream->capture == nullptr;
    const bool staged = copy.order == SourceOrder::during_call ||
                        (from_pageable && copy.order == SourceOrder::as_usual);
    if (staged) {
        // The host puts the bytes into the driver's own pinned memory; the source is free again.
        const double rate =
            from_pageable ? link.pageable_host_to_device_bytes_per_s : rate_of(link, lane);
        call.spend(static_cast<double>(bytes) / rate * kNanosecondsPerSecond);
        operation->work = static_cast<double>(std::min(bytes, kStagingBytes));
        operation->staged = take_source(call, copy);
    } else if (from_pageable) {
        operation->work *=
            link.host_to_device_bytes_per_s / link.pageable_host_to_device_bytes_per_s;
    }
    if (copy.to_pageable()) {
        operation->work *=
            link.device_to_host_bytes_per_s / link.pageable_device_to_host_bytes_per_s;
    }
    if (machine.settings.checker) {
        const bool idle = touch(call, *stream, copy);
        const std::uint64_t to_end = copy.destination + span_of(copy.box, copy.to);
        const std::uint64_t from_end = copy.source + span_of(copy.box, copy.from);
        // Garbage until the bytes land.
        operation->poison = copy.destination >= from_end || copy.source >= to_end;
        if (idle && operation->poison) {
            machine.started(*operation);
            operation->poison = false;
        }
    }
    return call.enqueue(operation);
}

}  // namespace

CUresult copy(Call& call, const Transfer& transfer, CUstream handle, bool synchronous) {
    std::shared_ptr<Stream> stream;
    const CUresult found = call.find(handle, stream, synchronous ? Purpose::wait : Purpose::issue);
    if (found != CUDA_SUCCESS) return found;
    if (transfer.box.empty()) return CUDA_SUCCESS;
    const std::optional<Copy> copy = look_up(call, transfer);
    if (!copy) return CUDA_ERROR_INVALID_VALUE;

    Machine& machine = call.machine();
    const bool captured = stream->capture != nullptr;
    if (copy->on_host() && !captured) return copy_on_host(call, *copy, stream);
    const bool staged = copy->to_device() && copy->from_memory == Memory::pageable && !captured;
    if (staged && synchronous) {
        // Documented: the stream is synchronised before a copy from pageable memory begins.
        call.observe();
        const CUresult result = call.wait_for(stream);
        if (result != CUDA_SUCCESS) return result;
    }
    machine.order_for_checker(*stream);
    if (copy->on_device()) {
        const CopyRows& rows = *copy;
        machine.copies_touch(*stream, {&rows, 1}, call.site());
    }
    const CUresult result = issue(call, *copy, stream);
    if (result != CUDA_SUCCESS) return result;
    if (captured) return CUDA_SUCCESS;
    // On the device: never waits. From pageable memory: in fact the bytes have landed when the
    // synchronous call returns, but only the source is promised to be free.
    if (staged && synchronous) return call.wait([&] { return stream->pending == 0; });
    if (!copy->to_pageable() && (!synchronous || copy->on_device())) return CUDA_SUCCESS;
    call.observe();
    const CUresult waited = call.wait_for(stream);
    return waited != CUDA_SUCCESS ? waited : stream->context->error;
}

CUresult copy_batch(Call& call, std::span<const Transfer> transfers, CUstream handle,
                    std::size_t& failed) {
    const bool per_thread = handle == nullptr && call.thread().per_thread_default;
    if ((handle == nullptr && !per_thread) || handle == VRAMKIT_STREAM_LEGACY) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::shared_ptr<Stream> stream;
    const CUresult found = call.find(handle, stream);
    if (found != CUDA_SUCCESS) return found;
    // As a real card answers, whose capture goes on.
    if (stream->capture != nullptr) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    std::vector<Copy> copies;
    std::vector<CopyRows> rows;
    for (std::size_t i = 0; i < transfers.size(); ++i) {
        const std::optional<Copy> copy = look_up(call, transfers[i]);
        if (!copy) {
            failed = i;
            return CUDA_ERROR_INVALID_VALUE;
        }
        copies.push_back(*copy);
        rows.push_back(*copy);
    }
    call.observe();
    call.machine().order_for_checker(*stream);
    call.machine().copies_touch(*stream, rows, call.site());
    bool wait = false;
    for (const Copy& copy : copies) {
        const CUresult result = issue(call, copy, stream);
        if (result != CUDA_SUCCESS) return result;
        wait = wait || copy.to_pageable() || copy.on_host();
    }
    return wait ? call.wait_for(stream) : CUDA_SUCCESS;
}

CUresult set(Call& call, std::uint64_t destination, const Box& box, const Strides& strides,
             std::uint64_t value, unsigned width, CUstream handle, bool synchronous) {
    std::shared_ptr<Stream> stream;
    const CUresult found = call.find(handle, stream);
    if (found != CUDA_SUCCESS) return found;
    if (box.empty()) return CUDA_SUCCESS;
    const bool aligned = destination % width == 0 && (box.height == 1 || strides.row % width == 0);
    if (!aligned) return CUDA_ERROR_INVALID_VALUE;
    const auto memory = memory_of(call, Side{destination, strides}, box, true);
    const bool captured = stream->capture != nullptr;
    // As a real card: whether there is memory is looked at when a captured one runs.
    const bool later = captured && box.height == 1 &&
                       is_sound(box, strides, Space::kMostAddresses) &&
                       call.machine().space().is_device_address(destination);
    if (!memory && !later) return CUDA_ERROR_INVALID_VALUE;
    Machine& machine = call.machine();
    const Link& link = machine.profile().link;
    Operation* operation = call.prepare(Kind::set, Lane::on_device, stream);
    operation->destination = destination;
    operation->bytes = box.bytes();
    operation->box = box;
    operation->to = strides;
    operation->value = value;
    operation->width = width;
    operation->latency = machine.profile().kernels.launch_latency_ns;
    operation->work = static_cast<double>(box.bytes()) * link.device_to_device_bytes_per_s /
                      link.memset_bytes_per_s;
    machine.order_for_checker(*stream);
    each_row(box, strides, [&](std::uint64_t at, std::uint64_t bytes) {
        machine.touch(*stream, destination + at, bytes, Use::write, call.site());
    });
    const CUresult result = call.enqueue(operation);
    // Documented: never waits for device memory, always for page-locked host memory.
    if (result != CUDA_SUCCESS || !synchronous || captured || *memory == Memory::device) {
        return result;
    }
    call.observe();
    return call.wait_for(stream);
}

}  // namespace vramkit::sim

using namespace vramkit::sim;

namespace {

// Which side of a copy a call lets be pageable host memory.
enum class Pageable : std::uint8_t { neither, source, destination, either };

Transfer transfer_of(std::uint64_t to, std::uint64_t from, std::uint64_t bytes, Pageable pageable) {
    const bool either = pageable == Pageable::either;
    return {.box = {.width = bytes},
            .to = {to, {}, either || pageable == Pageable::destination},
            .from = {from, {}, either || pageable == Pageable::source}};
}

// The bytes of so many values; more than any memory has where they cannot be counted.
Box box_of(std::uint64_t count, unsigned width) {
    return {.width = count > Space::kMostAddresses / width ? ~std::uint64_t{0} : count * width};
}

}  // namespace

#define SIM_COPY(symbol, params, destination, source, stream, needs, pageable)           \
    SIM_EXPORT CUresult symbol params {                                                  \
        return run(CallId::symbol, SIM_RETURN_ADDRESS, needs, bytes, [&](Call& call) {   \
            return copy(call, transfer_of(destination, source, bytes, pageable), stream, \
                        needs == Needs::context);                                        \
        });                                                                              \
    }

SIM_COPY(cuMemcpy, (CUdeviceptr to, CUdeviceptr from, size_t bytes), to, from, nullptr,
         Needs::context, Pageable::either)
SIM_COPY(cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream), to, from,
         stream, Needs::stream, Pageable::either)
SIM_COPY(cuMemcpyHtoD_v2, (CUdeviceptr to, const void* from, size_t bytes), to, address(from),
         nullptr, Needs::context, Pageable::source)
SIM_COPY(cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void* from, size_t bytes, CUstream stream),
         to, address(from), stream, Needs::stream, Pageable::source)
SIM_COPY(cuMemcpyDtoH_v2, (void* to, CUdeviceptr from, size_t bytes), address(to), from, nullptr,
         Needs::context, Pageable::destination)
SIM_COPY(cuMemcpyDtoHAsync_v2, (void* to, CUdeviceptr from, size_t bytes, CUstream stream),
         address(to), from, stream, Needs::stream, Pageable::destination)
SIM_COPY(cuMemcpyDtoD_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes), to, from, nullptr,
         Needs::context, Pageable::neither)
SIM_COPY(cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
         to, from, stream, Needs::stream, Pageable::neither)

#define SIM_SET(symbol, params, width, stream, needs)                              \
    SIM_EXPORT CUresult symbol params {                                            \
        return run(CallId::symbol, SIM_RETURN_ADDRESS, needs, 0, [&](Call& call) { \
            return set(call, to, box_of(count, width), {}, value, width, stream,   \
                       needs == Needs::context);                                   \
        });                                                                        \
    }

SIM_SET(cuMemsetD8_v2, (CUdeviceptr to, unsigned char value, size_t count), 1, nullptr,
        Needs::context)
SIM_SET(cuMemsetD16_v2, (CUdeviceptr to, unsigned short value, size_t count), 2, nullptr,
        Needs::context)
SIM_SET(cuMemsetD32_v2, (CUdeviceptr to, unsigned int value, size_t count), 4, nullptr,
        Needs::context)
SIM_SET(cuMemsetD8Async, (CUdeviceptr to, unsigned char value, size_t count, CUstream stream), 1,
        stream, Needs::stream)
SIM_SET(cuMemsetD16Async, (CUdeviceptr to, unsigned short value, size_t count, CUstream stream), 2,
        stream, Needs::stream)
SIM_SET(cuMemsetD32Async, (CUdeviceptr to, unsigned int value, size_t count, CUstream stream), 4,
        stream, Needs::stream)

SIM_PER_THREAD(cuMemcpy, ptds, (CUdeviceptr d, CUdeviceptr s, size_t n), (d, s, n))
SIM_PER_THREAD(cuMemcpyAsync, ptsz, (CUdeviceptr d, CUdeviceptr s, size_t n, CUstream t),
               (d, s, n, t))
SIM_PER_THREAD(cuMemcpyHtoD_v2, ptds, (CUdeviceptr d, const void* s, size_t n), (d, s, n))
SIM_PER_THREAD(cuMemcpyHtoDAsync_v2, ptsz, (CUdeviceptr d, const void* s, size_t n, CUstream t),
               (d, s, n, t))
SIM_PER_THREAD(cuMemcpyDtoH_v2, ptds, (void* d, CUdeviceptr s, size_t n), (d, s, n))
SIM_PER_THREAD(cuMemcpyDtoHAsync_v2, ptsz, (void* d, CUdeviceptr s, size_t n, CUstream t),
               (d, s, n, t))
SIM_PER_THREAD(cuMemcpyDtoD_v2, ptds, (CUdeviceptr d, CUdeviceptr s, size_t n), (d, s, n))
SIM_PER_THREAD(cuMemcpyDtoDAsync_v2, ptsz, (CUdeviceptr d, CUdeviceptr s, size_t n, CUstream t),
               (d, s, n, t))
SIM_PER_THREAD(cuMemsetD8_v2, ptds, (CUdeviceptr d, unsigned char v, size_t n), (d, v, n))
SIM_PER_THREAD(cuMemsetD16_v2, ptds, (CUdeviceptr d, unsigned short v, size_t n), (d, v, n))
SIM_PER_THREAD(cuMemsetD32_v2, ptds, (CUdeviceptr d, unsigned int v, size_t n), (d, v, n))
SIM_PER_THREAD(cuMemsetD8Async, ptsz, (CUdeviceptr d, unsigned char v, size_t n, CUstream t),
               (d, v, n, t))
SIM_PER_THREAD(cuMemsetD16Async, ptsz, (CUdeviceptr d, unsigned short v, size_t n, CUstream t),
               (d, v, n, t))
SIM_PER_THREAD(cuMemsetD32Async, ptsz, (CUdeviceptr d, unsigned int v, size_t n, CUstream t),
               (d, v, n, t))
