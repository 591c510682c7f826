// A pool on a fresh simulated card, for tests of the engine.
#ifndef VRAMKIT_TESTS_NATIVE_POOL_BENCH_H
#define VRAMKIT_TESTS_NATIVE_POOL_BENCH_H

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "base/stream_ref.h"
#include "gpu.h"
#include "pool/pool.h"
#include "pool/threads/threads.h"

namespace bench {

using namespace vramkit;
using namespace vramkit::pool;

inline constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
inline constexpr double kSecond = 1e9;
inline constexpr const char* kChecked = "checker=on,data=off,capacity=1GiB";

inline std::shared_ptr<Driver> simulated() {
    static const std::shared_ptr<Driver> driver = gpu::open();
    return driver;
}

// A figure of a flat JSON object; 0 where it is not named.
inline std::uint64_t figure(const std::string& json, const std::string& name) {
    const std::size_t at = json.find('"' + name + "\":");
    return at == std::string::npos ? 0 : std::stoull(json.substr(at + name.size() + 3));
}

// A fresh simulated card with its primary context current.
class Card {
  public:
    explicit Card(const std::string& settings = kChecked) : call(simulated()->call()) {
        gpu::reset(settings);
        context = gpu::use_device();
        spin_ = gpu::kernel("vk_spin");
    }

    // Of both kinds in turn: one that the pool is told of when it ends, and one it is not.
    StreamRef stream() const {
        StreamRef made;
        made.handle = gpu::make_stream();
        CHECK_EQUAL(identify(call, made), CUDA_SUCCESS);
        made.durable = made.id % 2 == 0;
        return made;
    }
    StreamRef stream(bool durable) const {
        StreamRef made = stream();
        made.durable = durable;
        return made;
    }
    void destroy(const StreamRef& stream) const {
        CHECK_EQUAL(call.cuStreamDestroy_v2(stream.handle), CUDA_SUCCESS);
    }
    void close(const StreamRef& stream) const {
        announce_stream_closing(call, stream.id, stream.handle);
        destroy(stream);
    }

    // Keeps the stream busy for a simulated second.
    void occupy(const StreamRef& stream) const {
        CHECK_EQUAL(gpu::spin(spin_, static_cast<std::uint64_t>(kSecond), 1, stream.handle),
                    CUDA_SUCCESS);
    }
    void use(std::uint64_t address, std::uint64_t bytes, const StreamRef& stream) const {
        CHECK(try_to_use(address, bytes, stream));
    }
    // False: the driver refused, and nothing is used.
    bool try_to_use(std::uint64_t address, std::uint64_t bytes, const StreamRef& stream) const {
        return call.cuMemsetD8Async(address, 1, bytes, stream.handle) == CUDA_SUCCESS;
    }
    // What `second` issues from now on comes after what `first` was given so far.
    void order(const StreamRef& first, const StreamRef& second) const {
        CUevent event = nullptr;
        CHECK_EQUAL(call.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
        CHECK_EQUAL(call.cuEventRecord(event, first.handle), CUDA_SUCCESS);
        CHECK_EQUAL(call.cuStreamWaitEvent(second.handle, event, 0), CUDA_SUCCESS);
        CHECK_EQUAL(call.cuEventDestroy_v2(event), CUDA_SUCCESS);
    }

    std::uint64_t calls(const char* symbol) const {
        return figure(gpu::text_of(gpu::sim().call_counts), symbol);
    }
    std::string reports() const { return gpu::text_of(gpu::sim().reports); }

    const DriverTable& call;
    CUcontext context = nullptr;

  private:
    CUfunction spin_ = nullptr;
};

// Work of a stream that does not end before it is let go.
class Gate {
  public:
    Gate(const Card& card, const StreamRef& stream) {
        CHECK_EQUAL(card.call.cuLaunchHostFunc(stream.handle, &wait, this), CUDA_SUCCESS);
    }
    void open() { opened_.set_value(); }

  private:
    static void wait(void* gate) { static_cast<Gate*>(gate)->opened_.get_future().wait(); }

    std::promise<void> opened_;
};

// Until the driver is called, by one that runs or, where it does otherwise, has ended.
template <class Result>
void wait_for_call(const Card& card, const char* symbol, const std::future<Result>& running) {
    while (card.calls(symbol) == 0 &&
           running.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
        std::this_thread::yield();
    }
}

// The checker's silence. Programs with a broken rule in them are recognised by this line.
inline void check_order(const Card& card) {
    const std::string reports = card.reports();
    if (reports != "[]") std::printf("reported: %s\n", reports.c_str());
    CHECK(reports == "[]");
}

// Nothing of the driver's is left when the pool is gone.
inline void check_nothing_left() {
    const std::string left = gpu::text_of(gpu::sim().live_objects);
    for (const char* kind :
         {"events", "device", "pinned", "reservations", "handles", "mappings", "user_objects"}) {
        if (figure(left, kind) != 0) CHECK_EQUAL(left, std::string("none of ") + kind);
    }
}

// A pool that has no more than this, and whose frees all spill. 0: no limit.
inline Config limited(std::uint64_t mebibytes) {
    Config config;
    config.limit = mebibytes * kMiB;
    config.thread_cache_max_blocks = 0;
    return config;
}

// Without its thread: most tests count calls.
inline std::shared_ptr<Pool> open_pool(const Card& card, Config config = {},
                                       bool background = false) {
    config.background = background;
    Failure why;
    auto pool = Pool::open(simulated(), 0, card.context, config, why);
    REQUIRE(pool != nullptr);
    return pool;
}

inline std::uint64_t must_malloc(Pool& pool, std::uint64_t bytes, const StreamRef& stream) {
    Failure why;
    const std::uint64_t address = pool.malloc(bytes, stream, true, why);
    if (address == 0) CHECK_EQUAL(why.message + std::string(why.call), "a block");
    return address;
}

inline void must_free(Pool& pool, std::uint64_t address, std::optional<StreamRef> stream = {}) {
    Failure why;
    if (!pool.free(address, {}, stream, why)) CHECK_EQUAL(why.message, "freed");
}

}  // namespace bench

#endif
