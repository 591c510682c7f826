// Computes the hashes of chunks on the card.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/failure.h"
#include "swap/chunk.h"
#include "swap/mover.h"

namespace vramkit::swap {

// A batch is one set, one kernel a chunk and one small copy, then one wait: 12 GiB in 64 MiB chunks
// take 3.8 ms on an H200. Keeps 256 KiB on the card and as much pinned memory.
class Hasher {
  public:
    // `function`: vk_hash128. Its kernels run on the mover's stream out(), before later copies.
    static std::unique_ptr<Hasher> open(const DriverTable& call, CUfunction function, Mover& mover,
                                        Failure& why);
    ~Hasher();
    Hasher(const Hasher&) = delete;
    Hasher& operator=(const Hasher&) = delete;

    // The hashes of chunks that are on the card, in their order.
    bool hash(std::span<Chunk* const> chunks, std::vector<Hash>& hashes, Failure& why);

  private:
    static constexpr std::size_t kBatch = 256;  // chunks

    Hasher(const DriverTable& call, CUfunction function, Mover& mover)
        : call_(call), function_(function), mover_(mover) {}
    bool hash_batch(std::span<Chunk* const> chunks, std::vector<Hash>& hashes, Failure& why);
    bool issue(std::span<Chunk* const> chunks, Failure& why);

    const DriverTable& call_;
    const CUfunction function_;
    Mover& mover_;
    CUdeviceptr results_ = 0;
    Hash* read_ = nullptr;  // pinned
};

}  // namespace vramkit::swap
