// Bounds how much work a thread has in flight, so that a closed gate is quiet soon. By events, one
// for many launches: the card is never waited for as a whole, and a capture is left alone.
#pragma once

#include <array>
#include <cstdint>

#include "driver/table.h"

namespace vramkit::share {

class InFlight {
  public:
    // In the context of the calling thread, behind its last launch. Waits for the launches of the
    // look before the last if they still run. Returns after how many launches the next look is due:
    // fewer if they took long, more if they did not.
    std::uint32_t look(const DriverTable& call, CUstream stream, std::uint32_t launches);

    std::uint64_t waits() const { return waits_; }

  private:
    struct Mark {
        CUevent event = nullptr;
        unsigned long long context = 0;  // ids are never used again, as handles are
        bool recorded = false;
    };
    std::uint32_t look_relaxed(const DriverTable& call, CUstream stream, std::uint32_t launches);
    bool record(const DriverTable& call, Mark& mark, CUstream stream);

    std::array<Mark, 2> marks_;
    std::size_t turn_ = 0;
    std::uint64_t waits_ = 0;
};

}  // namespace vramkit::share
