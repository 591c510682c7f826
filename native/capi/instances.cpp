// The registry of process-wide pools.
#include "capi/instances.h"

#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "capi/default_driver.h"
#include "capi/errors.h"
#include "pool/threads.h"

namespace vramkit::capi {
namespace {

constexpr std::size_t kFastDevices = 64;

struct Instances {
    std::mutex lock;
    // The last one of each list is in use; the others were closed.
    std::map<std::pair<const Driver*, int>, std::vector<std::unique_ptr<vramkit_pool>>> pools;
    std::array<std::atomic<vramkit_pool*>, kFastDevices> fast{};  // of the default driver
};

// Never destroyed: nothing may wait for the GPU while the process exits.
Instances& instances() {
    static Instances& made = *std::make_unique<Instances>().release();
    return made;
}

}  // namespace

vramkit_pool* process_wide_pool(const std::shared_ptr<Driver>& driver, int ordinal,
                                pool::Failure& why) {
    if (pool::fork_count() > 0) {
        // The lock may be held by a thread that is not there.
        why.kind = pool::Failure::Kind::forked;
        why.message =
            "the process-wide pool belongs to the parent process: a forked child has none";
        return nullptr;
    }
    Instances& all = instances();
    const std::lock_guard guard(all.lock);
    auto& made = all.pools[{driver.get(), ordinal}];
    if (made.empty() || made.back()->engine->closed()) {
        auto opened = open_pool(driver, ordinal, pool::Config{}, why);
        if (opened == nullptr) return nullptr;
        opened->process_wide = true;
        made.push_back(std::move(opened));
    }
    return made.back().get();
}

vramkit_pool* default_pool_if_open(int ordinal) {
    const auto index = static_cast<std::size_t>(ordinal);
    if (index >= kFastDevices) return nullptr;
    vramkit_pool* const known = instances().fast[index].load(std::memory_order_acquire);
    return known != nullptr && !known->engine->closed() ? known : nullptr;
}

vramkit_pool* default_pool(int ordinal) {
    if (vramkit_pool* const known = default_pool_if_open(ordinal)) return known;
    const std::shared_ptr<Driver> driver = default_driver();
    if (driver == nullptr) return nullptr;
    pool::Failure why;
    vramkit_pool* const found = process_wide_pool(driver, ordinal, why);
    if (found == nullptr) {
        fail(why);
    } else if (const auto index = static_cast<std::size_t>(ordinal); index < kFastDevices) {
        instances().fast[index].store(found, std::memory_order_release);
    }
    return found;
}

}  // namespace vramkit::capi
