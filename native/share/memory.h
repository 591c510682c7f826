// The memory of the program on one card, in whichever way it leaves the card and comes back.
#pragma once

#include <cstdint>
#include <optional>

#include "base/failure.h"
#include "swap/credits.h"
#include "swap/engine.h"

namespace vramkit::share {

// From any thread. The rules are those of swap/engine.h: an address is for ever; nothing moves but
// in bring(), finish() and move_out(), which run while no work of the program is in flight; the
// card's memory is taken and given by credits.
class Memory {
  public:
    virtual ~Memory() = default;

    // 0 and the reason on failure. What is new has no memory of the card.
    virtual std::uint64_t allocate(std::uint64_t bytes, Failure& why) = 0;
    // From now on an allocation after which there were more bytes than that, counted as usage()
    // counts them, is refused.
    virtual void set_limit(std::uint64_t bytes) = 0;
    // No work of the program may be using it. `freed` gets the bytes that it had on the card.
    virtual bool free(std::uint64_t address, std::uint64_t& freed, Failure& why) = 0;
    // The allocation around an address.
    virtual std::optional<swap::Block> find(std::uint64_t address) const = 0;

    // Brings what is not on the card, as far as credits allow. `missing`: what they do not suffice
    // for. The program may use it after finish().
    virtual bool bring(swap::Credits& credits, std::uint64_t& missing, Failure& why) = 0;
    virtual bool finish(Failure& why) = 0;
    // So many bytes of the card become free, or all that there are; their credits are given when
    // they are.
    virtual bool move_out(std::uint64_t bytes, swap::Credits& credits, Failure& why) = 0;
    // Makes host memory ready for so many bytes that may have to move.
    virtual bool prepare_host(std::uint64_t bytes, Failure& why) = 0;

    // These wait for nobody.
    virtual std::uint64_t bytes_to_come() const = 0;
    virtual swap::Usage usage() const = 0;
    virtual swap::Traffic traffic() const = 0;
    // What credits are held for.
    virtual std::uint64_t card_bytes() const = 0;

    // Which moves handles of the program too; null: they are the driver's own.
    virtual swap::Engine* engine() { return nullptr; }
};

}  // namespace vramkit::share
