// A pool whose driver calls may fail, and the blocks that are live by the test's own count.
#ifndef VRAMKIT_TESTS_NATIVE_PATH_BENCH_H
#define VRAMKIT_TESTS_NATIVE_PATH_BENCH_H

#include <memory>
#include <vector>

#include "pool_bench.h"

namespace paths {

using namespace bench;

struct Bench {
    explicit Bench(const Config& settings)
        : card("checker=on,data=off,capacity=64MiB"),
          pool(open_pool(card, settings)),
          durable(card.stream(true)),
          raw(card.stream(false)) {}

    struct Held {
        std::uint64_t address, bytes;
        StreamRef stream;
    };

    void take(std::uint64_t bytes, const StreamRef& stream, int count = 1) {
        for (; count > 0; --count) {
            Failure why;
            const std::uint64_t address = pool->malloc(bytes, stream, true, why);
            if (address == 0) {
                CHECK(why.kind == Failure::Kind::out_of_memory ||
                      why.kind == Failure::Kind::driver || why.kind == Failure::Kind::bad_value);
                continue;
            }
            card.try_to_use(address, bytes, stream);
            live.push_back({address, bytes, stream});
        }
    }
    // Every second one, or all; given: with their stream. What the driver refuses to take stays
    // live.
    void give(bool all = true, bool given = false) {
        std::vector<Held> kept;
        for (std::size_t i = 0; i < live.size(); ++i) {
            Failure why;
            const auto stream = given ? std::optional(live[i].stream) : std::nullopt;
            if ((!all && i % 2 == 0) || !pool->free(live[i].address, live[i].bytes, stream, why)) {
                kept.push_back(live[i]);
            }
        }
        live = kept;
    }
    // cuMemFree waits for all work, though it promises nothing: the checker wants it said.
    void finish() const {
        for (const StreamRef& stream : {durable, raw}) {
            CHECK_EQUAL(card.call.cuStreamSynchronize(stream.handle), CUDA_SUCCESS);
        }
    }
    std::uint64_t live_bytes() const {
        std::uint64_t sum = 0;
        for (const Held& block : live) sum += block.bytes;
        return sum;
    }

    Card card;
    std::shared_ptr<Pool> pool, second;
    StreamRef durable, raw;
    std::vector<Held> live;
    CUcontext other = nullptr;  // made current by the path
};

}  // namespace paths

#endif
