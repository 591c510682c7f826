#include "share/launch_gate.h"

#include <linux/membarrier.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <thread>

#include "share/log.h"

namespace vramkit::share {
namespace {

// Of threads for which host memory did not suffice; they then may wait for each other.
constinit Passenger shared(256);
constinit std::atomic<Passenger*> passengers{&shared};
pthread_key_t thread_end;

long membarrier(int command) { return syscall(SYS_membarrier, command, 0, 0); }

// Of a thread that has ended.
Passenger* take_left() {
    for (Passenger* each = passengers.load(std::memory_order_acquire); each != nullptr;
         each = each->next) {
        bool taken = false;
        if (each->taken.compare_exchange_strong(taken, true, std::memory_order_acq_rel)) {
            return each;
        }
    }
    return nullptr;
}

}  // namespace

LaunchGate::LaunchGate() {
    pthread_key_create(&thread_end, &at_thread_end);
    if (membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) != 0) {
        log("this system has no membarrier(): each launch costs a fence");
        attention_.fetch_or(kNoMembarrier);
    }
}

Passenger& LaunchGate::make_mine() {
    Passenger* made = take_left();
    if (made == nullptr) {
        made = new (std::nothrow) Passenger(window_);
        if (made == nullptr) return shared;
        made->next = passengers.load(std::memory_order_relaxed);
        while (!passengers.compare_exchange_weak(made->next, made, std::memory_order_acq_rel)) {
        }
    }
    mine_ = made;
    pthread_setspecific(thread_end, made);
    return *made;
}

// Destructors of the program that run later may still call: then the thread takes another one.
void LaunchGate::at_thread_end(void* passenger) {
    mine_ = nullptr;
    static_cast<Passenger*>(passenger)->taken.store(false, std::memory_order_release);
}

bool LaunchGate::nobody_inside() {
    for (const Passenger* each = passengers.load(std::memory_order_acquire); each != nullptr;
         each = each->next) {
        if (each->inside.load(std::memory_order_acquire) != 0) return false;
    }
    return true;
}

bool LaunchGate::close(std::chrono::nanoseconds patience) {
    const std::lock_guard guard(lock_);
    attention_.fetch_or(kClosed, std::memory_order_seq_cst);
    if (membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) != 0) {
        std::atomic_thread_fence(std::memory_order_seq_cst);
    }
    // Who is inside is in a driver call, which mostly takes microseconds and seldom more than the
    // rest of a synchronous copy.
    const auto limit = std::chrono::steady_clock::now() + patience;
    auto pause = std::chrono::microseconds(1);
    while (!nobody_inside()) {
        if (std::chrono::steady_clock::now() >= limit) {
            attention_.fetch_and(~std::uint32_t{kClosed}, std::memory_order_release);
            opened_.notify_all();
            return false;
        }
        std::this_thread::sleep_for(pause);
        if (pause < std::chrono::milliseconds(1)) pause *= 2;
    }
    return true;
}

void LaunchGate::open() {
    const std::lock_guard guard(lock_);
    attention_.fetch_and(~std::uint32_t{kClosed}, std::memory_order_release);
    opened_.notify_all();
}

void LaunchGate::wait_until_open() {
    std::unique_lock guard(lock_);
    opened_.wait(guard, [this] { return !is_closed(); });
}

std::uint64_t LaunchGate::launches() {
    std::uint64_t sum = 0;
    for (const Passenger* each = passengers.load(std::memory_order_acquire); each != nullptr;
         each = each->next) {
        const std::uint32_t left = each->launches_left.load(std::memory_order_relaxed);
        const std::uint32_t window = each->window.load(std::memory_order_relaxed);
        sum += each->launches.load(std::memory_order_relaxed) + window - std::min(left, window);
    }
    return sum;
}

void LaunchGate::note_unbacked() {
    const std::uint32_t before = attention_.fetch_add(kUnbacked, std::memory_order_seq_cst);
    if (before + kUnbacked < kUnbacked) attention_.fetch_add(kUnbacked);  // 0 would say: none
}

void LaunchGate::backed(std::uint32_t count) {
    std::uint32_t now = attention_.load(std::memory_order_relaxed);
    while (now / kUnbacked == count &&
           !attention_.compare_exchange_weak(now, now % kUnbacked, std::memory_order_seq_cst)) {
    }
}

void LaunchGate::open_in_child() {
    attention_.store(0, std::memory_order_relaxed);
    for (Passenger* each = passengers.load(std::memory_order_relaxed); each != nullptr;
         each = each->next) {
        if (each == mine_) continue;
        each->inside.store(0, std::memory_order_relaxed);
        each->taken.store(false, std::memory_order_relaxed);
    }
}

}  // namespace vramkit::share
