// Two programs that add two arrays into a third, on one card that holds one of them, and the ways
// in which their memory can change places. Both live in one process, so that it repeats exactly on
// the virtual clock of the simulated GPU. Not for a real card: more managed memory than it has free
// can hang it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "base/failure.h"
#include "driver/driver.h"
#include "swap/engine.h"

namespace vramkit::lab {

// How the memory of the program whose turn it is comes to the card.
enum class Mode : std::uint8_t {
    paged,            // managed memory, by page faults of its first launch
    prefetch,         // managed memory, prefetched as the study wrote it: the winner's, no more
    prefetch_out_in,  // the loser's is prefetched to the host first, and then the winner's in
    prefetch_both,    // the same, both at once
    swap_out_in,      // native/swap: out, and then in
    swap,             // native/swap: both at once, by credits
};

inline constexpr std::array<std::string_view, 6> kModeNames = {
    "paged", "prefetch", "prefetch_out_in", "prefetch_both", "swap_out_in", "swap"};

std::optional<Mode> mode_of(std::string_view name);

// Bytes of each of the three arrays of a program, and what all three take of the card.
std::uint64_t array_bytes(std::uint64_t program);
std::uint64_t footprint(std::uint64_t program);

// A simulated card whose context is current, and the kernel that adds.
struct AddingCard {
    const Driver& driver;
    CUcontext context = nullptr;
    int device = 0;
    CUfunction add = nullptr;
    unsigned blocks = 0;
};

class TwoPrograms {
  public:
    // Both have run, and the second one is on the card, which has room for one program of so many
    // bytes and `more`. Null and the reason on failure. The driver must outlive it.
    static std::unique_ptr<TwoPrograms> open(const AddingCard& card, Mode mode,
                                             std::uint64_t program, std::uint64_t more,
                                             Failure& why);
    ~TwoPrograms();
    TwoPrograms(const TwoPrograms&) = delete;
    TwoPrograms& operator=(const TwoPrograms&) = delete;

    // Makes it the turn of a program; the other one is idle. By paging that is nothing: its first
    // launch pays.
    bool switch_to(int winner, Failure& why);
    // So many launches of a program, and a wait for them.
    bool run(int which, int launches, Failure& why);
    // All memory of a program goes to the host.
    bool send_home(int which, Failure& why);
    // Of the calling thread's host clock.
    double seconds() const { return now_() * 1e-9; }

  private:
    struct Program {
        std::array<CUdeviceptr, 3> arrays{};
        std::unique_ptr<swap::Engine> engine;  // null: its memory is managed
    };
    // Bytes of the card that neither engine has.
    class Room final : public swap::Credits {
      public:
        explicit Room(std::uint64_t bytes) : bytes_(bytes) {}
        bool take(std::uint64_t bytes) override;
        void give(std::uint64_t bytes) override;

        swap::Engine* incoming = nullptr;  // comes in with each chunk that the other one frees
        Failure why;                       // of that
        bool failed = false;

      private:
        std::uint64_t bytes_;
    };

    TwoPrograms(const AddingCard& card, Mode mode, std::uint64_t program, std::uint64_t more);
    bool start(Failure& why);
    bool start_managed(Failure& why);
    bool start_engines(Failure& why);
    bool swaps() const { return mode_ == Mode::swap || mode_ == Mode::swap_out_in; }
    bool prefetch(int which, int place, CUstream stream, Failure& why);
    bool synchronise(CUstream stream, Failure& why);
    bool swap(swap::Engine& loser, swap::Engine& winner, Failure& why);
    Program& program(int which) { return programs_[static_cast<std::size_t>(which)]; }

    const AddingCard card_;
    const DriverTable& call_;
    double (*const now_)();
    const Mode mode_;
    const std::uint64_t array_;
    Room room_;
    std::array<Program, 2> programs_;
    CUstream compute_ = nullptr, out_ = nullptr, in_ = nullptr;
};

}  // namespace vramkit::lab
