// Plain resources on the simulated GPU, with the checker on: threads with streams that come and go.
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "resources/arena.h"
#include "resources/direct.h"
#include "resources/driver_pool.h"
#include "resources/fixed_pool.h"
#include "testing.h"

using namespace vramkit;
using namespace vramkit::resources;

namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

std::shared_ptr<Driver> simulated() {
    static const auto driver =
        std::get<std::shared_ptr<Driver>>(Driver::open_path(VRAMKIT_SIM_PATH));
    return driver;
}

std::string control_text(const char* control) {
    const auto get = reinterpret_cast<size_t (*)(char*, size_t)>(simulated()->symbol(control));
    std::string result(get(nullptr, 0), '\0');
    get(result.data(), result.size() + 1);
    return result;
}

// A fresh simulated card; its primary context.
CUcontext fresh_card() {
    const auto reset =
        reinterpret_cast<int (*)(const char*, char*, size_t)>(simulated()->symbol("simReset"));
    char error[256];
    REQUIRE(reset("checker=on,data=off,capacity=1GiB", error, sizeof error) == 0);
    const DriverTable& call = simulated()->call();
    CUcontext context = nullptr;
    REQUIRE(call.cuInit(0) == CUDA_SUCCESS);
    REQUIRE(call.cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
    REQUIRE(call.cuCtxSetCurrent(context) == CUDA_SUCCESS);
    return context;
}

StreamRef make_stream() {
    const DriverTable& call = simulated()->call();
    StreamRef made;
    unsigned long long id = 0;
    CHECK_EQUAL(call.cuStreamCreateWithPriority(&made.handle, CU_STREAM_NON_BLOCKING, 0),
                CUDA_SUCCESS);
    CHECK_EQUAL(call.cuStreamGetId(made.handle, &id), CUDA_SUCCESS);
    made.id = id;
    made.durable = true;
    return made;
}

// Blocks on their way from one thread to another.
class Handover {
  public:
    void put(std::uint64_t address) {
        const std::lock_guard guard(lock_);
        addresses_.push_back(address);
    }
    // Held by who frees a block of anybody, or closes a stream: one may not name what the other
    // destroys.
    std::mutex closing;

    std::uint64_t take() {
        const std::lock_guard guard(lock_);
        if (addresses_.empty()) return 0;
        const std::uint64_t address = addresses_.back();
        addresses_.pop_back();
        return address;
    }

  private:
    std::mutex lock_;
    std::vector<std::uint64_t> addresses_;
};

void must_free(PlainResource& resource, std::uint64_t address) {
    Failure why;
    const bool freed = resource.free(address, std::nullopt, std::nullopt, why);
    CHECK_EQUAL(why.message, std::string());
    CHECK(freed);
}

// Each thread allocates on streams of its own, frees what others allocated, and closes its streams
// while blocks of them are live.
void work(PlainResource& resource, CUcontext context, Handover& handover, unsigned seed) {
    const DriverTable& call = simulated()->call();
    CHECK_EQUAL(call.cuCtxSetCurrent(context), CUDA_SUCCESS);
    std::mt19937 random(seed);
    for (int round = 0; round < 8; ++round) {
        const StreamRef stream = make_stream();
        for (int step = 0; step < 25; ++step) {
            const std::uint64_t bytes =
                random() % 4 == 0 ? 1 + random() % (3 * kMiB) : 1 + random() % 50'000;
            Failure why;
            const std::uint64_t address = resource.malloc(bytes, stream, why);
            if (address == 0) {
                CHECK(why.kind == Failure::Kind::out_of_memory);
            } else {
                CHECK_EQUAL(call.cuMemsetD8Async(address, 1, bytes, stream.handle), CUDA_SUCCESS);
                handover.put(address);
            }
            if (random() % 3 != 0) {
                const std::lock_guard alone(handover.closing);
                if (const std::uint64_t taken = handover.take(); taken != 0) {
                    must_free(resource, taken);
                }
            }
        }
        const std::lock_guard alone(handover.closing);
        vramkit::announce_stream_closing(call, stream.id, stream.handle);
        CHECK_EQUAL(call.cuStreamDestroy_v2(stream.handle), CUDA_SUCCESS);
    }
}

void run_threads(CUcontext context, const std::shared_ptr<PlainResource>& resource) {
    REQUIRE(resource != nullptr);
    Handover handover;
    std::vector<std::thread> threads;
    for (unsigned seed = 0; seed < 4; ++seed) {
        threads.emplace_back([&, seed] { work(*resource, context, handover, seed); });
    }
    for (std::thread& thread : threads) thread.join();
    while (const std::uint64_t taken = handover.take()) must_free(*resource, taken);
    CHECK_EQUAL(resource->live_blocks(), std::uint64_t{0});
    Failure why;
    CHECK(resource->close(why));
    CHECK_EQUAL(control_text("simReports"), std::string("[]"));
}

}  // namespace

TEST(threads_on_direct) {
    const CUcontext context = fresh_card();
    run_threads(context, std::make_shared<Direct>(simulated(), context));
}

TEST(threads_on_the_drivers_pool) {
    const CUcontext context = fresh_card();
    Failure why;
    run_threads(context, DriverPool::open(simulated(), 0, context, {}, why));
}

TEST(threads_on_a_fixed_pool) {
    const CUcontext context = fresh_card();
    Failure why;
    run_threads(context, FixedPool::open(simulated(), context, 24 * kMiB, why));
}

TEST(threads_on_an_arena) {
    const CUcontext context = fresh_card();
    Failure why;
    run_threads(context, Arena::open(simulated(), context, 32 * kMiB, why));
}

TEST(a_resource_that_is_dropped_with_blocks_live_gives_all_back) {
    const CUcontext context = fresh_card();
    Failure why;
    const StreamRef stream = make_stream();
    for (const std::shared_ptr<PlainResource>& resource :
         {std::shared_ptr<PlainResource>(std::make_shared<Direct>(simulated(), context)),
          std::shared_ptr<PlainResource>(DriverPool::open(simulated(), 0, context, {}, why)),
          std::shared_ptr<PlainResource>(FixedPool::open(simulated(), context, 8 * kMiB, why)),
          std::shared_ptr<PlainResource>(Arena::open(simulated(), context, 8 * kMiB, why))}) {
        CHECK(resource->malloc(1000, stream, why) != 0);
        CHECK(!resource->close(why));
        resource->end();
        CHECK_EQUAL(resource->live_blocks(), std::uint64_t{0});
        CHECK_EQUAL(resource->malloc(1000, stream, why), std::uint64_t{0});
    }
    CHECK_EQUAL(simulated()->call().cuStreamDestroy_v2(stream.handle), CUDA_SUCCESS);
    size_t free = 0, total = 0;
    CHECK_EQUAL(simulated()->call().cuMemGetInfo_v2(&free, &total), CUDA_SUCCESS);
    CHECK_EQUAL(free, total);
}
