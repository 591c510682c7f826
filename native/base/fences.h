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

// The fences of one stream, numbered in its order: one that has passed takes all before it along.
// What is freed now waits for the open number, which the next event to be recorded gets.
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

    // An event behind all work that the stream holds now. False, and the number stays open: the
    // driver refuses, the host has no memory, or the stream is being captured, and the event would
    // become part of a graph.
    bool record(CUstream stream) {
        const DriverTable& call = events_.call();
        if (is_captured(call, stream)) return false;
        const CUevent event = events_.take();
        if (event == nullptr) return false;
        if (call.cuEventRecord(event, stream) != CUDA_SUCCESS || is_captured(call, stream)) {
            // It is of no use, or a capture began in between, and to ask for it would break that.
            call.cuEventDestroy_v2(event);
            return false;
        }
        if (!if_host_memory_allows([&] { recorded_.emplace_back(open_, event); })) {
            call.cuEventDestroy_v2(event);
            return false;
        }
        covered_ = open_++;
        if (recorded_.size() > kUnpolled) poll();  // else a stream that only frees has ever more
        return true;
    }
    // Asks the driver about the oldest fences until one has not passed. Never waits.
    void poll() {
        while (!recorded_.empty() &&
               events_.call().cuEventQuery(recorded_.front().second) == CUDA_SUCCESS) {
            pass_oldest();
        }
    }
    // The last event, for a thread to wait for without the lock that guards the fences: until it is
    // unpinned nobody records it again.
    using Pinned = std::pair<Number, CUevent>;
    std::optional<Pinned> pin_last() {
        if (recorded_.empty()) return {};
        pins_.push_back(recorded_.back().first);
        return recorded_.back();
    }
    void unpin(const Pinned& last, bool has_passed) {
        const auto pin = std::find(pins_.begin(), pins_.end(), last.first);
        if (pin == pins_.end()) return;  // the driver has forgotten it meanwhile
        pins_.erase(pin);
        if (passed_ < last.first) {
            if (has_passed) pass(last.first);
        } else if (!is_pinned(last.first)) {
            events_.give(last.second);  // somebody has polled meanwhile
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
    // The open number, and another one from now on: what is freed later waits for that.
    Number close() { return open_++; }
    // All work that the stream had when this number was closed is known to be done.
    void pass(Number number) {
        while (!recorded_.empty() && recorded_.front().first <= number) pass_oldest();
        passed_ = std::max(passed_, number);
        covered_ = std::max(covered_, number);
    }
    // No work of the stream is left, nor will there be any.
    void pass_all() { pass(close()); }
    void drop() {
        for (const auto& [number, event] : recorded_) events_.give(event);
        recorded_.clear();
    }
    // The driver no longer knows the events.
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

    EventPool& events_;
    Number open_ = 1;
    Number covered_ = 0;  // the last one with an event, or passed without
    Number passed_ = 0;
    std::vector<Number> pins_;  // of events that somebody waits for
    std::deque<std::pair<Number, CUevent>> recorded_;
};

}  // namespace vramkit
