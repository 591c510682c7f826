// What a pool can be made to do, one path each, for tests that let driver calls fail on the way.
#ifndef VRAMKIT_TESTS_NATIVE_POOL_PATHS_H
#define VRAMKIT_TESTS_NATIVE_POOL_PATHS_H

#include <thread>

#include "graphs.h"
#include "path_bench.h"

namespace paths {

using namespace bench;

inline constexpr std::uint64_t kSmall = 50 * 1024;   // in slabs
inline constexpr std::uint64_t kRange = 500 * 1024;  // thread caches keep it
inline constexpr std::uint64_t kLarge = 3 * kMiB;    // stream caches keep it

// Calls of the tests themselves, none of the engine's.
inline constexpr const char* kOwnCalls[] = {"cuMemsetD8Async",    "cuStreamCreateWithPriority",
                                            "cuStreamDestroy_v2", "cuStreamSynchronize",
                                            "cuLaunchKernel",     "cuStreamBeginCapture_v2",
                                            "cuStreamEndCapture", "cuGraphInstantiateWithFlags",
                                            "cuGraphLaunch",      "cuGraphDestroy",
                                            "cuGraphExecDestroy", "cuCtxCreate_v2",
                                            "cuCtxDestroy_v2"};

struct Path {
    const char* name;
    const char* call;  // without which it is not this path
    Config config;
    void (*prepare)(Bench&);
    void (*run)(Bench&);
};

inline Config with(void (*change)(Config&)) {
    Config config;
    change(config);
    return config;
}

inline void nothing(Bench&) {}

// Free blocks of several sizes, in thread and stream caches, of both streams; the work is done or
// not.
inline void fill(Bench& bench) {
    for (const StreamRef& stream : {bench.durable, bench.raw}) {
        bench.take(kSmall, stream, 6);
        bench.take(kRange, stream, 2);
        bench.take(kLarge, stream, 3);
    }
    bench.give();
}
inline void fill_and_wait(Bench& bench) {
    fill(bench);
    gpu::sim().advance(2 * kSecond);
}
inline void occupy(Bench& bench) {
    bench.card.occupy(bench.durable);
    for (const Bench::Held& block : bench.live) {
        bench.card.use(block.address, block.bytes, bench.durable);
    }
}
inline void fill_and_occupy(Bench& bench) {
    bench.take(kLarge, bench.durable, 2);
    occupy(bench);
    bench.give();
}
inline void occupy_holes(Bench& bench) {
    bench.take(kLarge, bench.durable, 4);
    occupy(bench);
    bench.give(false);
}
inline void fill_holes(Bench& bench) {
    bench.take(4 * kMiB, bench.durable, 8);
    bench.give(false);
    gpu::sim().advance(2 * kSecond);
}

inline void capture(Bench& bench) {
    StreamRef captured = bench.durable;
    REQUIRE(graphs::begin_capture(captured.handle, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) ==
            CUDA_SUCCESS);
    if (identify(bench.card.call, captured) == CUDA_SUCCESS && captured.capture != 0) {
        bench.take(kSmall, captured, 3);
        bench.take(kLarge, captured, 2);
        bench.give(false);
    }
    CUgraph graph = nullptr;
    if (graphs::end_capture(captured.handle, &graph) == CUDA_SUCCESS && graph != nullptr) {
        const CUgraphExec executable = graphs::instantiate(graph);
        CHECK_EQUAL(graphs::destroy(graph), CUDA_SUCCESS);
        CHECK_EQUAL(graphs::launch(executable, bench.raw.handle), CUDA_SUCCESS);
        bench.give();
        bench.pool->trim(false);
        CHECK_EQUAL(graphs::destroy(executable), CUDA_SUCCESS);
    }
    bench.give();
    gpu::sim().advance(kSecond);
    bench.pool->step();
    bench.pool->trim(true);
}

inline void end_streams(Bench& bench) {
    for (const StreamRef& stream : {bench.durable, bench.raw}) {
        bench.take(kSmall, stream, 3);
        bench.take(kLarge, stream);
        bench.give(false);
        bench.card.close(stream);
        bench.give();
    }
}

inline const Path kPaths[] = {
    {"growth of small blocks",
     "cuMemCreate",
     {},
     nothing,
     [](Bench& b) { b.take(kSmall, b.durable, 40); }},
    {"growth of large blocks",
     "cuMemCreate",
     {},
     nothing,
     [](Bench& b) { b.take(kLarge, b.raw, 6); }},
    {"growth until the card is full",
     "cuMemCreate",
     {},
     nothing,
     [](Bench& b) {
         b.take(kLarge, b.durable, 25);
         b.take(kRange, b.raw, 6);
         b.take(kSmall, b.raw, 60);
     }},
    {"growth in several pieces",
     "cuMemCreate",
     {},
     nothing,
     [](Bench& b) { b.take(30 * kMiB, b.durable); }},
    {"growth behind free memory of the stream",
     "cuMemMap",
     {},
     // The last of what is mapped is free, and nothing is mapped behind it.
     [](Bench& b) {
         b.take(kLarge, b.durable, 2);
         occupy(b);
         b.give(false);
     },
     [](Bench& b) {
         b.take(9 * kMiB, b.durable);
         b.pool->step();
     }},
    {"growth behind idle memory",
     "cuMemMap",
     {},
     [](Bench& b) {
         Failure why;
         CHECK(b.pool->preallocate(kLarge, 2, why));
     },
     [](Bench& b) { b.take(9 * kMiB, b.raw, 2); }},
    {"idle memory beside that of the stream", "cuEventQuery", with([](Config& c) {
         c.limit = 16 * kMiB;
         c.thread_cache_max_blocks = 0;
     }),
     [](Bench& b) {
         for (int i = 0; i < 2; ++i) {
             b.take(4 * kMiB, b.raw);
             b.take(4 * kMiB, b.durable);
         }
         b.give();
         gpu::sim().advance(2 * kSecond);
     },
     [](Bench& b) { b.take(15 * kMiB, b.raw); }},
    {"a slab on memory of the stream", "cuEventRecord", with([](Config& c) {
         c.limit = 2 * kMiB;
         c.thread_cache_max_blocks = 0;
     }),
     [](Bench& b) {
         b.take(2 * kMiB, b.durable);
         occupy(b);
         b.give();
     },
     [](Bench& b) {
         b.take(kSmall, b.durable, 3);
         b.take(kSmall, b.raw, 3);
     }},
    {"spill of a raw stream", "cuEventRecord", with([](Config& c) { c.cache_bytes = kSmall; }),
     nothing,
     [](Bench& b) {
         b.take(kSmall, b.raw, 8);
         b.give(true, true);
     }},
    {"spill of a stream of ours, and from its stream_cache", "cuEventRecord", with([](Config& c) {
         c.thread_cache_max_blocks = 2;
         c.global_cache_max_blocks = 2;
     }),
     nothing,
     [](Bench& b) {
         b.take(kSmall, b.durable, 12);
         b.give();
         gpu::sim().advance(kSecond);
         b.take(kSmall, b.durable, 12);
         b.give();
     }},
    {"blocks of another stream", "cuEventQuery",
     with([](Config& c) { c.thread_cache_max_blocks = 0; }), fill_and_wait,
     [](Bench& b) {
         b.take(kLarge, b.raw, 6);
         b.take(kSmall, b.raw, 12);
     }},
    {"a wait on the GPU", "cuStreamWaitEvent", with([](Config& c) {
         c.limit = 8 * kMiB;
         c.thread_cache_max_blocks = 0;
     }),
     fill_and_occupy, [](Bench& b) { b.take(kLarge, b.raw, 2); }},
    {"a wait on the host", "cuEventSynchronize", with([](Config& c) { c.limit = 8 * kMiB; }),
     fill_and_occupy, [](Bench& b) { b.take(7 * kMiB, b.raw); }},
    {"pieces of the stream moved", "cuMemMap", with([](Config& c) { c.limit = 32 * kMiB; }),
     fill_holes,
     [](Bench& b) {
         b.take(12 * kMiB, b.durable);
         b.take(kSmall, b.durable, 2);
     }},
    {"idle pieces moved", "cuMemMap", with([](Config& c) { c.limit = 32 * kMiB; }), fill_holes,
     [](Bench& b) {
         b.take(12 * kMiB, b.raw);
         b.take(kSmall, b.raw, 2);
     }},
    {"idle pieces, those of the stream and new ones",
     "cuMemMap",
     {},
     [](Bench& b) {
         b.take(4 * kMiB, b.durable, 4);
         b.take(4 * kMiB, b.raw, 4);
         b.give(false);
         gpu::sim().advance(2 * kSecond);
     },
     [](Bench& b) {
         b.take(30 * kMiB, b.raw);
         b.pool->step();
     }},
    {"pieces of the stream moved while they are in use", "cuMemMap",
     with([](Config& c) { c.limit = 16 * kMiB; }), occupy_holes,
     [](Bench& b) {
         b.take(7 * kMiB, b.durable);
         b.pool->step();
     }},
    {"trim",
     "cuMemUnmap",
     {},
     fill,
     [](Bench& b) {
         b.pool->trim(false);
         gpu::sim().advance(kSecond);
         b.pool->trim(false);
     }},
    {"release", "cuMemFree_v2", {}, fill, [](Bench& b) { b.pool->trim(true); }},
    {"release on a full card",
     "cuMemFreeHost",
     {},
     nothing,
     [](Bench& b) {
         b.take(kLarge, b.raw, 20);
         b.take(kPage, b.raw, 4);
         b.give();
         b.pool->trim(true);
     }},
    {"defragment",
     "cuMemMap",
     {},
     fill_holes,
     [](Bench& b) {
         Failure why;
         b.pool->defragment(why);
     }},
    {"steps with decay", "cuMemUnmap", with([](Config& c) {
         c.decay_ms = 100;
         c.defrag_interval_ms = 100;
         c.defrag_threshold = 0;
     }),
     [](Bench& b) {
         fill(b);
         fill_holes(b);
     },
     [](Bench& b) {
         for (int i = 0; i < 6; ++i) {
             b.take(kSmall, b.durable, 30);
             b.pool->step();
             gpu::sim().advance(kSecond / 10);
         }
         b.give();
         for (int i = 0; i < 4; ++i) {
             b.pool->step();
             gpu::sim().advance(kSecond / 10);
         }
     }},
    {"blocks that another stream uses too",
     "cuEventRecord",
     {},
     nothing,
     [](Bench& b) {
         b.take(kSmall, b.durable, 2);
         b.take(kLarge, b.raw, 2);
         b.finish();
         for (const Bench::Held& block : b.live) {
             Failure why;
             const StreamRef& user = block.stream.id == b.durable.id ? b.raw : b.durable;
             // Nobody may use what the pool was not told of.
             if (!b.pool->also_used_on(block.address, user, why)) continue;
             b.card.try_to_use(block.address, block.bytes, user);
         }
         b.give();
         b.take(kLarge, b.durable, 2);
         gpu::sim().advance(kSecond);
         b.pool->step();
         b.give();
     }},
    {"memory that is taken at once", "cuMemFree_v2", with([](Config& c) {
         c.nvtx = true;
         c.limit = 32 * kMiB;
     }),
     fill,
     [](Bench& b) {
         b.take(kSmall, b.raw, 12);
         b.take(kLarge, b.durable, 4);
         b.give(false);
         b.take(9 * kMiB, b.durable);
         b.give();
         b.pool->trim(true);
     }},
    {"streams that end", "cuEventRecord", {}, nothing, end_streams},
    {"a capture and its graph", "cuGraphRetainUserObject", {}, nothing, capture},
    {"large blocks straight from the driver", "cuMemFree_v2",
     with([](Config& c) { c.large = Large::direct; }),
     [](Bench& b) {
         b.take(kSmall, b.durable, 6);
         b.give();
     },
     [](Bench& b) {
         b.take(kLarge, b.durable, 3);
         b.finish();
         b.give(false);
         b.take(40 * kMiB, b.durable, 2);
         b.finish();
         b.give();
     }},
    {"preallocation",
     "cuMemCreate",
     {},
     nothing,
     [](Bench& b) {
         Failure why;
         b.pool->preallocate(kSmall, 64, why);
         b.pool->preallocate(kLarge, 4, why);
     }},
    {"the end of a thread",
     "cuCtxSetCurrent",
     {},
     nothing,
     [](Bench& b) {
         std::thread([&b] {
             b.take(kSmall, b.durable, 4);
             b.take(kLarge, b.raw, 2);
             b.give(false);
         }).join();
     }},
    {"a thread with another context",
     "cuCtxPushCurrent_v2",
     {},
     fill,
     [](Bench& b) {
         REQUIRE(b.card.call.cuCtxCreate_v2(&b.other, 0, 0) == CUDA_SUCCESS);
         b.take(kSmall, b.durable, 40);
         b.take(kLarge, b.raw, 4);
         b.give();
         b.pool->trim(false);
     }},
    {"the pool closes",
     "cuMemAddressFree",
     {},
     fill,
     [](Bench& b) {
         Failure why;
         CHECK(b.pool->close(why));
     }},
    {"the pool goes with blocks in use",
     "cuMemFree_v2",
     {},
     fill,
     [](Bench& b) {
         b.take(kLarge, b.durable, 2);
         b.take(kSmall, b.raw, 2);
         b.pool = nullptr;
         b.live.clear();
     }},
    {"another pool opens",
     "cuMemAddressReserve",
     {},
     nothing,
     [](Bench& b) {
         Failure why;
         Config config;
         config.background = false;
         b.second = Pool::open(simulated(), 0, b.card.context, config, why);
         CHECK(b.second != nullptr || why.kind == Failure::Kind::out_of_memory ||
               why.kind == Failure::Kind::driver);
     }},
};

}  // namespace paths

#endif
