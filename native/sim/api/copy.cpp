// Exported calls: one-dimensional copies and sets.
#include <cstring>

#include "sim/api/call.h"

using namespace vramkit::sim;

namespace {

constexpr double kNanosecondsPerSecond = 1e9;
// What of a staged copy is still to cross the link when the host has put the last bytes in.
constexpr std::uint64_t kStagingBytes = 256 * 1024;

enum class Side : std::uint8_t { pageable, pinned, device };

struct Copy {
    std::uint64_t destination = 0;
    std::uint64_t source = 0;
    std::uint64_t bytes = 0;
    Side to = Side::device;
    Side from = Side::device;
};

// What lies at an address that a copy names; nothing where it is no memory, or memory of the
// program's own where the call wants some that the driver knows.
std::optional<Side> side_of(Call& call, std::uint64_t address, std::uint64_t bytes, bool write,
                            bool may_be_pageable) {
    Space& space = call.machine().space();
    std::vector<Piece> pieces;
    const bool known = space.resolve(address, bytes, pieces);
    if (space.is_device_address(address)) {
        for (const Piece& piece : pieces) {
            if (!piece.readable || (write && !piece.writable)) return std::nullopt;
        }
        return known ? std::optional(Side::device) : std::nullopt;
    }
    if (known) return Side::pinned;
    // Memory that begins page-locked must be so to the end.
    const bool begins_pinned = space.host_around(address).second != nullptr;
    if (begins_pinned || !may_be_pageable) return std::nullopt;
    return Side::pageable;
}

Lane lane_of(const Copy& copy) {
    if (copy.to == Side::device && copy.from == Side::device) return Lane::on_device;
    if (copy.to == Side::device) return Lane::host_to_device;
    if (copy.from == Side::device) return Lane::device_to_host;
    return Lane::none;
}

// Host to host: the call waits for the stream and copies.
CUresult copy_on_host(Call& call, const Copy& copy, const std::shared_ptr<Stream>& stream) {
    call.observe();
    const CUresult result = call.wait_for(stream);
    if (result != CUDA_SUCCESS) return result;
    call.machine().host_touch(copy.source, copy.bytes, false, call.site());
    call.machine().host_touch(copy.destination, copy.bytes, true, call.site());
    std::memmove(reinterpret_cast<void*>(copy.destination),
                 reinterpret_cast<const void*>(copy.source), copy.bytes);
    return CUDA_SUCCESS;
}

// Which side of a copy a call lets be pageable host memory.
enum class Pageable : std::uint8_t { neither, source, destination, either };

CUresult copy(Call& call, std::uint64_t destination, std::uint64_t source, std::uint64_t bytes,
              CUstream handle, bool synchronous, Pageable pageable) {
    std::shared_ptr<Stream> stream;
    const CUresult found = call.find(handle, stream, synchronous ? Purpose::wait : Purpose::issue);
    if (found != CUDA_SUCCESS) return found;
    if (bytes == 0) return CUDA_SUCCESS;
    if (destination == 0 || source == 0) return CUDA_ERROR_INVALID_VALUE;
    const bool either = pageable == Pageable::either;
    const auto to =
        side_of(call, destination, bytes, true, either || pageable == Pageable::destination);
    const auto from = side_of(call, source, bytes, false, either || pageable == Pageable::source);
    if (!to || !from) return CUDA_ERROR_INVALID_VALUE;
    const Copy copy{destination, source, bytes, *to, *from};

    Machine& machine = call.machine();
    const Link& link = machine.profile().link;
    const Lane lane = lane_of(copy);
    // A captured copy reads and writes when its graph runs, pageable memory too.
    const bool captured = stream->capture != nullptr;
    if (lane == Lane::none && !captured) return copy_on_host(call, copy, stream);

    const bool staged = lane == Lane::host_to_device && copy.from == Side::pageable && !captured;
    const bool to_pageable = lane == Lane::device_to_host && copy.to == Side::pageable;
    if (staged && synchronous) {
        // Documented: the stream is synchronised before a copy from pageable memory begins.
        call.observe();
        const CUresult result = call.wait_for(stream);
        if (result != CUDA_SUCCESS) return result;
    }
    Operation* operation = call.prepare(Kind::copy, lane, stream);
    operation->destination = destination;
    operation->source = source;
    operation->bytes = bytes;
    operation->latency = link.copy_latency_ns;
    operation->work = static_cast<double>(bytes);
    operation->pageable = copy.from == Side::pageable || copy.to == Side::pageable;
    if (staged) {
        // The host puts the bytes into the driver's own pinned memory; the source is free again.
        call.spend(static_cast<double>(bytes) / link.pageable_host_to_device_bytes_per_s *
                   kNanosecondsPerSecond);
        operation->work = static_cast<double>(std::min(bytes, kStagingBytes));
        if (machine.settings.data) {
            const auto* begin = reinterpret_cast<const std::byte*>(source);
            operation->staged.assign(begin, begin + bytes);
        }
    }
    if (to_pageable) {
        operation->work *=
            link.device_to_host_bytes_per_s / link.pageable_device_to_host_bytes_per_s;
    }
    machine.order_for_checker(*stream);
    if (machine.settings.checker) {
        bool idle = true;
        if (lane == Lane::on_device) {
            machine.copy_touch(*stream, destination, source, bytes, call.site());
        }
        machine.touch(*stream, source, bytes, Use::read, call.site());
        machine.touch(*stream, destination, bytes, Use::write, call.site(), &idle);
        // Garbage until the bytes land: at once where nothing in flight may still read it, as far
        // as is known; of host functions it is not.
        if (machine.checker.awaits_deferred()) idle = false;
        operation->poison = true;
        const bool overlap = destination < source + bytes && source < destination + bytes;
        if (overlap) operation->poison = false;
        if (idle && operation->poison) {
            machine.started(*operation);
            operation->poison = false;
        }
    }
    const CUresult result = call.enqueue(operation);
    if (result != CUDA_SUCCESS) return result;
    if (captured) return CUDA_SUCCESS;
    // On the device: never waits. From pageable memory: in fact the bytes have landed when the
    // synchronous call returns, but only the source is promised to be free.
    if (staged && synchronous) return call.wait([&] { return stream->pending == 0; });
    if (!to_pageable && (!synchronous || lane == Lane::on_device)) return CUDA_SUCCESS;
    call.observe();
    const CUresult waited = call.wait_for(stream);
    return waited != CUDA_SUCCESS ? waited : stream->context->error;
}

CUresult set(Call& call, std::uint64_t destination, std::uint64_t value, unsigned width,
             std::uint64_t count, CUstream handle, bool synchronous) {
    std::shared_ptr<Stream> stream;
    const CUresult found = call.find(handle, stream);
    if (found != CUDA_SUCCESS) return found;
    if (count == 0) return CUDA_SUCCESS;
    if (destination == 0 || destination % width != 0 || count > Space::kMostAddresses / width) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const std::uint64_t bytes = count * width;
    const auto side = side_of(call, destination, bytes, true, false);
    if (!side) return CUDA_ERROR_INVALID_VALUE;
    Machine& machine = call.machine();
    const Link& link = machine.profile().link;
    Operation* operation = call.prepare(Kind::set, Lane::on_device, stream);
    operation->destination = destination;
    operation->bytes = bytes;
    operation->value = value;
    operation->width = width;
    operation->latency = machine.profile().kernels.launch_latency_ns;
    operation->work =
        static_cast<double>(bytes) * link.device_to_device_bytes_per_s / link.memset_bytes_per_s;
    machine.order_for_checker(*stream);
    machine.touch(*stream, destination, bytes, Use::write, call.site());
    const CUresult result = call.enqueue(operation);
    // Documented: never waits for device memory, always for page-locked host memory.
    if (result != CUDA_SUCCESS || !synchronous || *side == Side::device) return result;
    call.observe();
    return call.wait_for(stream);
}

std::uint64_t address(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }

}  // namespace

#define SIM_COPY(symbol, params, destination, source, stream, needs, pageable)             \
    SIM_EXPORT CUresult symbol params {                                                    \
        return run(CallId::symbol, SIM_RETURN_ADDRESS, needs, bytes, [&](Call& call) {     \
            return copy(call, destination, source, bytes, stream, needs == Needs::context, \
                        pageable);                                                         \
        });                                                                                \
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

#define SIM_SET(symbol, params, width, stream, needs)                                   \
    SIM_EXPORT CUresult symbol params {                                                 \
        return run(CallId::symbol, SIM_RETURN_ADDRESS, needs, 0, [&](Call& call) {      \
            return set(call, to, value, width, count, stream, needs == Needs::context); \
        });                                                                             \
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
