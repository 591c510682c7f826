// Asks the system for pages in several threads at once.
#include "swap/populate.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <system_error>
#include <thread>
#include <vector>

#include "base/sizes.h"

#ifndef MADV_POPULATE_WRITE  // Linux 5.14
#define MADV_POPULATE_WRITE 23
#endif

namespace vramkit::swap {
namespace {

constexpr std::uint64_t kSmallPage = 4096;

bool populate_part(std::byte* data, std::uint64_t bytes) {
    for (;;) {
        if (::madvise(data, bytes, MADV_POPULATE_WRITE) == 0) return true;
        if (errno == EINVAL) break;  // an older system
        if (errno != EINTR && errno != EAGAIN) return false;
    }
    for (std::uint64_t at = 0; at < bytes; at += kSmallPage) {
        *const_cast<volatile std::byte*>(data + at) = std::byte{0};
    }
    return true;
}

}  // namespace

bool populate(std::byte* data, std::uint64_t bytes, unsigned threads) {
    if (threads == 0) return true;
    const std::uint64_t part = round_up((bytes + threads - 1) / threads, kPage);
    std::atomic<bool> done{true};
    std::vector<std::thread> running;
    running.reserve(threads);
    for (std::uint64_t at = 0; at < bytes; at += part) {
        const std::uint64_t own = std::min(part, bytes - at);
        const auto work = [&done, begin = data + at, own] {
            if (!populate_part(begin, own)) done = false;
        };
        try {
            if (at + own < bytes) {
                running.emplace_back(work);
                continue;
            }
        } catch (const std::system_error&) {  // no more threads: this one does it
        }
        work();
    }
    for (std::thread& thread : running) thread.join();
    return done;
}

}  // namespace vramkit::swap
