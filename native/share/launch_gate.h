// The gate that the work of a program passes: open, or closed while its memory may be elsewhere.
//
// A thread says that it is inside, by a plain store to a word of its own, and then looks whether
// anything is the matter, by one load. Who closes the gate says so first, lets membarrier() order
// the memory of all threads, and then waits until nobody is inside: no call slips past a closed
// gate, and passing an open one needs no atomic instruction.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "share/in_flight.h"

namespace vramkit::share {

// Why a call may not simply go on.
enum Attention : std::uint32_t {
    kClosed = 1,        // memory may be elsewhere
    kNoMembarrier = 2,  // passing needs a fence: the system has no membarrier()
    kUnbacked = 4,      // one such unit for each time that memory without any of the card was made
};

// What a thread has at the gate. Never freed: another thread may be looking at it. Those of threads
// that ended are used again.
struct Passenger {
    constexpr explicit Passenger(std::uint32_t every) : launches_left(every), window(every) {}

    std::atomic<std::uint32_t> inside{0};      // driver calls in progress
    std::atomic<std::uint32_t> launches_left;  // until the next look at the work in flight
    std::atomic<std::uint32_t> window;         // launches from one look to the next
    std::atomic<std::uint64_t> launches{0};    // up to the last look
    InFlight in_flight;                        // of the thread alone
    std::atomic<bool> taken{true};
    Passenger* next = nullptr;
};

class LaunchGate {
  public:
    LaunchGate();
    LaunchGate(const LaunchGate&) = delete;
    LaunchGate& operator=(const LaunchGate&) = delete;

    // The calling thread's.
    static Passenger& mine() {
        Passenger* const known = mine_;
        return known != nullptr ? *known : make_mine();
    }
    // Who sees the gate open sees what was done while it was closed.
    static std::uint32_t attention() { return attention_.load(std::memory_order_acquire); }

    // Closes the gate, and waits until no thread is inside. False: some still were when the
    // patience was over, and the gate is open again.
    bool close(std::chrono::nanoseconds patience);
    void open();
    static bool is_closed() { return (attention() & kClosed) != 0; }
    void wait_until_open();
    // Memory was allocated that has none of the card yet.
    static void note_unbacked();
    // How often that was since all was backed. backed(count): what was so many times is on the
    // card; calls pass if nothing came since.
    static std::uint32_t unbacked() { return attention() / kUnbacked; }
    static void backed(std::uint32_t count);

    // Launches of a thread between two looks at the work in flight.
    static void set_window(std::uint32_t launches) { window_ = launches; }
    static std::uint32_t window() { return window_; }
    // Of all threads. Counted without an atomic addition: each thread has a count of its own.
    static std::uint64_t launches();

    // In a forked child, which has the calling thread alone: everything passes.
    static void open_in_child();

  private:
    static Passenger& make_mine();
    static void at_thread_end(void* passenger);
    static bool nobody_inside();

    static inline constinit std::atomic<std::uint32_t> attention_{0};
    static inline constinit std::uint32_t window_ = 256;
    [[gnu::tls_model("initial-exec")]] static inline constinit thread_local Passenger* mine_ =
        nullptr;

    std::mutex lock_;
    std::condition_variable opened_;
};

}  // namespace vramkit::share
