// What is copied when, as data.
#pragma once

#include <cstdint>
#include <vector>

namespace vramkit::weights {

using GroupIndex = std::uint32_t;

// The order in which a pass uses groups, and what should be on its way at each of its steps.
//
// `before[i]` counts when the stream of step i has been told to wait for its group, `after[i]` when
// the work of step i was issued. A list names the groups in the order in which they are needed;
// those that are on the card or on their way are skipped, so that a list may repeat what an earlier
// one said. `start` counts at the beginning of the first step. After the last step the schedule
// `next` follows.
struct Schedule {
    using List = std::vector<GroupIndex>;

    std::vector<GroupIndex> order;
    List start;
    std::vector<List> before, after;
    std::uint32_t next = 0;
};

}  // namespace vramkit::weights
