// The count of forks.
#include "base/fork.h"

#include <pthread.h>

namespace vramkit {

std::atomic<int> detail::forks{0};

void watch_forks() {
    static const int once = pthread_atfork(
        nullptr, nullptr, [] { detail::forks.fetch_add(1, std::memory_order_relaxed); });
    static_cast<void>(once);
}

}  // namespace vramkit
