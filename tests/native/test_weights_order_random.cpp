// Threads that stream weights in random order, also where driver calls fail: the checker watches
// the order, and each group is read whole.
#include <algorithm>
#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "weights_bench.h"

using namespace weights_bench;

namespace {

// One of several threads that use a model: in the order of a schedule for a while, then here and
// there.
class Worker {
  public:
    Worker(const Model& model, const std::vector<std::vector<GroupIndex>>& orders, unsigned seed)
        : model_(model), orders_(orders), random_(seed) {}

    void run(int rounds) {
        CHECK_EQUAL(model_.card.call.cuCtxSetCurrent(model_.card.context), CUDA_SUCCESS);
        const Reader one(model_), two(model_);
        for (int round = 0; round < rounds; ++round) {
            const std::size_t number = random_() % orders_.size();
            if (one_in(3)) model_.streamer->follow(static_cast<std::uint32_t>(number));
            for (const GroupIndex group : orders_[number]) {
                if (one_in(8)) break;
                use(group, one_in(2) ? one : two);
                if (one_in(3)) act();
            }
            const GroupIndex jump = any();
            // By two streams at once; or by one, twice.
            if (model_.enter(jump, one.stream)) {
                use(jump, one_in(2) ? one : two);
                use(any(), two);
                one.read(jump);
                leave(jump, one.stream);
            }
            unpin();
        }
    }

  private:
    bool one_in(unsigned n) { return random_() % n == 0; }
    GroupIndex any() { return static_cast<GroupIndex>(random_() % model_.count()); }

    void use(GroupIndex group, const Reader& reader) {
        if (!model_.enter(group, reader.stream)) return;
        reader.read(group);
        leave(group, reader.stream);
    }
    // One that fails has not left; the second attempt may only meet another fault.
    void leave(GroupIndex group, const StreamRef& stream) const {
        int attempts = 0;
        while (!model_.leave(group, stream) && ++attempts < 10) CHECK(model_.faults);
        CHECK(attempts < 10);
    }
    void act() {
        const GroupIndex group = any();
        switch (random_() % 4) {
            case 0:
            case 1:
                model_.prefetch(group, one_in(2));
                return;
            case 2:
                model_.evict(group);
                return;
            default:
                unpin();
                if (!model_.prefetch(group, one_in(2))) return;
                model_.streamer->pin(group, true);
                pinned_ = group;
                pins_ = true;
        }
    }
    void unpin() {
        if (pins_) model_.streamer->pin(pinned_, false);
        pins_ = false;
    }

    const Model& model_;
    const std::vector<std::vector<GroupIndex>>& orders_;
    std::mt19937 random_;
    GroupIndex pinned_ = 0;
    bool pins_ = false;
};

void run_random(Model& model, unsigned seed, unsigned threads, int rounds) {
    std::mt19937 random(seed);
    std::vector<std::vector<GroupIndex>> orders(3);
    for (auto& order : orders) {
        for (GroupIndex group = 0; group < model.count(); ++group) order.push_back(group);
    }
    std::reverse(orders[1].begin(), orders[1].end());
    std::shuffle(orders[2].begin(), orders[2].end(), random);
    orders[2].push_back(orders[2].front());
    for (const auto& order : orders) {
        Schedule made = model.schedule(order);
        made.next = static_cast<std::uint32_t>(random() % orders.size());
        model.streamer->add(made);
    }
    std::vector<std::thread> running;
    for (unsigned number = 0; number < threads; ++number) {
        running.emplace_back(
            [&, number] { Worker(model, orders, 1000 * seed + number).run(rounds); });
    }
    for (std::thread& thread : running) thread.join();
}

}  // namespace

TEST(random_orders_are_kept) {
    for (int seed = 0; seed < testing::rounds(20, 200); ++seed) {
        const Card card;
        {
            const std::uint64_t chunk = seed % 2 == 0 ? 256 * kKiB : 4 * kMiB;
            const auto kind = static_cast<Groups>(seed / 2 % 3);
            Model model(card, kUnequal, 400, chunk, kind);
            run_random(model, static_cast<unsigned>(seed), 1 + seed % 3, testing::rounds(6, 20));
            CHECK(model.streamer->counters().copies > 10);
        }
        check_order(card);
        check_nothing_left();
    }
}

TEST(random_orders_are_kept_where_driver_calls_fail) {
    for (int seed = 0; seed < testing::rounds(20, 200); ++seed) {
        const Card card;
        {
            Model model(card, kUnequal, 400, 256 * kKiB, static_cast<Groups>(seed % 3));
            model.faults = true;
            for (const char* call : {"cuMemcpyHtoDAsync", "cuMemcpyAsync", "cuEventRecord",
                                     "cuStreamWaitEvent", "cuLaunchKernel"}) {
                for (std::uint64_t nth = 5; nth < 400; nth += 11 + static_cast<unsigned>(seed)) {
                    CHECK_EQUAL(gpu::sim().inject(call, nth, 1, CUDA_ERROR_UNKNOWN, 0), 0);
                }
            }
            run_random(model, static_cast<unsigned>(seed), 1 + seed % 3, testing::rounds(6, 20));
            gpu::sim().clear_faults();
            CHECK(model.faults_met > 0);
            CHECK(model.streamer->counters().failed > 0);
        }
        check_order(card);
        check_nothing_left();
    }
}
