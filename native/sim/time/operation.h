// One piece of work in a stream of the simulated card.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "driver/cuda_abi.h"
#include "sim/checker/checker.h"
#include "sim/machine/box.h"

namespace vramkit::sim {

struct Event;
struct Operation;
struct Stream;
struct BuiltinKernel;

// A point of a stream's order that others ask about. Null: the stream has got there.
struct Milestone {
    Operation* pending = nullptr;
};

enum class Kind : std::uint8_t {
    copy,
    set,
    kernel,
    record,
    wait_event,
    host_function,
    write_value,
    wait_value,
    free,  // of a block of cuMemAlloc, in stream order
    prefetch,
    migrate,  // pages of managed memory on their way, before an operation that needs them
};

// What an operation occupies while it runs. Operations on one lane of a device share its rate.
enum class Lane : std::uint8_t { none, host_to_device, device_to_host, on_device, compute };
inline constexpr std::size_t kLanes = 5;

struct Operation {
    std::uint64_t sequence = 0;  // order of issue, breaks ties
    Kind kind = Kind::record;
    Lane lane = Lane::none;
    int device = 0;
    int priority = 0;  // of kernels; lower numbers go first, as in CUDA
    std::uint16_t call = 0;
    std::shared_ptr<Stream> stream;

    // Time, in nanoseconds.
    double issued = 0;   // reaches the card
    double latency = 0;  // from ready to working
    double work = 0;     // bytes; of kernels nanoseconds
    double most = 0;     // bytes a nanosecond, where its lane has more; 0: no limit
    double demand = 1;   // of kernels: the share of the multiprocessors asked for
    double wave = 0;     // of kernels: work of one wave of blocks, which runs to its end
    double start = 0;
    double rate = 0;  // work a nanosecond, since `since`
    double since = 0;
    double finish = 0;    // at this rate
    double share = 0;     // of kernels: of the multiprocessors, held until the wave ends
    double boundary = 0;  // of kernels: when the wave under way ends

    bool prepared = false;  // Effects::prepare() has seen it

    // Order: how many operations this one still waits for, and who waits for it.
    std::uint32_t blockers = 0;
    std::vector<Operation*> followers;

    // What it does to memory and to the host.
    std::uint64_t destination = 0;
    std::uint64_t source = 0;
    std::uint64_t bytes = 0;
    Box box;  // of copies and sets: the bytes, as rows that lie so many bytes apart on either side
    Strides to;
    Strides from;
    std::uint64_t value = 0;
    unsigned width = 1;             // of a set or a value, in bytes
    unsigned condition = 0;         // of a wait for a value
    bool pageable = false;          // one side of the copy is memory that the driver does not know
    bool poison = false;            // fill the destination with garbage when the copy starts
    std::vector<std::byte> staged;  // bytes of the source, packed, where the call took them
    const BuiltinKernel* kernel = nullptr;
    std::array<std::uint64_t, 4> arguments{};
    Event* event = nullptr;  // to mark; null once superseded or destroyed
    std::shared_ptr<Milestone> milestone;
    std::shared_ptr<const void> keeps;  // what may not go before it is over
    CUhostFn function = nullptr;
    CUstreamCallback callback = nullptr;
    void* data = nullptr;
    std::shared_ptr<void> host_record;  // what `data` points to, where the checker wraps a function
    Site site;
};

}  // namespace vramkit::sim
