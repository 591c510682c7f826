// What the checker reports: two accesses, and what is wrong with the pair.
#pragma once

#include <cstdint>

#include "sim/checker/call_sites.h"
#include "sim/checker/clock.h"

namespace vramkit::sim {

// atomic: an addition that does not race with other additions to the same word.
enum class Use : std::uint8_t { read, write, atomic, alloc, free };

// One access that later ones are compared with.
struct Mark {
    Component component = 0;
    std::uint64_t time = 0;  // 0: no mark
    std::uint64_t stream = 0;
    std::uint64_t delta = 0;
    Site site;
    Use use = Use::read;
    bool host = false;
};

enum class ReportKind : std::uint8_t {
    race,
    free_in_use,
    use_after_free,
    implicit_wait,
    deadlock,
    out_of_bounds,     // first: the allocation of the block that the access left
    overlapping_copy,  // first: what the copy reads
};

struct Report {
    ReportKind kind = ReportKind::race;
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
    Mark first;
    Mark second;
    std::uint64_t count = 1;  // how often the same pair of sites was seen
};

}  // namespace vramkit::sim
