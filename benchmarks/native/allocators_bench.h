// What the allocator workloads share: a lane (one stream as an allocator knows it), a row of
// results, and threads that run a workload side by side for a given time.
//
// An allocator has
//   std::uint64_t allocate(std::uint64_t bytes, const Lane& lane);              // 0: no memory
//   void deallocate(std::uint64_t address, std::uint64_t bytes, const Lane& lane);
// and may have
//   Takes takes() const;                                 // where it is not as_needed
// A Maker makes a new one: make(cap) -> std::unique_ptr<allocator>, cap 0 for none.
#pragma once

#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "objects.h"
#include "samples.h"

namespace bench {

// How an allocator comes by memory of the card. Ahead: a large part of it before the first block.
enum class Takes { as_needed, ahead, nothing };

struct Lane {
    CUstream handle = nullptr;
    std::uint64_t id = 0;
};

// Streams of one workload. Made before the allocator, so that they outlive it.
class Lanes {
  public:
    Lanes(Gpu& gpu, std::size_t count) {
        for (std::size_t i = 0; i < count; ++i) {
            streams_.emplace_back(gpu);
            unsigned long long id = 0;
            GPU_CALL(gpu, cuStreamGetId, streams_.back(), &id);
            lanes_.push_back({streams_.back(), id});
        }
    }
    const Lane& operator[](std::size_t index) const { return lanes_[index]; }
    std::size_t size() const { return lanes_.size(); }

  private:
    std::vector<Stream> streams_;
    std::vector<Lane> lanes_;
};

struct Row {
    std::string workload;
    std::string allocator;
    std::string unit;
    std::vector<double> values;  // one a repetition; empty where the outcome says it all
    std::vector<std::pair<std::string, double>> details;
    std::string outcome;  // in words, where a time alone does not say it
    std::string error;
};

struct Bench {
    Gpu& gpu;
    CUcontext context = nullptr;
    int repetitions = 5;
    double seconds = 0.15;    // of one repetition of a workload that can run for any time
    std::uint64_t cap = 0;    // of the card, for fragmentation
    std::uint64_t fill = 0;   // of that, before every second block is freed
    int settle_ms = 0;        // after a burst
    std::vector<Row> rows{};  // of the case that runs

    // Memory of the card in use, by whomever.
    std::uint64_t card_bytes() const {
        std::size_t free = 0;
        std::size_t total = 0;
        GPU_CALL(gpu, cuMemGetInfo_v2, &free, &total);
        return total - free;
    }
    void synchronize() const { GPU_CALL(gpu, cuCtxSynchronize); }
    // Leaves the processor and the card to whoever works in the background.
    void settle() const {
        if (gpu.simulated()) {
            gpu.pass(settle_ms * 1e6);
        } else {
            std::this_thread::sleep_for(std::chrono::milliseconds(settle_ms));
        }
    }
};

struct Case {
    Row row;  // with the names and the unit; `measure` gets a copy and adds its rows to the bench
    std::function<void(const Row&)> measure;

    std::string name() const { return row.allocator + "/" + row.workload; }
};
using Cases = std::vector<Case>;

// Time after which an idle pool gives memory back, in the burst case: shorter than anybody would
// set it, so that the case ends soon.
inline constexpr int kBurstDecayMs = 1000;

inline double steady_ns() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<double>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

// What an allocator answered, or Failure where it had nothing.
inline std::uint64_t must(std::uint64_t address) {
    if (address == 0) [[unlikely]]
        throw Failure("the allocator had no memory left");
    return address;
}

struct Block {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
};

// How long one thread was at it in one repetition, and how many pairs it made.
struct Tally {
    double ns = 0;
    double pairs = 0;
    double elapsed_ns = 0;  // where ns counts only a part of the time
};

// Runs `make(thread)` on each of the threads, then its result as worker(stop) -> Tally, all at
// once, for a warm-up and each repetition. After each of them, while all threads wait,
// `between(tallies)` runs on the calling thread. The tallies by repetition and thread. Throws
// Failure with the first thing that went wrong on any thread, after all have ended.
template <class Make, class Between>
std::vector<std::vector<Tally>> side_by_side(const Bench& bench, int threads, Make make,
                                             Between between) {
    std::barrier gate(threads + 1);
    std::atomic<bool> stop{false};
    std::vector<Tally> tallies(static_cast<std::size_t>(threads));
    std::vector<std::string> errors(static_cast<std::size_t>(threads) + 1);
    // An exception would leave the others at the gate.
    const auto guarded = [&](std::string& wrong, auto&& act) {
        if (!wrong.empty()) return;
        try {
            act();
        } catch (const std::exception& error) {
            wrong = error.what();
            stop.store(true);
        }
    };
    const auto life = [&](int thread) {
        const auto at = static_cast<std::size_t>(thread);
        std::optional<decltype(make(thread))> worker;
        guarded(errors[at], [&] {
            GPU_CALL(bench.gpu, cuCtxSetCurrent, bench.context);
            worker.emplace(make(thread));
        });
        for (int repetition = -1; repetition < bench.repetitions; ++repetition) {
            gate.arrive_and_wait();
            guarded(errors[at], [&] { tallies[at] = (*worker)(stop); });
            gate.arrive_and_wait();
        }
    };
    std::vector<std::vector<Tally>> result;
    {
        std::vector<std::jthread> running;
        for (int thread = 0; thread < threads; ++thread) running.emplace_back(life, thread);
        for (int repetition = -1; repetition < bench.repetitions; ++repetition) {
            gate.arrive_and_wait();
            std::this_thread::sleep_for(std::chrono::duration<double>(bench.seconds));
            stop.store(true);
            gate.arrive_and_wait();
            guarded(errors.back(), [&] { between(std::as_const(tallies)); });
            stop.store(false);
            if (repetition >= 0) result.push_back(tallies);
        }
    }
    for (const std::string& error : errors) {
        if (!error.empty()) throw Failure(error);
    }
    return result;
}

// Nanoseconds of one pair on the mean of all threads.
inline double ns_a_pair(const std::vector<Tally>& tallies) {
    Tally sum;
    for (const Tally& tally : tallies) {
        sum.ns += tally.ns;
        sum.pairs += tally.pairs;
    }
    return sum.pairs > 0 ? sum.ns / sum.pairs : 0;
}

}  // namespace bench
