// The registry of process-wide pools.
#include "pool/instances.h"

#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "base/fork.h"
#include "driver/default_driver.h"

namespace vramkit::pool {
namespace {

constexpr std::size_t kFastDevices = 64;

struct Instances {
    std::mutex lock;
    // Only the last of each list may be open; the others were closed.
    std::map<std::pair<const Driver*, int>, std::vector<std::unique_ptr<Handle>>> pools;
    std::array<std::atomic<Handle*>, kFastDevices> fast{};  // of the default driver
};

// Never destroyed: nothing may wait for the GPU while the process exits.
Instances& instances() {
    static Instances& made = *std::make_unique<Instances>().release();
    return made;
}

}  // namespace

Handle* process_wide_pool(const std::shared_ptr<Driver>& driver, int ordinal, Failure& why) {
    if (fork_count() > 0) {
        // The lock may be held by a thread that does not exist in the child.
        why = Failure::in_forked_child(
            "the process-wide pool belongs to the parent process: a forked child has none");
        return nullptr;
    }
    Instances& all = instances();
    const std::lock_guard guard(all.lock);
    auto& made = all.pools[{driver.get(), ordinal}];
    if (made.empty() || made.back()->engine->closed()) {
        auto opened = open_pool(driver, ordinal, Config{}, why);
        if (opened == nullptr) return nullptr;
        opened->process_wide = true;
        made.push_back(std::move(opened));
    }
    return made.back().get();
}

Handle* default_pool_if_open(int ordinal) {
    const auto index = static_cast<std::size_t>(ordinal);
    if (index >= kFastDevices) return nullptr;
    Handle* const known = instances().fast[index].load(std::memory_order_acquire);
    return known != nullptr && !known->engine->closed() ? known : nullptr;
}

Handle* default_pool(int ordinal, Failure& why) {
    if (Handle* const known = default_pool_if_open(ordinal)) return known;
    Driver::Opened opened = default_driver();
    if (const auto* error = std::get_if<OpenError>(&opened)) {
        why = error->bad_setting ? Failure::bad_value(error->message)
                                 : Failure::no_driver(error->message);
        return nullptr;
    }
    Handle* const found =
        process_wide_pool(std::get<std::shared_ptr<Driver>>(opened), ordinal, why);
    if (found == nullptr) return nullptr;
    if (const auto index = static_cast<std::size_t>(ordinal); index < kFastDevices) {
        instances().fast[index].store(found, std::memory_order_release);
    }
    return found;
}

}  // namespace vramkit::pool
