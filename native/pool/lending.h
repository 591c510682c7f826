// Blocks that are used on other streams than the one they are freed on: freed, they are held until
// those streams have got past that point. Nobody waits for it, neither host nor stream.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "pool/shelf.h"
#include "pool/types.h"

namespace vramkit::pool {

// With the pool's lock, in its context.
class Lending {
  public:
    explicit Lending(Events& events) : events_(events) {}
    ~Lending();
    Lending(const Lending&) = delete;
    Lending& operator=(const Lending&) = delete;

    void note(std::uint64_t address, const StreamRef& stream);
    // A use that is awaited: an event, or the last mark of a stream that is no more. Neither: the
    // driver had no event, or the stream was captured; it is recorded when that is over.
    struct Awaited {
        StreamRef stream;
        CUevent event = nullptr;
        std::shared_ptr<Shelf> ended;
    };
    // The uses of a block that is freed on a stream; it is no longer noted.
    std::vector<Awaited> take(std::uint64_t address, const StreamRef& freed_on);
    void record(Awaited& use);
    void hold(BlockRef block, std::uint32_t number, std::vector<Awaited> uses);
    // visit(block, number of the stream it was freed on) for each that is held no longer.
    template <class Visit>
    void release(bool wait, Visit visit) {
        std::erase_if(held_, [&](Held& held) {
            std::erase_if(held.uses, [&](Awaited& use) { return is_over(use, wait); });
            if (!held.uses.empty()) return false;
            bytes_ -= held.block.bytes();
            visit(held.block, held.number);
            return true;
        });
    }
    // All work of the card is known to be done.
    void pass_all();
    std::uint64_t bytes() const { return bytes_; }
    template <class Visit>
    void each(Visit visit) const {
        for (const Held& held : held_) visit(held.block);
    }
    // The driver no longer knows the events.
    void forget();

  private:
    struct Held {
        BlockRef block;
        std::uint32_t number = 0;
        std::vector<Awaited> uses;
    };
    bool is_over(Awaited& use, bool wait);

    Events& events_;
    std::unordered_map<std::uint64_t, std::vector<StreamRef>> noted_;  // by address
    std::vector<Held> held_;
    std::uint64_t bytes_ = 0;
};

}  // namespace vramkit::pool
