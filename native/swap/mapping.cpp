// Handles of the program, and where it maps them.
#include <algorithm>
#include <string>

#include "base/host_memory.h"
#include "base/scopes.h"
#include "swap/each_chunk.h"
#include "swap/engine.h"

namespace vramkit::swap {
namespace {

std::string range_text(std::uint64_t address, std::uint64_t bytes) {
    return std::to_string(bytes) + " bytes at " + std::to_string(address);
}

bool is_same(const CUmemLocation& one, const CUmemLocation& other) {
    return one.type == other.type && one.id == other.id;
}

// What is allowed after `change`: a location that may do nothing is not listed.
std::vector<CUmemAccessDesc> changed(std::vector<CUmemAccessDesc> access,
                                     std::span<const CUmemAccessDesc> change) {
    for (const CUmemAccessDesc& each : change) {
        std::erase_if(access, [&](const CUmemAccessDesc& old) {
            return is_same(old.location, each.location);
        });
        if (each.flags != CU_MEM_ACCESS_FLAGS_PROT_NONE) access.push_back(each);
    }
    return access;
}

bool is_range(std::uint64_t address, std::uint64_t bytes) {
    return bytes > 0 && address + bytes > address;
}

}  // namespace

Alias& Engine::alias_of(Chunk& chunk, const Mapping& mapping) {
    return *chunk.alias_at(mapping.address + (chunk.address - mapping.handle));
}

std::uint64_t Engine::create(std::uint64_t bytes, Failure& why) {
    if (bytes == 0 || bytes % kPage != 0 || bytes > kLargestRequest) {
        why = Failure::bad_value("a handle of " + std::to_string(bytes) +
                                 " bytes; it must have a multiple of 2 MiB, up to 1 TiB");
        return 0;
    }
    const std::lock_guard guard(lock_);
    const std::uint64_t id = allocate_locked(bytes, why);
    if (id == 0) return 0;
    if (!if_host_memory_allows([&] { handles_.add(id, bytes); })) {
        const SlowPathScope scope(call_, context_);
        if_host_memory_allows([&] {
            space_->free(id);
            clean(true);
        });
        why = no_host_memory();
        return 0;
    }
    space_->each_chunk_in(id, bytes, [](Chunk& chunk) { chunk.of_handle = true; });
    return id;
}

bool Engine::release(std::uint64_t id, std::uint64_t& freed, Failure& why) {
    freed = 0;
    const std::lock_guard guard(lock_);
    const SlowPathScope scope(call_, context_);
    end_mappings();
    Handle* const handle = handles_.find(id);
    if (handle == nullptr || handle->references == 0) {
        why = Failure::bad_value("no handle is " + std::to_string(id));
        return false;
    }
    --handle->references;
    drop_if_unused(id);
    // What cannot be cleaned up now is so with the next call.
    if_host_memory_allows([&] { freed = clean(true); });
    return true;
}

bool Engine::retain(std::uint64_t id) {
    const std::lock_guard guard(lock_);
    Handle* const handle = handles_.find(id);
    if (handle != nullptr) ++handle->references;
    return handle != nullptr;
}

bool Engine::map(std::uint64_t id, std::uint64_t address, std::uint64_t bytes, Failure& why) {
    const std::lock_guard guard(lock_);
    const SlowPathScope scope(call_, context_);
    end_mappings();
    const Handle* const handle = handles_.find(id);
    if (handle == nullptr || handle->references == 0) {
        why = Failure::bad_value("no handle is " + std::to_string(id));
        return false;
    }
    if (!is_range(address, bytes) || address % kPage != 0 || bytes % kPage != 0) {
        why = Failure::bad_value(range_text(address, bytes) + " are not whole pages of 2 MiB");
        return false;
    }
    if (bytes != handle->bytes) {
        why = Failure::refused(CUDA_ERROR_NOT_SUPPORTED,
                               "a handle of " + std::to_string(handle->bytes) +
                                   " bytes is mapped whole, not " + std::to_string(bytes) +
                                   " bytes of it");
        return false;
    }
    const bool in_reservation =
        address < addresses_ + address_bytes_ && addresses_ < address + bytes;
    if (in_reservation || handles_.is_any_in(address, bytes)) {
        why = Failure::bad_value("something is mapped in " + range_text(address, bytes));
        return false;
    }
    if (!if_host_memory_allows([&] { handles_.map(id, address); })) {
        why = no_host_memory();
        return false;
    }
    Mapping& mapping = *handles_.around(address);
    const auto add_aliases = [&] {
        each_chunk_of(mapping, [&](Chunk& chunk) {
            chunk.aliases.push_back({address + (chunk.address - id), false, false, {}});
        });
    };
    if (!if_host_memory_allows(add_aliases)) {
        forget(mapping);
        why = no_host_memory();
        return false;
    }
    bool is_mapped = true;
    each_chunk_of(mapping, [&](Chunk& chunk) {
        if (!is_mapped || !chunk.is_on_card()) return;
        is_mapped = card_.map(chunk, alias_of(chunk, mapping), why);
    });
    if (is_mapped) return true;
    begin_to_end(mapping);
    end_mappings();
    return false;
}

bool Engine::unmap(std::uint64_t address, std::uint64_t bytes, std::uint64_t& freed, Failure& why) {
    freed = 0;
    const std::lock_guard guard(lock_);
    const SlowPathScope scope(call_, context_);
    end_mappings();
    std::vector<Mapping*> mappings;
    if (!is_range(address, bytes) || handles_.is_cut_by(address, bytes)) {
        why = Failure::bad_value("whole mappings are unmapped, not " + range_text(address, bytes));
        return false;
    }
    if (!if_host_memory_allows([&] { mappings = handles_.in(address, bytes); })) {
        why = no_host_memory();
        return false;
    }
    bool is_done = true;
    for (Mapping* mapping : mappings) {
        if (mapping->ending) continue;  // end_mappings() could not, either
        is_done = unmap_all(*mapping, why);
        if (!is_done) break;
        const std::uint64_t id = mapping->handle;
        forget(*mapping);
        drop_if_unused(id);
    }
    if_host_memory_allows([&] { freed = clean(true); });
    return is_done;
}

bool Engine::unmap_all(Mapping& mapping, Failure& why) {
    bool is_done = true;
    each_chunk_of(mapping, [&](Chunk& chunk) {
        Alias& alias = alias_of(chunk, mapping);
        if (is_done && alias.mapped) is_done = card_.unmap(chunk, alias, why);
    });
    if (is_done) return true;
    bool is_back = true;
    each_chunk_of(mapping, [&](Chunk& chunk) {
        Alias& alias = alias_of(chunk, mapping);
        if (alias.mapped || !chunk.is_on_card()) return;
        Failure ignored;
        is_back = is_back && card_.map(chunk, alias, ignored) &&
                  card_.allow(chunk, alias, alias.access, ignored);
    });
    if (!is_back) begin_to_end(mapping);
    return false;
}

void Engine::begin_to_end(Mapping& mapping) {
    mapping.ending = true;
    ++ending_;
    each_chunk_of(mapping, [&](Chunk& chunk) { alias_of(chunk, mapping).ending = true; });
}

void Engine::end_mappings() {
    if (ending_ == 0) return;
    auto next = handles_.mappings().begin();
    while (next != handles_.mappings().end()) {
        const Mapping& mapping = (next++)->second;
        if (!mapping.ending) continue;
        bool is_done = true;
        each_chunk_of(mapping, [&](Chunk& chunk) {
            Alias& alias = alias_of(chunk, mapping);
            Failure ignored;
            if (alias.mapped) is_done = card_.unmap(chunk, alias, ignored) && is_done;
        });
        if (!is_done) continue;
        --ending_;
        const std::uint64_t id = mapping.handle;
        forget(mapping);
        drop_if_unused(id);
    }
}

void Engine::forget(const Mapping& mapping) {
    each_chunk_of(mapping, [&](Chunk& chunk) {
        const std::uint64_t at = mapping.address + (chunk.address - mapping.handle);
        std::erase_if(chunk.aliases, [&](const Alias& each) { return each.address == at; });
    });
    handles_.unmap(mapping.address);
}

void Engine::drop_if_unused(std::uint64_t id) {
    const Handle& handle = *handles_.find(id);
    if (handle.references > 0 || handle.mappings > 0) return;
    // Without host memory it stays, and goes with the engine.
    if (if_host_memory_allows([&] { space_->free(id); })) handles_.remove(id);
}

bool Engine::set_access(std::uint64_t address, std::uint64_t bytes,
                        std::span<const CUmemAccessDesc> access, Failure& why) {
    const std::lock_guard guard(lock_);
    const SlowPathScope scope(call_, context_);
    int devices = 0;
    if (failed(call_.cuDeviceGetCount(&devices), "cuDeviceGetCount", why)) return false;
    // What is wrong must be said now: the driver may see it much later.
    const bool is_valid = std::all_of(access.begin(), access.end(), [&](const auto& each) {
        const bool is_known = each.flags == CU_MEM_ACCESS_FLAGS_PROT_NONE ||
                              each.flags == CU_MEM_ACCESS_FLAGS_PROT_READ ||
                              each.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        return is_known && each.location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
               each.location.id >= 0 && each.location.id < devices;
    });
    if (access.empty() || !is_valid) {
        why = Failure::bad_value("access is given to devices, to read, to write or none");
        return false;
    }
    if (!is_range(address, bytes) || handles_.is_cut_by(address, bytes)) {
        why = Failure::bad_value("access is given to whole mappings, not " +
                                 range_text(address, bytes));
        return false;
    }
    bool is_any = false, is_done = true;
    const auto allow = [&](Mapping& mapping) {
        if (mapping.ending) return;
        is_any = true;
        each_chunk_of(mapping, [&](Chunk& chunk) {
            if (!is_done) return;
            Alias& alias = alias_of(chunk, mapping);
            auto after = changed(alias.access, access);
            if (alias.mapped) is_done = card_.allow(chunk, alias, access, why);
            if (is_done) alias.access = std::move(after);
        });
    };
    if (!if_host_memory_allows([&] { handles_.each_in(address, bytes, allow); })) {
        why = no_host_memory();
        return false;
    }
    if (!is_any) {
        why = Failure::bad_value("nothing is mapped in " + range_text(address, bytes));
        return false;
    }
    return is_done;
}

unsigned long long Engine::access(std::uint64_t address, const CUmemLocation& location) const {
    const std::lock_guard guard(lock_);
    const Mapping* const mapping = handles_.around(address);
    if (mapping == nullptr || mapping->ending) return CU_MEM_ACCESS_FLAGS_PROT_NONE;
    const Chunk& chunk = space_->chunk_around(mapping->handle + (address - mapping->address));
    const std::uint64_t at = mapping->address + (chunk.address - mapping->handle);
    for (const Alias& alias : chunk.aliases) {
        if (alias.address != at) continue;
        for (const CUmemAccessDesc& each : alias.access) {
            if (is_same(each.location, location)) return each.flags;
        }
    }
    return CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

std::optional<std::uint64_t> Engine::handle_at(std::uint64_t address) const {
    const std::lock_guard guard(lock_);
    const Mapping* const mapping = handles_.around(address);
    if (mapping == nullptr || mapping->ending) return {};
    return mapping->handle;
}

bool Engine::owns_mapping(std::uint64_t address, std::uint64_t bytes) const {
    const std::lock_guard guard(lock_);
    return handles_.is_any_in(address, bytes);
}

std::string Engine::broken_handles() const {
    std::size_t ending = 0, aliases = 0, wanted = 0, of_handles = 0, chunks = 0;
    std::uint64_t end = 0;
    std::map<std::uint64_t, std::uint64_t> mappings;  // of each handle
    for (const auto& [address, mapping] : handles_.mappings()) {
        const std::string at = " at " + std::to_string(address);
        if (address < end) return "mappings overlap" + at;
        end = address + mapping.bytes;
        ending += mapping.ending;
        ++mappings[mapping.handle];
        const Handle* const handle = handles_.find(mapping.handle);
        if (handle == nullptr || handle->bytes != mapping.bytes) return "a mapping of nothing" + at;
        for (auto next = space_->chunks().lower_bound(mapping.handle);
             next != space_->chunks().end() && next->first < mapping.handle + mapping.bytes;
             ++next) {
            const std::uint64_t of_chunk = address + (next->first - mapping.handle);
            ++wanted;
            for (const Alias& alias : next->second.aliases) {
                if (alias.address == of_chunk && alias.ending != mapping.ending) {
                    return "an alias ends alone" + at;
                }
                aliases += alias.address == of_chunk;
            }
        }
    }
    for (const auto& [id, handle] : handles_.all()) {
        if (handle.mappings != mappings[id]) return "mappings are counted wrong";
        if (handle.references + handle.mappings == 0) return "a handle that nobody has";
        const auto block = space_->find(id);
        if (!block || block->address != id || block->bytes != handle.bytes) {
            return "a handle without a home";
        }
        for (auto next = space_->chunks().lower_bound(id);
             next != space_->chunks().end() && next->first < id + handle.bytes; ++next) {
            const Chunk& chunk = next->second;
            if (!chunk.of_handle) return "a chunk of a handle does not know it";
            if (chunk.is_on_card() && chunk.handle == 0) return "a chunk lost its handle";
            ++of_handles;
        }
    }
    std::size_t all_aliases = 0;
    for (const auto& [address, chunk] : space_->chunks()) {
        chunks += chunk.of_handle && chunk.blocks > 0;
        all_aliases += chunk.aliases.size();
    }
    if (ending != ending_) return "ending mappings are counted wrong";
    if (aliases != wanted || aliases != all_aliases) return "aliases and mappings differ";
    if (chunks != of_handles) return "a chunk of a handle that is gone";
    return "";
}

}  // namespace vramkit::swap
