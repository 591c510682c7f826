// The gate's recorder, without the gate: threads that record at the same time.
#include <cerrno>
#include <fstream>
#include <thread>
#include <vector>

#include "gate/recording.h"
#include "gpu.h"

namespace {

namespace gate = vramkit::gate;
using gate::Kind;
using gate::Record;

const gate::CallId kAllocate{gate::Hook::cuMemAlloc_v2, false};
const gate::CallId kLaunch{gate::Hook::cuLaunchKernel, true};

// Recording starts once in a process: all tests write into one file.
const std::filesystem::path& folder() {
    static gpu::Folder& made = *new gpu::Folder;
    static const bool started = [] {
        ::setenv("VRAMKIT_GATE_TRACE", made.path.c_str(), 1);
        gate::start_recording("a driver");
        gate::start_recording("another");
        return true;
    }();
    static_cast<void>(started);
    return made.path;
}

// What a thread with this mark has recorded.
std::vector<std::pair<Kind, std::uint64_t>> of_mark(std::uint64_t mark) {
    std::vector<std::pair<Kind, std::uint64_t>> found;
    for (const auto& entry : std::filesystem::directory_iterator(folder())) {
        std::ifstream file(entry.path(), std::ios::binary);
        std::string bytes(std::istreambuf_iterator<char>(file), {});
        for (std::size_t chunk = sizeof(gate::TraceHeader);
             chunk + gate::kChunkBytes <= bytes.size(); chunk += gate::kChunkBytes) {
            const auto* records = reinterpret_cast<const Record*>(bytes.data() + chunk);
            for (std::size_t index = 0; index < gate::kChunkRecords; ++index) {
                const Record& record = records[index];
                const auto kind = static_cast<Kind>(record.kind.load());
                if (kind == Kind::none) break;
                if (record.context == mark) found.emplace_back(kind, record.count);
            }
        }
    }
    return found;
}

// Of files of the trace, in this process.
std::size_t mapped_bytes() {
    std::ifstream maps("/proc/self/maps");
    std::size_t bytes = 0;
    for (std::string line; std::getline(maps, line);) {
        unsigned long start = 0;
        unsigned long end = 0;
        if (line.find(folder().string()) == std::string::npos) continue;
        if (std::sscanf(line.c_str(), "%lx-%lx", &start, &end) == 2) bytes += end - start;
    }
    return bytes;
}

void allocate(std::uint64_t mark) {
    gate::record({.kind = Kind::allocation, .call = kAllocate, .object = 4096, .context = mark});
}

void launch(std::uint64_t mark, std::uint64_t stream) {
    gate::record_repeated({.kind = Kind::launch,
                           .call = kLaunch,
                           .stream = reinterpret_cast<CUstream>(stream),
                           .context = mark});
}

TEST(threads_record_at_the_same_time_and_lose_nothing) {
    folder();
    REQUIRE(gate::is_recording());
    constexpr int kThreads = 8;
    constexpr int kEach = 3000;                // more than two chunks
    for (int round = 0; round < 2; ++round) {  // the second uses what the first left of its chunks
        std::vector<std::thread> threads;
        for (int thread = 0; thread < kThreads; ++thread) {
            threads.emplace_back([=] {
                for (int turn = 0; turn < kEach; ++turn) {
                    allocate(100 + thread);
                    launch(100 + thread, 16);
                }
            });
        }
        for (std::thread& thread : threads) thread.join();
    }
    for (int thread = 0; thread < kThreads; ++thread) {
        CHECK_EQUAL(of_mark(100 + thread).size(), std::size_t{2 * 2 * kEach});
    }
    // Of some hundred chunks only those with room are still in memory.
    CHECK(mapped_bytes() <= sizeof(gate::TraceHeader) + 2 * kThreads * gate::kChunkBytes);
}

TEST(launches_on_a_few_streams_are_one_record_each) {
    folder();
    std::thread([] {
        allocate(200);
        for (int turn = 0; turn < 999; ++turn) launch(200, 16 + turn % 3);
        allocate(200);
        launch(200, 16);
    }).join();
    const auto found = of_mark(200);
    REQUIRE(found.size() == 6);
    for (int stream = 0; stream < 3; ++stream) {
        CHECK(found[1 + stream] == std::pair(Kind::launch, std::uint64_t{333}));
    }
    CHECK(found[5] == std::pair(Kind::launch, std::uint64_t{1}));
}

TEST(recording_keeps_errno) {
    folder();
    std::thread([] {
        errno = ENOTTY;
        allocate(300);  // maps a chunk
        CHECK_EQUAL(errno, ENOTTY);
    }).join();
}

}  // namespace
