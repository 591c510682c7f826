// The fences of a stream: events that say how far its work is done.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "base/event_pool.h"
#include "base/host_memory.h"
#include "base/stream_ref.h"

namespace vramkit {

// The fences of one stream, numbered in stream order: when one has passed, so have all before it.
// What is freed now waits for the open number, which the next recorded event gets.
class Fences {
  public:
    using Number = std::uint64_t;

    explicit Fences(EventPool& events) : events_(events) {}
    ~Fences() { drop(); }
    Fences(const Fences&) = delete;
    Fences& operator=(const Fences&) = delete;

    const DriverTable& call() const { return events_.call(); }
    Number open() const { return open_; }
    bool has_passed(Number number) const { return number <= passed_; }
    bool is_recorded(Number number) const { return number <= covered_; }

    // Records an event behind all work that the stream holds now. False, and the number stays open:
    // the driver failed, the host is out of memory, or the stream is being captured and the event
    // would become part of a graph.
    bool record(CUstream stream) {
        const DriverTable& call = events_.call();
        if (is_captured(call, stream)) return false;
        const CUevent event = events_.take();
        if (event == nullptr) return false;
        if (call.cuEventRecord(event, stream) != CUDA_SUCCESS || is_captured(call, stream)) {
            // Not recorded, or a capture began in between and a query of the event would break it.
            call.cuEventDestroy_v2(event);
            return false;
        }
        if (!if_host_memory_allows([&] { recorded_.emplace_back(open_, event); })) {
            call.cuEventDestroy_v2(event);
            return false;
        }
        covered_ = open_++;
        // Else a stream that only frees piles them up. One answer for the older half.
        if (recorded_.size() > kUnpolled) {
            const auto& [number, middle] = recorded_[recorded_.size() / 2];
            if (call.cuEventQuery(middle) == CUDA_SUCCESS) pass(number);
        }
        return true;
    }
    // Asks the driver about the oldest fences until one has not passed. Never waits.
    void poll() {
        while (!recorded_.empty() &&
               events_.call().cuEventQuery(recorded_.front().second) == CUDA_SUCCESS) {
            pass_oldest();
        }
    }
    // The last event, for a thread that waits for it without the lock that guards the fences. It is
    // not recorded again until it is unpinned.
    using Pinned = std::pair<Number, CUevent>;
    std::optional<Pinned> pin_last() {
        if (recorded_.empty()) return {};
        pins_.push_back(recorded_.back().first);
        return recorded_.back();
    }
    void unpin(const Pinned& last, bool has_passed) {
        const auto pin = std::find(pins_.begin(), pins_.end(), last.first);
        if (pin == pins_.end()) return;  // forget() was called in the meantime
        pins_.erase(pin);
        if (passed_ < last.first) {
            if (has_passed) pass(last.first);
        } else if (!is_pinned(last.first)) {
            events_.give(last.second);  // another thread polled in the meantime
        }
    }
    // The stream waits for the first fence that covers this number.
    bool wait_on_gpu(Number number, CUstream stream) {
        for (const auto& [each, event] : recorded_) {
            if (each < number) continue;
            return events_.call().cuStreamWaitEvent(stream, event, 0) == CUDA_SUCCESS;
        }
        return has_passed(number);
    }
    // Closes the open number and returns it. What is freed later waits for the next one.
    Number close() { return open_++; }
    // All work that the stream held when this number was closed is known to be done.
    void pass(Number number) {
        while (!recorded_.empty() && recorded_.front().first <= number) pass_oldest();
        passed_ = std::max(passed_, number);
        covered_ = std::max(covered_, number);
    }
    // The stream has no work left and gets no more.
    void pass_all() { pass(close()); }
    void drop() {
        for (const auto& [number, event] : recorded_) events_.give(event);
        recorded_.clear();
    }
    // After a reset: the driver no longer knows the events.
    void forget() {
        recorded_.clear();
        pins_.clear();
    }

  private:
    static constexpr std::size_t kUnpolled = 8;

    bool is_pinned(Number number) const {
        return std::find(pins_.begin(), pins_.end(), number) != pins_.end();
    }
    void pass_oldest() {
        passed_ = recorded_.front().first;
        if (!is_pinned(passed_)) events_.give(recorded_.front().second);
        recorded_.pop_front();
    }

    Number open_ = 1;
    EventPool& events_;
    Number covered_ = 0;  // the last one with an event, or that passed without one
    Number passed_ = 0;
    std::vector<Number> pins_;  // numbers of pinned events
    std::deque<std::pair<Number, CUevent>> recorded_;
};

}  // namespace vramkit
