#include "gate/trace_file.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <new>
#include <span>

#include "gate/hooks.h"

namespace vramkit::gate {
namespace {

constexpr const char* kCalls[] = {
#define VRAMKIT_HOOK(base, symbol, since, suffix, when, hook, params) #symbol,
#include "gate/hooks.def"
#undef VRAMKIT_HOOK
};

constexpr std::size_t length_of_calls() {
    std::size_t length = 0;
    for (const char* name : kCalls) length += std::string_view(name).size() + 1;
    return length;
}
static_assert(length_of_calls() <= sizeof TraceHeader::calls, "the header is too small");

enum State : int { none, making, made, failed };

std::uint64_t now(clockid_t clock) {
    timespec time{};
    clock_gettime(clock, &time);
    return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

void append_number(Path& path, long value) {
    char digits[24];
    const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
    path.append({digits, static_cast<std::size_t>(end - digits)});
}

void fill(std::span<char> field, std::string_view text) {
    std::memcpy(field.data(), text.data(), std::min(text.size(), field.size() - 1));
}

void read_command(std::span<char> field) {
    const int file = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    if (read(file, field.data(), field.size() - 1) < 0) field[0] = '\0';
    close(file);
}

void write_header(TraceHeader& header, std::string_view driver) {
    header.process = getpid();
    header.parent = getppid();
    header.start_ns = now(CLOCK_MONOTONIC);
    header.start_unix_ns = now(CLOCK_REALTIME);
    fill(header.driver, driver);
    read_command(header.command);
    std::size_t at = 0;
    for (const std::string_view name : kCalls) {
        std::memcpy(header.calls.data() + at, name.data(), name.size());
        at += name.size() + 1;
    }
}

// Takes space on the disk: a write to a mapped page without any would end the program by SIGBUS.
bool reserve(int file, off_t offset, std::size_t bytes) {
    // Beyond the limit of the user (ulimit -f) the program would be ended by SIGXFSZ.
    rlimit limit{};
    if (getrlimit(RLIMIT_FSIZE, &limit) != 0 ||
        static_cast<rlim_t>(offset) + bytes > limit.rlim_cur) {
        return false;
    }
    if (fallocate(file, 0, offset, static_cast<off_t>(bytes)) == 0) return true;
    // File systems without that call: zeros take the space as well.
    if (errno != EOPNOTSUPP && errno != ENOSYS) return false;
    static constexpr char zeros[4096] = {};
    for (std::size_t done = 0; done < bytes; done += sizeof zeros) {
        if (pwrite(file, zeros, sizeof zeros, offset + static_cast<off_t>(done)) !=
            static_cast<ssize_t>(sizeof zeros)) {
            return false;
        }
    }
    return true;
}

void* map(int file, off_t offset, std::size_t bytes) {
    if (!reserve(file, offset, bytes)) return nullptr;
    void* start = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, offset);
    return start != MAP_FAILED ? start : nullptr;
}

}  // namespace

void TraceFile::set_folder(const char* folder, const char* driver) {
    folder_ = Path(folder);
    driver_ = Path(driver);
    enabled_.store(!folder_.empty(), std::memory_order_release);
}

// A program that is replaced by exec has the same number: the next free name is taken.
bool TraceFile::make() {
    for (long attempt = 0; attempt < 1000; ++attempt) {
        path_ = Path(folder_.view());
        append_number(path_.append("/"), getpid());
        append_number(path_.append("."), attempt);
        path_.append(".gate");
        const int file = open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (file < 0) {
            if (errno == EEXIST) continue;
            return false;
        }
        void* start = map(file, 0, sizeof(TraceHeader));
        close(file);
        if (start == nullptr) return false;
        header_ = new (start) TraceHeader;
        write_header(*header_, driver_.view());
        end_.store(sizeof(TraceHeader), std::memory_order_relaxed);
        return true;
    }
    return false;
}

Record* TraceFile::map_chunk() {
    if (!enabled()) return nullptr;
    int state = State::none;
    if (state_.compare_exchange_strong(state, State::making, std::memory_order_acquire)) {
        state = make() ? State::made : State::failed;
        state_.store(state, std::memory_order_release);
    }
    while (state == State::making) {  // by another thread, a few system calls long
        sched_yield();
        state = state_.load(std::memory_order_acquire);
    }
    if (state != State::made) return nullptr;
    // Opened each time: a program may close descriptors that it does not know, and one of its own
    // files could then have the number of ours.
    const int file = open(path_.c_str(), O_RDWR | O_CLOEXEC);
    const auto offset = static_cast<off_t>(end_.fetch_add(kChunkBytes, std::memory_order_relaxed));
    void* start = file >= 0 ? map(file, offset, kChunkBytes) : nullptr;
    if (file >= 0) close(file);
    if (start == nullptr) header_->incomplete.store(1, std::memory_order_relaxed);
    return static_cast<Record*>(start);
}

void TraceFile::unmap_chunk(Record* end) { munmap(end - kChunkRecords, kChunkBytes); }

void TraceFile::forget() {
    state_.store(State::none, std::memory_order_relaxed);
    header_ = nullptr;
}

}  // namespace vramkit::gate
