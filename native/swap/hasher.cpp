// Launches the kernel for each chunk, and reads the results.
#include "swap/hasher.h"

#include <algorithm>

#include "base/rules.h"

namespace vramkit::swap {
namespace {

// Enough threads to keep the memory of a large card busy; more would only add to the sums more
// often.
constexpr unsigned kBlocks = 1056, kThreads = 256;

}  // namespace

std::unique_ptr<Hasher> Hasher::open(const DriverTable& call, CUfunction function, Mover& mover,
                                     Failure& why) {
    std::unique_ptr<Hasher> made(new Hasher(call, function, mover));
    constexpr std::uint64_t bytes = kBatch * kHashResultBytes;
    void* host = nullptr;
    if (failed(call.cuMemAlloc_v2(&made->results_, bytes), "cuMemAlloc", why) ||
        failed(call.cuMemHostAlloc(&host, bytes, VRAMKIT_MEMHOSTALLOC_PORTABLE), "cuMemHostAlloc",
               why)) {
        return nullptr;
    }
    made->read_ = static_cast<Hash*>(host);
    return made;
}

Hasher::~Hasher() {
    Failure ignored;
    mover_.wait_for_out_stream(ignored);
    if (results_ != 0) call_.cuMemFree_v2(results_);
    if (read_ != nullptr) call_.cuMemFreeHost(read_);
}

bool Hasher::hash(std::span<Chunk* const> chunks, std::vector<Hash>& hashes, Failure& why) {
    hashes.clear();
    while (!chunks.empty()) {
        const std::size_t count = std::min(chunks.size(), kBatch);
        if (!hash_batch(chunks.first(count), hashes, why)) return false;
        chunks = chunks.subspan(count);
    }
    return true;
}

bool Hasher::hash_batch(std::span<Chunk* const> chunks, std::vector<Hash>& hashes, Failure& why) {
    const bool issued = issue(chunks, why);
    // Also if a call failed: the kernels before it read chunks that may be unmapped next.
    Failure waiting;
    if (!is_broken(Rule::hashed_chunk_stays_until_kernel_is_done) &&
        !mover_.wait_for_out_stream(waiting)) {
        if (issued) why = waiting;
        return false;
    }
    if (!issued) return false;
    for (std::size_t number = 0; number < chunks.size(); ++number) {
        hashes.push_back(total({read_ + number * kHashSlots, kHashSlots}));
    }
    return true;
}

bool Hasher::issue(std::span<Chunk* const> chunks, Failure& why) {
    const CUstream stream = mover_.out();
    const std::uint64_t bytes = chunks.size() * kHashResultBytes;
    if (failed(call_.cuMemsetD8Async(results_, 0, bytes, stream), "cuMemsetD8Async", why)) {
        return false;
    }
    for (std::size_t number = 0; number < chunks.size(); ++number) {
        CUdeviceptr source = chunks[number]->address;
        std::uint64_t words = chunks[number]->bytes / sizeof(std::uint64_t);
        CUdeviceptr result = results_ + number * kHashResultBytes;
        void* parameters[] = {&source, &words, &result};
        if (failed(call_.cuLaunchKernel(function_, kBlocks, 1, 1, kThreads, 1, 1, 0, stream,
                                        parameters, nullptr),
                   "cuLaunchKernel", why)) {
            return false;
        }
    }
    return !failed(call_.cuMemcpyDtoHAsync_v2(read_, results_, bytes, stream), "cuMemcpyDtoHAsync",
                   why);
}

}  // namespace vramkit::swap
