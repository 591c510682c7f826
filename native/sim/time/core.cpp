// Processor sharing by lane, and multiprocessors by priority in waves.
#include "sim/time/core.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace vramkit::sim {
namespace {
constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kNanosecondsPerSecond = 1e9;
constexpr double kRounding = 1e-9;  // less of a wave than this is none
}  // namespace

Core::Core(const Profile& profile, int devices, Effects& effects)
    : profile_(profile), effects_(effects), kernels_running_(devices, 0) {}

Core::~Core() {
    // Each unfinished operation is in one place, or waits for one that is: collect them all once.
    std::vector<Operation*> all(running_);
    all.insert(all.end(), polling_.begin(), polling_.end());
    all.insert(all.end(), on_host_.begin(), on_host_.end());
    all.insert(all.end(), ready_.begin(), ready_.end());
    for (; !timers_.empty(); timers_.pop()) all.push_back(timers_.top().operation);
    for (std::size_t i = 0; i < all.size(); ++i) {
        for (Operation* follower : all[i]->followers) {
            if (--follower->blockers == 0) all.push_back(follower);
        }
    }
    for (Operation* operation : all) std::default_delete<Operation>()(operation);
    for (Operation* operation : spare_) std::default_delete<Operation>()(operation);
}

Operation* Core::make() {
    Operation* operation;
    if (spare_.empty()) {
        operation = std::make_unique<Operation>().release();
    } else {
        operation = spare_.back();
        spare_.pop_back();
    }
    operation->sequence = next_sequence_++;
    return operation;
}

void Core::recycle(Operation* operation) {
    auto followers = std::move(operation->followers);
    followers.clear();
    *operation = Operation{};
    operation->followers = std::move(followers);  // keeps its storage
    spare_.push_back(operation);
}

void Core::issue(Operation* operation) {
    if (operation->blockers == 0) arrive(operation);
    drain();
}

void Core::arrive(Operation* operation) {
    if (operation->issued > now_) {
        timers_.push({operation->issued, operation->sequence, operation, false});
    } else {
        ready_.push_back(operation);
    }
}

void Core::drain() {
    while (!stopped_ && !ready_.empty()) {
        Operation* operation = ready_.front();
        ready_.pop_front();
        begin(operation);
    }
    if (rates_stale_) share_rates();
}

void Core::put_before(Operation* operation, Operation* first) {
    depend(operation, first);
    first->issued = now_;
    ready_.push_back(first);
}

void Core::begin(Operation* operation) {
    operation->start = now_;
    if (effects_.lost(*operation)) {
        complete(operation);
        return;
    }
    if (!operation->prepared) {
        operation->prepared = true;
        effects_.prepare(*operation);
        if (operation->blockers > 0) return;
    }
    effects_.started(*operation);
    if (operation->latency > 0) {
        timers_.push({now_ + operation->latency, operation->sequence, operation, true});
    } else {
        work(operation);
    }
}

void Core::work(Operation* operation) {
    if (operation->kind == Kind::host_function) {
        on_host_.push_back(operation);
        effects_.run_host_function(*operation);
        return;
    }
    if (operation->kind == Kind::wait_value && !effects_.value_reached(*operation)) {
        polling_.push_back(operation);
        return;
    }
    if (operation->lane == Lane::none || operation->work <= 0) {
        complete(operation);
        return;
    }
    operation->since = now_;
    operation->rate = 0;
    operation->finish = kNever;
    operation->share = 0;
    operation->boundary = kNever;
    running_.push_back(operation);
    if (operation->lane == Lane::compute) ++kernels_running_[operation->device];
    rates_stale_ = true;
}

void Core::complete(Operation* operation) {
    effects_.finished(*operation, now_);
    for (Operation* follower : operation->followers) {
        if (--follower->blockers == 0) arrive(follower);
    }
    const bool changes_memory =
        operation->kind != Kind::record && operation->kind != Kind::wait_event;
    recycle(operation);
    if (changes_memory && !polling_.empty()) look_at_values();
}

void Core::look_at_values() {
    if (stopped_) return;
    for (std::size_t i = 0; i < polling_.size();) {
        Operation* operation = polling_[i];
        if (effects_.lost(*operation) || effects_.value_reached(*operation)) {
            polling_.erase(polling_.begin() + static_cast<std::ptrdiff_t>(i));
            complete(operation);
            i = 0;  // completing may have changed the list
        } else {
            ++i;
        }
    }
}

void Core::host_function_returned(Operation* operation) {
    if (stopped_) return;
    std::erase(on_host_, operation);
    complete(operation);
    drain();
}

double Core::next() const {
    double next = timers_.empty() ? kNever : timers_.top().time;
    for (const Operation* operation : running_) {
        next = std::min({next, operation->finish, operation->boundary});
    }
    for (const Slot& slot : slots_) {
        if (slot.in_use)
            next = std::min(next, slot.turn.start > now_ ? slot.turn.start : slot.turn.end);
    }
    return next;
}

bool Core::step(double until) {
    if (stopped_) return false;
    const double next = this->next();
    if (next > until || next == kNever) {
        if (until != kNever) now_ = std::max(now_, until);
        if (ready_.empty()) return false;
        // What waited for a value that the host has written: no event announces that.
        drain();
        return true;
    }
    now_ = std::max(now_, next);
    for (const Slot& slot : slots_) rates_stale_ |= slot.begins_or_ends(now_);
    while (!timers_.empty() && timers_.top().time <= now_) {
        const Timer timer = timers_.top();
        timers_.pop();
        if (timer.latency_over) {
            work(timer.operation);
        } else {
            ready_.push_back(timer.operation);
        }
    }
    for (std::size_t i = 0; i < running_.size();) {
        Operation* operation = running_[i];
        if (operation->finish > now_) {
            rates_stale_ |= operation->boundary <= now_;
            ++i;
            continue;
        }
        running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
        if (operation->lane == Lane::compute) --kernels_running_[operation->device];
        rates_stale_ = true;
        complete(operation);
    }
    drain();
    return true;
}

