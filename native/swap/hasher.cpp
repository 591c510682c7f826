// Launches the kernel for each chunk, and reads the results.
#include "swap/hasher.h"

#include "base/rules.h"

namespace vramkit::swap {
namespace {

// Enough threads to keep the memory of a large card busy; more would only add to the sums more
// often.
constexpr unsigned kBlocks = 1056, kThreads = 256;

}  // namespace

std::unique_ptr<Hasher> Hasher::open(const DriverTable& call, CUfunction function, Failure& why) {
    std::unique_ptr<Hasher> made(new Hasher(call, function));
    constexpr std::uint64_t bytes = kBatch * kHashResultBytes;
    void* host = nullptr;
    if (failed(call.cuStreamCreateWithPriority(&made->stream_, CU_STREAM_NON_BLOCKING, 0),
               "cuStreamCreateWithPriority", why) ||
        failed(call.cuMemAlloc_v2(&made->results_, bytes), "cuMemAlloc", why) ||
        failed(call.cuMemHostAlloc(&host, bytes, VRAMKIT_MEMHOSTALLOC_PORTABLE), "cuMemHostAlloc",
               why)) {
        return nullptr;
    }
    made->read_ = static_cast<Hash*>(host);
    return made;
}

Hasher::~Hasher() {
    if (stream_ != nullptr) {
        call_.cuStreamSynchronize(stream_);
        call_.cuStreamDestroy_v2(stream_);
    }
    if (results_ != 0) call_.cuMemFree_v2(results_);
    if (read_ != nullptr) call_.cuMemFreeHost(read_);
}

void Hasher::start(std::span<Chunk* const> chunks) {
    started_ = chunks.size();
    running_ = true;
    issued_ = issue(chunks, failure_);
}

bool Hasher::collect(std::vector<Hash>& hashes, Failure& why) {
    hashes.clear();
    // Also if a call failed: kernels before it read chunks that may be unmapped next.
    if (!is_broken(Rule::hashed_chunk_stays_until_kernel_is_done) && !settle(why)) return false;
    if (!issued_) {
        why = failure_;
        return false;
    }
    for (std::size_t number = 0; number < started_; ++number) {
        hashes.push_back(total({read_ + number * kHashSlots, kHashSlots}));
    }
    return true;
}

bool Hasher::settle(Failure& why) {
    if (!running_) return true;
    ++waits_;
    running_ = failed(call_.cuStreamSynchronize(stream_), "cuStreamSynchronize", why);
    return !running_;
}

bool Hasher::issue(std::span<Chunk* const> chunks, Failure& why) {
    const std::uint64_t bytes = chunks.size() * kHashResultBytes;
    if (failed(call_.cuMemsetD8Async(results_, 0, bytes, stream_), "cuMemsetD8Async", why)) {
        return false;
    }
    for (std::size_t number = 0; number < chunks.size(); ++number) {
        CUdeviceptr source = chunks[number]->address;
        std::uint64_t words = chunks[number]->bytes / sizeof(std::uint64_t);
        CUdeviceptr result = results_ + number * kHashResultBytes;
        void* parameters[] = {&source, &words, &result};
        if (failed(call_.cuLaunchKernel(function_, kBlocks, 1, 1, kThreads, 1, 1, 0, stream_,
                                        parameters, nullptr),
                   "cuLaunchKernel", why)) {
            return false;
        }
    }
    return !failed(call_.cuMemcpyDtoHAsync_v2(read_, results_, bytes, stream_), "cuMemcpyDtoHAsync",
                   why);
}

}  // namespace vramkit::swap
