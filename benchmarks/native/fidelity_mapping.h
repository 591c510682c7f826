// Many pieces mapped in a row, as a pool does when it moves free memory or grows, on an idle card
// or beside a kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "fidelity_memory.h"

namespace bench::mapping {

inline constexpr std::size_t kMovedPieces = 64;
inline constexpr std::size_t kMovedPiece = 4 * MiB;
inline constexpr std::size_t kGrownPieces = 16;
inline constexpr std::size_t kGrownPiece = 64 * MiB;
// Several times what the calls beside it take.
inline constexpr std::uint64_t kKernelNs = 20'000'000;

class Piece {
  public:
    Piece(Gpu& gpu, std::size_t bytes)
        : gpu_(&gpu), handle_(memory::create(gpu, bytes)), bytes_(bytes) {}
    Piece(Piece&& other) noexcept
        : gpu_(other.gpu_), handle_(std::exchange(other.handle_, 0)), bytes_(other.bytes_) {}
    Piece& operator=(Piece&&) = delete;
    ~Piece() {
        if (handle_ != 0) gpu_->note(gpu_->call().cuMemRelease(handle_), "cuMemRelease");
    }
    CUmemGenericAllocationHandle handle() const { return handle_; }
    std::size_t bytes() const { return bytes_; }

  private:
    Gpu* gpu_;
    CUmemGenericAllocationHandle handle_;
    std::size_t bytes_;
};

// Pieces side by side from the start of a range on; unmapped in the destructor.
class Mapping {
  public:
    Mapping(Gpu& gpu, const memory::AddressRange& range) : gpu_(gpu), begin_(range) {}
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;
    ~Mapping() {
        if (bytes_ > 0) gpu_.note(gpu_.call().cuMemUnmap(begin_, bytes_), "cuMemUnmap");
    }
    void add(const Piece& piece) {
        GPU_CALL(gpu_, cuMemMap, begin_ + bytes_, piece.bytes(), 0, piece.handle(), 0);
        bytes_ += piece.bytes();
    }
    // One call for all pieces, as the pool does it; it costs as much as one for each.
    void give_access() { memory::set_access(gpu_, begin_, bytes_); }

  private:
    Gpu& gpu_;
    CUdeviceptr begin_;
    std::size_t bytes_ = 0;
};

enum class Card { idle, busy };

// Host time of `calls` in microseconds. The host does not sleep before them: the first calls after
// a pause cost several times as much.
template <Card card, class Calls>
double host_time(Gpu& gpu, const Stream& stream, Calls&& calls) {
    if constexpr (card == Card::busy) gpu.spin(kKernelNs, 1, 32, stream);
    gpu.pass(200'000);
    const double start = gpu.now();
    calls();
    const double time = gpu.now() - start;
    if constexpr (card == Card::busy) {
        if (gpu.call().cuStreamQuery(stream) != CUDA_ERROR_NOT_READY) {
            throw Failure("the kernel of 20 ms ended before the calls that should run beside it");
        }
        stream.synchronize();
    }
    return time / 1e3;
}

template <Card card>
void move(Gpu& gpu, Samples& samples) {
    constexpr std::size_t bytes = kMovedPieces * kMovedPiece;
    const Stream stream(gpu);
    const memory::AddressRange before(gpu, bytes);
    const memory::AddressRange after(gpu, bytes);
    std::vector<Piece> pieces;
    pieces.reserve(kMovedPieces);
    Mapping first(gpu, before);
    for (std::size_t i = 0; i < kMovedPieces; ++i) {
        first.add(pieces.emplace_back(gpu, kMovedPiece));
    }
    first.give_access();
    samples.repeat([&] {
        Mapping second(gpu, after);
        return host_time<card>(gpu, stream, [&] {
            for (const Piece& piece : pieces) second.add(piece);
            second.give_access();
        });
    });
}

inline void grow_beside_kernel(Gpu& gpu, Samples& samples) {
    const Stream stream(gpu);
    const memory::AddressRange range(gpu, kGrownPieces * kGrownPiece);
    samples.repeat([&] {
        std::vector<Piece> pieces;
        pieces.reserve(kGrownPieces);
        Mapping mapping(gpu, range);
        return host_time<Card::busy>(gpu, stream, [&] {
            for (std::size_t i = 0; i < kGrownPieces; ++i) {
                mapping.add(pieces.emplace_back(gpu, kGrownPiece));
            }
            mapping.give_access();
        });
    });
}

}  // namespace bench::mapping
