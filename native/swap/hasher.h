// Computes the hashes of chunks on the card.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/failure.h"
#include "swap/chunk.h"

namespace vramkit::swap {

// A batch of chunks at a time, on a stream of its own: beside the copies of the chunks before. A
// batch is one set, one kernel a chunk and one small copy, then one wait. Keeps 16 KiB on the card
// and as much pinned memory. A trial kernel hashed 12 GiB in 3.8 ms on an H200; this one has not
// been timed.
class Hasher {
  public:
    static constexpr std::size_t kBatch = 16;  // chunks

    // `function`: vk_hash128.
    static std::unique_ptr<Hasher> open(const DriverTable& call, CUfunction function, Failure& why);
    ~Hasher();
    Hasher(const Hasher&) = delete;
    Hasher& operator=(const Hasher&) = delete;

    // Starts to hash up to kBatch chunks, which are on the card and stay there until collect().
    void start(std::span<Chunk* const> chunks);
    // Waits for the batch; its hashes, in order. False: there are none, since a call failed. Then
    // the kernels may still run, see settle().
    bool collect(std::vector<Hash>& hashes, Failure& why);
    // Waits for kernels whose wait failed; costs nothing if there are none.
    bool settle(Failure& why);

    std::uint64_t waits() const { return waits_; }

  private:
    Hasher(const DriverTable& call, CUfunction function) : call_(call), function_(function) {}
    bool issue(std::span<Chunk* const> chunks, Failure& why);

    const DriverTable& call_;
    const CUfunction function_;
    CUstream stream_ = nullptr;
    CUdeviceptr results_ = 0;
    Hash* read_ = nullptr;  // pinned
    std::size_t started_ = 0;
    bool issued_ = false;  // all calls of the batch
    Failure failure_;      // else
    bool running_ = false;
    std::uint64_t waits_ = 0;
};

}  // namespace vramkit::swap
