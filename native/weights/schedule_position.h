// Which step of which schedule a program is at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "weights/schedule.h"

namespace vramkit::weights {

// Before the first step of a schedule, or at one of its steps: the last that was entered. A step
// that no schedule expects next is looked for in all of them. Not safe between threads.
class SchedulePosition {
  public:
    // The number of the schedule.
    std::uint32_t add(Schedule schedule);
    void replace(std::uint32_t number, Schedule schedule);
    // What comes is step 0 of this schedule.
    void follow(std::uint32_t number);

    // To the step that uses this group now. False: no schedule knows it, and nothing changes.
    bool advance_to(GroupIndex group);
    // Groups entered out of the order that was expected.
    std::uint64_t off_order() const { return off_order_; }

    // A list is valid until a schedule is added or replaced. Of the step entered last: what should
    // have been on its way before it, and what its stream's wait lets come.
    const Schedule::List& due() const;
    const Schedule::List& before() const;
    // What its work lets come; null: no step was entered.
    const Schedule::List* after() const;

  private:
    const std::vector<GroupIndex>& order(std::size_t number) const {
        return schedules_[number].order;
    }
    bool search(GroupIndex group);

    std::vector<Schedule> schedules_;
    std::uint32_t current_ = 0;
    std::size_t next_step_ = 0;  // of the current schedule: those before have been entered
    std::uint64_t off_order_ = 0;
};

}  // namespace vramkit::weights
