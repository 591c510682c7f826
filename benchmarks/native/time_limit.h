// Ends a benchmark program whose time is over, whatever call it is stuck in.
#pragma once

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>

namespace bench {

class TimeLimit {
  public:
    static constexpr int kStatus = 3;  // of a program that was ended

    // When the time is over `last_words` runs on a thread of its own, beside whatever the program
    // does at that moment, and the program ends. Call no driver there: it may be what is stuck.
    TimeLimit(int seconds, std::function<void()> last_words)
        : watch_([seconds, last_words = std::move(last_words)](const std::stop_token& stop) {
              std::mutex lock;
              std::condition_variable_any bell;
              std::unique_lock guard(lock);
              const auto never = [] { return false; };
              bell.wait_for(guard, stop, std::chrono::seconds(seconds), never);
              if (stop.stop_requested()) return;
              last_words();
              _exit(kStatus);
          }) {}

  private:
    std::jthread watch_;
};

}  // namespace bench