void Core::set_rate(Operation* operation, double rate) {
    if (rate == operation->rate) return;  // keeps its finish to the last bit
    operation->work -= operation->rate * (now_ - operation->since);
    operation->since = now_;
    operation->rate = rate;
    operation->finish = rate > 0 ? now_ + operation->work / rate : kNever;
}

void Core::share_rates() {
    rates_stale_ = false;
    const Link& link = profile_.link;
    std::vector<Operation*> kernels;
    for (int device = 0; device < static_cast<int>(kernels_running_.size()); ++device) {
        int down = 0, up = 0;
        kernels.clear();
        for (Operation* operation : running_) {
            if (operation->device != device) continue;
            down += operation->lane == Lane::host_to_device;
            up += operation->lane == Lane::device_to_host;
            if (operation->lane == Lane::compute) kernels.push_back(operation);
        }
        const bool duplex = (down > 0 || used_by_others(Lane::host_to_device)) &&
                            (up > 0 || used_by_others(Lane::device_to_host));
        const double both = link.duplex_bytes_per_s;
        share_lane(device, Lane::host_to_device, duplex ? both : link.host_to_device_bytes_per_s);
        share_lane(device, Lane::device_to_host, duplex ? both : link.device_to_host_bytes_per_s);
        share_lane(device, Lane::on_device, link.device_to_device_bytes_per_s);
        share_multiprocessors(kernels);
    }
    if (turns_ == nullptr) return;
    for (std::size_t lane = 1; lane < kLanes; ++lane) take_turn(static_cast<Lane>(lane));
}

bool Core::used_by_others(Lane lane) const {
    return turns_ != nullptr && turns_->used_by_others(lane, now_);
}

// Once rates are as on a card without other processes: they hold in this process's turns only.
void Core::take_turn(Lane lane) {
    double needed = 0;
    bool more = false;
    for (const Operation* operation : running_) {
        if (operation->lane != lane || operation->rate <= 0) continue;
        needed = std::max(needed, operation->finish - now_);
        more |= std::any_of(operation->followers.begin(), operation->followers.end(),
                            [&](const Operation* follower) {
                                return follower->lane == lane || follower->lane == Lane::none;
                            });
    }
    Slot& slot = slots_[static_cast<std::size_t>(lane)];
    if (needed <= 0) {
        if (slot.in_use && turns_->give_back(lane, slot.turn, now_)) slot.turn.end = now_;
        slot.in_use = false;
        return;
    }
    if (slot.turn.end <= now_) slot.turn = turns_->take(lane, now_, needed, more);
    slot.in_use = true;
    const double rate = slot.turn.start > now_ ? 0 : slot.turn.rate;
    if (rate == 1) return;
    for (Operation* operation : running_) {
        if (operation->lane != lane) continue;
        operation->boundary = rate > 0 ? now_ + (operation->boundary - now_) / rate : kNever;
        set_rate(operation, operation->rate * rate);
    }
}

// Equal shares; what an operation cannot take is left to the others. `rate`: bytes a second.
void Core::share_lane(int device, Lane lane, double rate) {
    double left = rate / kNanosecondsPerSecond;
    std::vector<Operation*> sharers;
    for (Operation* operation : running_) {
        if (operation->device == device && operation->lane == lane) sharers.push_back(operation);
    }
    const auto most = [](const Operation* each) { return each->most > 0 ? each->most : kNever; };
    std::stable_sort(sharers.begin(), sharers.end(),
                     [&](const Operation* a, const Operation* b) { return most(a) < most(b); });
    // The slowest first: whoever takes less than an equal share makes the others' larger.
    auto count = static_cast<double>(sharers.size());
    auto it = sharers.begin();
    for (; it != sharers.end() && most(*it) < left / count; ++it) {
        set_rate(*it, (*it)->most);
        left -= (*it)->most;
        count -= 1;
    }
    const double share = left / count;
    for (; it != sharers.end(); ++it) set_rate(*it, share);
}

void Core::share_multiprocessors(std::vector<Operation*>& kernels) {
    double free = 1;
    for (Operation* kernel : kernels) {
        // At the end of a wave the blocks leave; the next wave queues up like everybody else.
        if (kernel->boundary <= now_) kernel->share = 0;
        free -= kernel->share;
    }
    std::stable_sort(kernels.begin(), kernels.end(), [](const Operation* a, const Operation* b) {
        return a->priority < b->priority;
    });
    bool starved = false;
    for (Operation* kernel : kernels) {
        const double more = std::clamp(kernel->demand - kernel->share, 0.0, std::max(0.0, free));
        kernel->share += more;
        free -= more;
        starved |= kernel->share < kernel->demand;
        set_rate(kernel, kernel->share / kernel->demand);
    }
    // If a kernel waits for multiprocessors, they are shared again at the end of each wave.
    for (Operation* kernel : kernels) {
        kernel->boundary = kNever;
        if (!starved || kernel->rate <= 0) continue;
        const double left = kernel->work - kernel->rate * (now_ - kernel->since);
        const double of_wave = left - kernel->wave * std::floor(left / kernel->wave);
        kernel->boundary = now_ + of_wave / kernel->rate;
        // So little of the wave that rounding may have left it over, or that the clock cannot show
        // it, is none: the next wave begins now.
        if (of_wave <= kernel->wave * kRounding || kernel->boundary <= now_) {
            kernel->boundary = now_ + kernel->wave / kernel->rate;
        }
    }
}

}  // namespace vramkit::sim
