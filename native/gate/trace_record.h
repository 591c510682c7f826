// The raw trace that the gate writes: one file a process, read by vramkit.record. Little-endian.
//
// A header of 4,096 bytes, then chunks of 64 KiB, each written by one thread at a time: records of
// 64 bytes, from the start of the chunk on. A record whose kind is 0 has not been written; the
// chunk ends there. Chunks are not in order of time, records are stamped.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

namespace vramkit::gate {

// What a record says. Numbers are part of the format.
enum class Kind : std::uint8_t {
    none = 0,
    allocation = 1,  // object: address; failed where code is not 0
    free = 2,
    handle = 3,  // object: handle; context: number of the device
    handle_retained = 4,
    handle_released = 5,
    mapping = 6,  // object: address; context: handle
    unmapping = 7,
    launch = 8,        // so many on the stream
    event_record = 9,  // object: event
    event_wait = 10,
    event_done = 11,
    stream_done = 12,
    context_done = 13,  // object: context
    context = 14,       // object: number of the device
    context_released = 15,
    context_reset = 16,
    context_destroyed = 17,
    stream_destroyed = 18,
};

struct Record {
    std::uint64_t time_ns = 0;  // CLOCK_MONOTONIC
    std::uint64_t stream = 0;   // handle; 0: the call takes none
    std::uint64_t object = 0;
    std::uint64_t bytes = 0;
    std::uint64_t context = 0;
    std::uint32_t thread = 0;   // the system's number
    std::uint32_t count = 1;    // so many like this, one after the other
    std::int32_t code = 0;      // what the driver returned
    std::uint16_t call = 0;     // twice its row in the header's list, and 1 for the per-thread form
    std::uint8_t captured = 0;  // into a graph: nothing happened yet
    std::atomic<std::uint8_t> kind{0};  // written last
    std::uint64_t unused = 0;
};
static_assert(sizeof(Record) == 64);

inline constexpr std::size_t kChunkBytes = 64 * 1024;
inline constexpr std::size_t kChunkRecords = kChunkBytes / sizeof(Record);

// Texts end with a NUL; what does not fit is cut off.
struct TraceHeader {
    std::array<char, 8> magic{'v', 'k', 'G', 'A', 'T', 'E', '1', '\n'};
    std::uint32_t header_bytes = 4096;
    std::uint32_t record_bytes = sizeof(Record);
    std::uint32_t chunk_bytes = kChunkBytes;
    std::uint32_t process = 0;
    std::uint32_t parent = 0;
    std::atomic<std::uint32_t> incomplete{0};  // 1: the file could not be made larger
    std::uint64_t start_ns = 0;                // CLOCK_MONOTONIC
    std::uint64_t start_unix_ns = 0;
    std::array<char, 512> driver{};
    std::array<char, 1024> command{};  // words of the command line, separated by NUL
    std::array<char, 2512> calls{};    // symbols with hooks, in order, separated by NUL
};
static_assert(sizeof(TraceHeader) == 4096);

}  // namespace vramkit::gate
