// Finds handles and mappings.
#include "swap/handles.h"

#include <utility>

namespace vramkit::swap {

const Handle* Handles::find(std::uint64_t id) const {
    const auto found = handles_.find(id);
    return found == handles_.end() ? nullptr : &found->second;
}

Handle* Handles::find(std::uint64_t id) {
    return const_cast<Handle*>(std::as_const(*this).find(id));
}

void Handles::map(std::uint64_t id, std::uint64_t address) {
    Handle& handle = handles_.at(id);
    mappings_.emplace(address, Mapping{address, handle.bytes, id, false});
    ++handle.mappings;
}

void Handles::unmap(std::uint64_t address) {
    const auto found = mappings_.find(address);
    --handles_.at(found->second.handle).mappings;
    mappings_.erase(found);
}

const Mapping* Handles::around(std::uint64_t address) const {
    const auto after = mappings_.upper_bound(address);
    if (after == mappings_.begin()) return nullptr;
    const Mapping& before = std::prev(after)->second;
    return address - before.address < before.bytes ? &before : nullptr;
}

Mapping* Handles::around(std::uint64_t address) {
    return const_cast<Mapping*>(std::as_const(*this).around(address));
}

bool Handles::is_cut_by(std::uint64_t address, std::uint64_t bytes) const {
    const auto is_inside = [this](std::uint64_t at) {
        const Mapping* const mapping = around(at);
        return mapping != nullptr && mapping->address != at;
    };
    return is_inside(address) || is_inside(address + bytes);
}

std::vector<Mapping*> Handles::in(std::uint64_t address, std::uint64_t bytes) {
    std::vector<Mapping*> found;
    each_in(address, bytes, [&](Mapping& mapping) { found.push_back(&mapping); });
    return found;
}

bool Handles::is_any_in(std::uint64_t address, std::uint64_t bytes) const {
    if (around(address) != nullptr) return true;
    const auto next = mappings_.lower_bound(address);
    return next != mappings_.end() && next->first - address < bytes;
}

}  // namespace vramkit::swap
