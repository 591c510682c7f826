// A lock biased towards one owner: the thread of a cache takes it many million times a second,
// other threads (guests) seldom.
//
// The owner sets `inside` by a plain store, then reads `knocked`. A guest sets `knocked`, has the
// kernel execute a barrier in every running thread of the process, then reads `inside`. Whichever
// way the two interleave, one sees the other:
//
//   the owner read before the barrier   its store came before that: the guest sees it and waits
//   the owner read after the barrier    it sees the knock, leaves again and waits
//
// So guests cost the owner nothing, and themselves some microseconds. If the kernel has no such
// barrier (membarrier, Linux 4.14), the owner's store is an exchange, which is a barrier itself.
#pragma once

#include <atomic>
#include <thread>

namespace vramkit::pool {

class BiasedLock {
  public:
    // Whether the kernel has membarrier. Asked once in a process.
    static bool kernel_has_barrier();

    explicit BiasedLock(bool barrier = kernel_has_barrier()) : barrier_(barrier) {}
    BiasedLock(const BiasedLock&) = delete;
    BiasedLock& operator=(const BiasedLock&) = delete;

    // For the owner. Waits while a guest has the lock.
    void enter() {
        while (!try_to_enter()) [[unlikely]]
            spin_while(knocked_);
    }
    void leave() { inside_.store(false, std::memory_order_release); }

    // For any thread, also the owner while it does not hold the lock. In three steps, so that a
    // guest that takes several locks needs only one barrier. One guest at a time.
    void knock() {
        while (knocked_.exchange(true, std::memory_order_seq_cst)) spin_while(knocked_);
    }
    static void put_barrier();
    void wait_for_owner() {
        while (inside_.load(std::memory_order_seq_cst)) spin_while(inside_);
    }
    void let_go() { knocked_.store(false, std::memory_order_release); }

    // The three steps in one.
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
    // The holder only moves blocks or adds up counters, which takes nanoseconds. It makes no driver
    // call, except to tell the checker of a simulated GPU.
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
