// Who has a cache: its own thread many million times a second, and seldom another one.
//
// The owner says by a plain store that it is in, and then looks whether a guest knocks. A guest
// knocks, has the kernel put a barrier into every running thread of the process, and then looks
// whether the owner is in. Whichever way the two meet, one sees the other:
//
//   the owner looked before the barrier   its store came before the look: the guest sees it, waits
//   the owner looked after the barrier    it sees the knock, goes out again, waits
//
// So the owner pays nothing for guests, and guests some microseconds. Where the kernel knows no
// such barrier (membarrier, Linux 4.14), the owner's store is an exchange, which is one.
#pragma once

#include <atomic>
#include <thread>

namespace vramkit::pool {

class BiasedLock {
  public:
    // Whether the kernel puts barriers into other threads. Asked once in a process.
    static bool kernel_has_barrier();

    explicit BiasedLock(bool barrier = kernel_has_barrier()) : barrier_(barrier) {}
    BiasedLock(const BiasedLock&) = delete;
    BiasedLock& operator=(const BiasedLock&) = delete;

    // For the owner, as soon as no guest is in.
    void enter() {
        while (!try_to_enter()) [[unlikely]]
            spin_while(knocked_);
    }
    void leave() { inside_.store(false, std::memory_order_release); }

    // For any thread, the owner included, when that is outside: in three steps, so that who visits
    // several needs one barrier. Only one guest at a time.
    void knock() {
        while (knocked_.exchange(true, std::memory_order_seq_cst)) spin_while(knocked_);
    }
    static void put_barrier();
    void wait_for_owner() {
        while (inside_.load(std::memory_order_seq_cst)) spin_while(inside_);
    }
    void let_go() { knocked_.store(false, std::memory_order_release); }

    // All at once.
    void visit() {
        knock();
        put_barrier();
        wait_for_owner();
    }

  private:
    bool try_to_enter() {
        if (barrier_) [[likely]] {
            inside_.store(true, std::memory_order_relaxed);
            std::atomic_signal_fence(std::memory_order_seq_cst);
        } else {
            inside_.exchange(true, std::memory_order_seq_cst);
        }
        if (!knocked_.load(std::memory_order_seq_cst)) [[likely]]
            return true;
        leave();
        return false;
    }
    // Whoever is in moves blocks or adds up, a matter of nanoseconds: nobody makes a driver call
    // there, though the checker of a simulated GPU is told.
    static void spin_while(const std::atomic<bool>& taken) {
        for (int tries = 0; taken.load(std::memory_order_relaxed); ++tries) {
            if (tries < 64) {
                __builtin_ia32_pause();
            } else {
                std::this_thread::yield();
            }
        }
    }

    std::atomic<bool> inside_{false};
    std::atomic<bool> knocked_{false};
    const bool barrier_;
};

}  // namespace vramkit::pool
