// Keeps every driver that was opened for sharing, by the path it was loaded from.
#include "driver/shared.h"

#include <mutex>
#include <unordered_map>
#include <utility>

namespace vramkit {
namespace {

struct Drivers {
    std::mutex lock;
    std::unordered_map<std::string, std::shared_ptr<Driver>> by_path;
};

// Never destroyed: threads may ask while the process exits.
Drivers& drivers() {
    static Drivers& made = *std::make_unique<Drivers>().release();
    return made;
}

Shared share(Driver::Opened opened) {
    if (auto* error = std::get_if<OpenError>(&opened)) return std::move(*error);
    auto driver = std::get<std::shared_ptr<Driver>>(std::move(opened));
    Drivers& all = drivers();
    const std::lock_guard guard(all.lock);
    const std::string path = driver->path();
    const auto [found, first] = all.by_path.try_emplace(path, std::move(driver));
    return SharedDriver{found->second, first};
}

}  // namespace

Shared share_cuda() { return share(Driver::open_cuda()); }

Shared share_path(const std::string& path) { return share(Driver::open_path(path)); }

}  // namespace vramkit
