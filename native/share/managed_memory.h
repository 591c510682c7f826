// Memory that the driver pages: modes prefetch and paged.
//
// Allocations are managed memory, which the driver brings to whoever touches it: whatever fails
// here, the program finds its bytes, and only waits longer. So a prefetch that is refused on the
// way in is none, and on the way out gives no credits.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "share/memory.h"
#include "swap/host_room.h"

namespace vramkit::share {

class ManagedMemory final : public Memory {
  public:
    // Which ways it is prefetched. Otherwise it is only counted: credits change hands, and pages
    // follow by faults.
    struct Prefetching {
        bool out = false, in = false;
        std::uint64_t host_limit = 0;  // bytes that may be on the host; 0: none
        std::function<swap::HostRoom()> room = [] { return swap::host_room(); };
    };
    // In this context, which must be current. Table and context must outlive it.
    static std::unique_ptr<Memory> open(const DriverTable& call, CUcontext context, CUdevice device,
                                        const Prefetching& prefetching, Failure& why);
    ~ManagedMemory() override;

    std::uint64_t allocate(std::uint64_t bytes, Failure& why) override;
    void set_limit(std::uint64_t bytes) override { limit_.store(bytes, std::memory_order_relaxed); }
    bool free(std::uint64_t address, std::uint64_t& freed, Failure& why) override;
    std::optional<swap::Block> find(std::uint64_t address) const override;
    // The youngest first.
    bool bring(swap::Credits& credits, std::uint64_t& missing, Failure& why) override;
    bool finish(Failure& why) override;
    // The oldest first, in whole pages of 2 MiB. In steps: credits of one are given while the next
    // one is on its way.
    bool move_out(std::uint64_t bytes, swap::Credits& credits, Failure& why) override;
    // The driver makes host memory itself.
    bool prepare_host(std::uint64_t, Failure&) override { return true; }

    std::uint64_t bytes_to_come() const override;
    swap::Usage usage() const override;
    swap::Traffic traffic() const override;
    std::uint64_t card_bytes() const override;

  private:
    // Leaves from its begin and comes back from its end, so that two numbers say where it is:
    // never on the card before `untouched`, on the host from there to `away`, then on the card.
    struct Allocation {
        std::uint64_t bytes = 0;    // that the program asked for
        std::uint64_t counted = 0;  // that credits are for
        std::uint64_t away = 0;
        std::uint64_t untouched = 0;
        std::uint64_t age = 0;
    };
    using Allocations = std::map<std::uint64_t, Allocation>;  // by address
    struct Piece {
        Allocations::value_type* allocation;
        std::uint64_t from, until;
    };
    // What leaves together.
    struct Step {
        std::vector<Piece> pieces;
        CUevent event = nullptr;  // null: the stream is waited for
    };

    ManagedMemory(const DriverTable& call, CUcontext context, CUdevice device,
                  const Prefetching& prefetching)
        : call_(call), context_(context), device_(device), prefetching_(prefetching) {}
    bool make(Failure& why);
    // All of these with the lock, and in the context.
    bool prefetch(const Piece& piece, CUdevice to, Failure& why);
    std::vector<Allocations::value_type*> by_age();
    // How many of these bytes the host has room for, and why not for all.
    std::uint64_t room_on_host(std::uint64_t wanted, Failure& refusal) const;
    std::vector<Step> choose(std::uint64_t bytes);
    bool start(Step& step, CUevent event, Failure& why);
    bool land(const Step& step, swap::Credits& credits, Failure& why);
    // False: there were no credits for any of it.
    bool bring_some(Allocations::value_type& allocation, swap::Credits& credits);
    // The only way in which an allocation's state changes.
    void set(Allocation& allocation, std::uint64_t away, std::uint64_t untouched);
    bool wait_for_arrivals(Failure& why);

    const DriverTable& call_;
    const CUcontext context_;
    const CUdevice device_;
    const Prefetching prefetching_;
    CUstream stream_ = nullptr;
    std::array<CUevent, 2> events_{};

    std::atomic<std::uint64_t> limit_{~std::uint64_t{0}};
    mutable std::mutex lock_;
    Allocations allocations_;
    std::uint64_t ages_ = 0;
    bool arriving_ = false;  // prefetches to the card that nobody has waited for
    bool refused_ = false;   // a prefetch to the card, and the log says so

    std::atomic<std::uint64_t> untouched_{0}, on_host_{0}, on_card_{0};
    std::atomic<std::uint64_t> traffic_out_{0}, traffic_in_{0};
};

}  // namespace vramkit::share
