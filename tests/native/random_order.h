// Threads and streams in random order: shared and own streams, blocks that move to other streams
// and to other threads, streams that end before their blocks are freed, shortage.
#ifndef VRAMKIT_TESTS_NATIVE_RANDOM_ORDER_H
#define VRAMKIT_TESTS_NATIVE_RANDOM_ORDER_H

#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "pool_bench.h"

namespace random_order {

using namespace bench;

// A block and the stream of its last use.
struct Held {
    std::uint64_t address = 0, bytes = 0;
    StreamRef stream;
    bool moved = false;   // it was allocated on another one
    bool lasting = true;  // the stream is one of those that all threads share
};

inline void free(Pool& pool, const Held& block) {
    must_free(pool, block.address, block.moved ? std::optional(block.stream) : std::nullopt);
}

struct Shared {
    const Card& card;
    Pool& pool;
    std::vector<StreamRef> streams;
    std::mutex lock;
    std::vector<Held> mailbox;  // allocated by one thread, freed by another
};

class Worker {
  public:
    Worker(Shared& shared, unsigned seed) : all_(shared), random_(seed) {}

    void run(int rounds) {
        CHECK_EQUAL(all_.card.call.cuCtxSetCurrent(all_.card.context), CUDA_SUCCESS);
        for (int round = 0; round < rounds; ++round) {
            own_ = all_.card.stream(one_in(2));
            for (int step = 0; step < 60; ++step) act();
            // Some of its blocks are freed only later, and by other threads.
            all_.card.close(own_);
            if (one_in(2)) all_.pool.trim(false);
            if (one_in(4)) all_.pool.step();
        }
        for (const Held& block : live_) free(all_.pool, block);
    }

  private:
    bool one_in(unsigned n) { return random_() % n == 0; }

    void act() {
        allocate();
        if (!live_.empty() && one_in(3)) move(live_[random_() % live_.size()]);
        if (!live_.empty() && one_in(4)) exchange();
        while (live_.size() > 12 || (one_in(2) && !live_.empty())) {
            std::swap(live_[random_() % live_.size()], live_.back());
            free(all_.pool, live_.back());
            live_.pop_back();
        }
    }
    void allocate() {
        Held block;
        block.lasting = !one_in(4);
        block.stream = block.lasting ? all_.streams[random_() % all_.streams.size()] : own_;
        block.bytes = one_in(4) ? 2 * kMiB + random_() % (4 * kMiB) : 1 + random_() % 300000;
        Failure why;
        block.address = all_.pool.malloc(block.bytes, block.stream, one_in(2), why);
        if (block.address == 0) {
            CHECK(why.kind == Failure::Kind::out_of_memory);
            return;
        }
        all_.card.use(block.address, block.bytes, block.stream);
        live_.push_back(block);
    }
    // On to another stream, in order.
    void move(Held& block) {
        if (!block.lasting) return;
        const StreamRef& to = all_.streams[random_() % all_.streams.size()];
        all_.card.order(block.stream, to);
        all_.card.use(block.address, block.bytes, to);
        block.moved = true;
        block.stream = to;
    }
    void exchange() {
        const std::lock_guard guard(all_.lock);
        all_.mailbox.push_back(live_.back());
        live_.pop_back();
        if (all_.mailbox.size() > 6) {
            live_.push_back(all_.mailbox.front());
            all_.mailbox.erase(all_.mailbox.begin());
        }
    }
    Shared& all_;
    std::mt19937 random_;
    StreamRef own_;
    std::vector<Held> live_;
};

// All blocks are free at the end.
inline void run(const Card& card, Pool& pool, unsigned threads, int rounds) {
    Shared shared{card, pool, {}, {}, {}};
    for (int i = 0; i < 5; ++i) shared.streams.push_back(card.stream());
    std::vector<std::thread> running;
    for (unsigned seed = 0; seed < threads; ++seed) {
        running.emplace_back([&shared, seed, rounds] { Worker(shared, seed).run(rounds); });
    }
    for (std::thread& thread : running) thread.join();
    for (const Held& block : shared.mailbox) free(pool, block);
}

}  // namespace random_order

#endif
