// The engine's walks over chunks by addresses of the program: of allocations, homes and mappings.
#pragma once

#include <algorithm>

#include "swap/engine.h"

namespace vramkit::swap {

template <typename Visit>
void Engine::each_chunk_of(const Mapping& mapping, Visit visit) {
    space_->each_chunk_in(mapping.handle, mapping.bytes, visit);
}

template <typename Visit>
void Engine::each_chunk_in(std::uint64_t address, std::uint64_t bytes, Visit visit) {
    space_->each_chunk_in(address, bytes, visit);
    handles_.each_in(address, bytes, [&](const Mapping& mapping) {
        const std::uint64_t begin = std::max(address, mapping.address);
        const std::uint64_t to_end = mapping.address + mapping.bytes - begin;
        const std::uint64_t length = std::min(to_end, bytes - (begin - address));
        space_->each_chunk_in(mapping.handle + (begin - mapping.address), length, visit);
    });
}

}  // namespace vramkit::swap
