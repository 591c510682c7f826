// Copies chunks between the card and the host: one stream each way, and the waits for them.
//
// Waits are for events of its own, which let the thread sleep. Where an event fails it waits for
// its own stream instead. It never waits for work of the program.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/failure.h"
#include "swap/chunk.h"

namespace vramkit::swap {

class Mover {
  public:
    // Copies out that run at once: while one chunk is unmapped, the next is being copied.
    static constexpr std::size_t kWindow = 2;

    static std::unique_ptr<Mover> open(const DriverTable& call, Failure& why);
    ~Mover();
    Mover(const Mover&) = delete;
    Mover& operator=(const Mover&) = delete;

    // To its host piece. At most kWindow copies may not have been waited for.
    bool copy_out(const Chunk& chunk, Failure& why);
    // Waits for the oldest copy out. False: it may still run, see settle().
    bool wait_out(Failure& why);
    // From its host piece.
    bool copy_in(const Chunk& chunk, Failure& why);
    // Zeros on the card, in turn with the copies in.
    bool zero(const Chunk& chunk, Failure& why);
    // Waits for all copies in, and zeros.
    bool wait_in(Failure& why);
    // Waits for all copies out.
    bool abandon(Failure& why);
    // Waits for copies out whose wait failed; costs nothing if there are none.
    bool settle(Failure& why);

    std::uint64_t waits() const { return waits_; }

  private:
    explicit Mover(const DriverTable& call) : call_(call) {}
    bool wait_for_out_stream(Failure& why);
    bool wait(CUevent event, bool recorded, CUstream stream, Failure& why);

    const DriverTable& call_;
    CUstream out_ = nullptr, in_ = nullptr;
    struct Copy {
        CUevent event = nullptr;
        bool recorded = false;
    };
    std::array<Copy, kWindow> copies_{};  // out, in turn
    std::uint64_t issued_ = 0, awaited_ = 0;
    CUevent arrived_ = nullptr;
    bool unsettled_ = false;
    std::uint64_t waits_ = 0;
};

}  // namespace vramkit::swap
