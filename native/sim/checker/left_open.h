// Memory that was still open when the process ended, by the call site that allocated it.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "sim/checker/call_sites.h"

namespace vramkit::sim {

class LeftOpen {
  public:
    struct Entry {
        Site site;
        std::uint64_t bytes = 0;
        std::uint64_t count = 0;
    };

    void add(const Site& site, std::uint64_t bytes) {
        const std::pair key(site.call, site.call_site);
        Entry& entry = entries_.try_emplace(key, Entry{site}).first->second;
        entry.bytes += bytes;
        ++entry.count;
    }
    const auto& entries() const { return entries_; }

  private:
    std::map<std::pair<std::uint16_t, std::uint32_t>, Entry> entries_;
};

}  // namespace vramkit::sim
