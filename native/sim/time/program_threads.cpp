// Reads from /proc what each thread of the process sleeps on.
#include "sim/time/program_threads.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

namespace vramkit::sim {
namespace {

// System calls that sleep until somebody else does something. Those that sleep for a time and
// nothing else are not here; nor is the wait for a child process, which takes a time of its own.
constexpr long kWaits[] = {
    SYS_futex,        SYS_epoll_pwait, SYS_ppoll,  SYS_pselect6, SYS_read,
    SYS_recvfrom,     SYS_recvmsg,     SYS_accept, SYS_accept4,  SYS_rt_sigtimedwait,
#ifdef SYS_futex_waitv
    SYS_futex_waitv,
#endif
#ifdef SYS_epoll_pwait2
    SYS_epoll_pwait2,
#endif
#ifdef SYS_epoll_wait
    SYS_epoll_wait,
#endif
#ifdef SYS_poll
    SYS_poll,
#endif
#ifdef SYS_select
    SYS_select,
#endif
};

// One thread: its id, and how often it has been put on a processor.
struct Thread {
    long id = 0;
    std::uint64_t turns = 0;
};

// A file of /proc about a thread, as far as it fits the buffer; empty where it cannot be read.
class ThreadFile {
  public:
    ThreadFile(long thread, const char* name) {
        std::array<char, 64> path;
        std::snprintf(path.data(), path.size(), "/proc/self/task/%ld/%s", thread, name);
        const int file = open(path.data(), O_RDONLY | O_CLOEXEC);
        if (file < 0) return;
        const ssize_t got = read(file, text_.data(), text_.size());
        close(file);
        if (got > 0) bytes_ = static_cast<std::size_t>(got);
    }
    std::string_view text() const { return {text_.data(), bytes_}; }

  private:
    std::array<char, 512> text_;
    std::size_t bytes_ = 0;
};

template <class Number>
std::optional<Number> number(std::string_view text) {
    Number value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc{} ? std::optional(value) : std::nullopt;
}

// The third and last figure of schedstat.
std::optional<std::uint64_t> turns_of(long thread) {
    const ThreadFile file(thread, "schedstat");
    std::string_view text = file.text();
    const auto space = text.rfind(' ');
    return space == text.npos ? std::nullopt : number<std::uint64_t>(text.substr(space + 1));
}

// A thread that runs, or could, has "running" there; one that sleeps for the kernel's own reasons
// has -1.
bool sleeps_in_a_wait(long thread) {
    const ThreadFile file(thread, "syscall");
    const auto call = number<long>(file.text());
    return call && std::find(std::begin(kWaits), std::end(kWaits), *call) != std::end(kWaits);
}

// Sleeps, and not for a disk. The state follows the name, which may hold anything.
bool sleeps(long thread) {
    const ThreadFile file(thread, "stat");
    const std::string_view text = file.text();
    const auto name_end = text.rfind(')');
    return name_end != text.npos && text.substr(name_end).starts_with(") S");
}

// All threads of the process but this one.
std::vector<long> other_threads() {
    std::vector<long> found;
    const auto close_folder = [](DIR* open) { closedir(open); };
    const std::unique_ptr<DIR, decltype(close_folder)> folder(opendir("/proc/self/task"));
    if (folder == nullptr) return found;
    const long own = syscall(SYS_gettid);
    while (const dirent* entry = readdir(folder.get())) {
        const auto id = number<long>(entry->d_name);
        if (id && *id != own) found.push_back(*id);
    }
    return found;
}

}  // namespace

// Looks twice. A thread that slept at both looks and had no turn on a processor in between has not
// been woken in between; the moment between the looks is then one at which all slept. One look does
// not tell: a thread seen asleep may be woken by one that is then seen asleep itself.
bool program_waits() {
    const std::vector<long> ids = other_threads();
    if (ids.empty()) return false;
    std::vector<Thread> seen;
    for (const long id : ids) {
        const auto turns = turns_of(id);
        if (!turns || !sleeps_in_a_wait(id)) return false;
        seen.push_back({id, *turns});
    }
    for (const Thread& thread : seen) {
        if (!sleeps(thread.id) || turns_of(thread.id) != thread.turns) return false;
    }
    return other_threads() == ids;
}

}  // namespace vramkit::sim
