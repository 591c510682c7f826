// Threads that are in the same place at once.
#pragma once

#include <atomic>

namespace vramkit::pool {

class Crowd {
  public:
    // The calling thread, as long as this lives.
    class Member {
      public:
        explicit Member(Crowd& crowd)
            : crowd_(crowd), found_(crowd.members_.fetch_add(1, std::memory_order_relaxed)) {}
        ~Member() { crowd_.members_.fetch_sub(1, std::memory_order_relaxed); }
        Member(const Member&) = delete;
        Member& operator=(const Member&) = delete;

        // Other threads were there when this one came, or are there now.
        bool has_company() const {
            return found_ > 0 || crowd_.members_.load(std::memory_order_relaxed) > 1;
        }

      private:
        Crowd& crowd_;
        const int found_;
    };

  private:
    std::atomic<int> members_{0};
};

}  // namespace vramkit::pool
