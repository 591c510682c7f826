// Driver calls that the program asked for and the simulated GPU does not have.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "sim/checker/call_sites.h"

namespace vramkit::sim {

class Unsupported {
  public:
    // missing: not found by cuGetProcAddress; a program may ask and never call. not_supported:
    // made, and answered by that error.
    enum class Reason : std::uint8_t { missing, not_supported };
    struct Entry {
        Site site;  // of the first time
        std::uint64_t count = 0;
    };

    void add(std::string_view symbol, Reason reason, const Site& site) {
        Entry& entry =
            entries_.try_emplace({reason, std::string(symbol)}, Entry{site}).first->second;
        if (++entry.count == 1 && reason == Reason::not_supported) ++refused_;
    }
    const std::map<std::pair<Reason, std::string>, Entry>& entries() const { return entries_; }
    // Symbols that were called.
    std::size_t refused() const { return refused_; }

  private:
    std::map<std::pair<Reason, std::string>, Entry> entries_;
    std::size_t refused_ = 0;
};

}  // namespace vramkit::sim
