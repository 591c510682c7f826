// A thread that does one job after the other, for what may take long or never end.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace vramkit::share {

// Never destroyed: a job may wait for the card for ever.
class Worker {
  public:
    // Only when the one before is done. False: there is no thread for it.
    bool start(std::function<void()> job);
    bool is_busy();

  private:
    void run();

    std::mutex lock_;
    std::condition_variable come_;
    std::function<void()> job_;
    bool has_thread_ = false;
    bool busy_ = false;
};

}  // namespace vramkit::share
