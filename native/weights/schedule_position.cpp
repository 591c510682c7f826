// Finds the step of a group: the one that is expected next, or else the likeliest.
#include "weights/schedule_position.h"

#include <algorithm>
#include <utility>

namespace vramkit::weights {

std::uint32_t SchedulePosition::add(Schedule schedule) {
    schedules_.push_back(std::move(schedule));
    return static_cast<std::uint32_t>(schedules_.size() - 1);
}

void SchedulePosition::replace(std::uint32_t number, Schedule schedule) {
    schedules_[number] = std::move(schedule);
    if (current_ == number) next_step_ = std::min(next_step_, order(number).size());
}

void SchedulePosition::follow(std::uint32_t number) {
    current_ = number;
    next_step_ = 0;
}

bool SchedulePosition::advance_to(GroupIndex group) {
    if (schedules_.empty()) return false;
    if (next_step_ == order(current_).size()) {
        current_ = schedules_[current_].next;
        next_step_ = 0;
    }
    if (next_step_ < order(current_).size() && order(current_)[next_step_] == group) {
        ++next_step_;
        return true;
    }
    ++off_order_;
    return search(group);
}

// The best step is one that follows the same group as now, then one of this schedule, then the next
// one from here on.
bool SchedulePosition::search(GroupIndex group) {
    const bool any_before = next_step_ > 0;
    const GroupIndex before = any_before ? order(current_)[next_step_ - 1] : 0;
    struct Found {
        bool follows = false, here = false;
        std::size_t distance = 0, step = 0;
        std::uint32_t schedule = 0;
    };
    const auto better = [](const Found& one, const Found& other) {
        if (one.follows != other.follows) return one.follows;
        if (one.here != other.here) return one.here;
        return one.distance < other.distance;
    };
    bool any = false;
    Found best;
    for (std::uint32_t number = 0; number < schedules_.size(); ++number) {
        const auto& steps = order(number);
        for (std::size_t step = 0; step < steps.size(); ++step) {
            if (steps[step] != group) continue;
            const Found found{step == 0 ? !any_before : any_before && steps[step - 1] == before,
                              number == current_, (step + steps.size() - next_step_) % steps.size(),
                              step, number};
            if (!any || better(found, best)) best = found;
            any = true;
        }
    }
    if (!any) return false;
    current_ = best.schedule;
    next_step_ = best.step + 1;
    return true;
}

const Schedule::List& SchedulePosition::due() const {
    const Schedule& schedule = schedules_[current_];
    return next_step_ == 1 ? schedule.start : schedule.after[next_step_ - 2];
}

const Schedule::List& SchedulePosition::before() const {
    return schedules_[current_].before[next_step_ - 1];
}

const Schedule::List* SchedulePosition::after() const {
    return next_step_ == 0 ? nullptr : &schedules_[current_].after[next_step_ - 1];
}

}  // namespace vramkit::weights
