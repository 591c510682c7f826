// Who owns how many references to which user object.
#include "sim/machine/user_objects.h"

#include <algorithm>
#include <utility>

namespace vramkit::sim {
namespace {

CUuserObject handle_of(const std::shared_ptr<UserObject>& object) {
    return reinterpret_cast<CUuserObject>(object.get());
}

}  // namespace

void ObjectReferences::add(const std::shared_ptr<UserObject>& object, std::uint64_t count) {
    Owned& owned = owned_[handle_of(object)];
    owned.object = object;
    owned.count += count;
}

bool ObjectReferences::drop(CUuserObject object, std::uint64_t count) {
    const auto it = owned_.find(object);
    if (it == owned_.end() || it->second.count < count) return false;
    it->second.count -= count;
    if (it->second.count == 0) owned_.erase(it);
    return true;
}

void ObjectReferences::drop_up_to(CUuserObject object, std::uint64_t count) {
    const auto it = owned_.find(object);
    if (it != owned_.end()) drop(object, std::min(count, it->second.count));
}

CUuserObject UserObjects::make(DestroyCallback callback, std::uint64_t references) {
    std::erase_if(objects_, [](const auto& entry) { return entry.second.expired(); });
    const auto object = std::make_shared<UserObject>(callback, due_);
    objects_.emplace(handle_of(object), object);
    program.add(object, references);
    return handle_of(object);
}

std::shared_ptr<UserObject> UserObjects::find(CUuserObject handle) const {
    const auto it = objects_.find(handle);
    return it == objects_.end() ? nullptr : it->second.lock();
}

std::size_t UserObjects::live() const {
    return static_cast<std::size_t>(
        std::count_if(objects_.begin(), objects_.end(),
                      [](const auto& entry) { return !entry.second.expired(); }));
}

DueCallbacks UserObjects::take_due() { return std::exchange(*due_, {}); }

}  // namespace vramkit::sim
