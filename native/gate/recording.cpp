#include "gate/recording.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <array>

#include "gate/trace_file.h"

namespace vramkit::gate {
namespace {

// The rest of a chunk: it ends where the chunk ends.
struct Room {
    Record* next = nullptr;
    Record* end = nullptr;

    bool empty() const { return next == end; }
};

// A thread's own: no other reads it. Without a destructor, so that calls from destructors of the
// program are recorded too.
struct Writer {
    Room room;
    Record* row = nullptr;  // the first of the last records, all of one kind that repeats itself
    std::uint32_t thread = 0;
    bool given_up = false;
};

constinit thread_local Writer writer;

// What threads that ended have left of their chunks. Nobody waits for it: a thread that finds it
// busy maps a chunk or leaves its room unused.
class Leftovers {
  public:
    // Whether it was taken.
    bool put(Room room) {
        if (busy_.test_and_set(std::memory_order_acquire)) return false;
        const bool fits = count_ < rooms_.size();
        if (fits) rooms_[count_++] = room;
        busy_.clear(std::memory_order_release);
        return fits;
    }
    Room take() {
        if (busy_.test_and_set(std::memory_order_acquire)) return {};
        const Room room = count_ > 0 ? rooms_[--count_] : Room{};
        busy_.clear(std::memory_order_release);
        return room;
    }
    void forget() {
        count_ = 0;
        busy_.clear(std::memory_order_relaxed);
    }

  private:
    std::atomic_flag busy_;
    std::size_t count_ = 0;
    std::array<Room, 64> rooms_;
};

// Without destructors, as threads record until the process is gone.
constinit TraceFile file;
constinit Leftovers leftovers;
pthread_key_t thread_end;

enum Start { not_started, starting, started };
std::atomic<int> start{not_started};

void at_thread_end(void*) {
    const Room room = writer.room;
    writer = Writer{};
    if (room.end == nullptr) return;
    if (room.empty() || !leftovers.put(room)) TraceFile::unmap_chunk(room.end);
}

// The child has this thread alone, and all of the parent's memory: chunks that are the parent's.
void in_forked_child() {
    writer = Writer{};
    leftovers.forget();
    file.forget();
}

bool find_room() {
    const int error = errno;
    writer.row = nullptr;
    if (writer.room.end != nullptr) TraceFile::unmap_chunk(writer.room.end);
    writer.room = leftovers.take();
    if (writer.room.empty()) {
        Record* chunk = file.map_chunk();
        writer.room = {chunk, chunk != nullptr ? chunk + kChunkRecords : nullptr};
    }
    if (writer.room.empty()) {
        writer.given_up = true;  // the disk is full: not to be tried at every call
    } else if (writer.thread == 0) {
        writer.thread = static_cast<std::uint32_t>(syscall(SYS_gettid));
        pthread_setspecific(thread_end, &writer);
    }
    errno = error;
    return !writer.given_up;
}

// The order of the stores is that of the reader: a kind that is set says that the rest is there,
// even if the program is killed between the two.
bool write(const Event& event) {
    if (writer.room.empty() && (writer.given_up || !find_room())) return false;
    Record& record = *writer.room.next++;
    record.time_ns = event.time_ns != 0 ? event.time_ns : time_now();
    record.stream = reinterpret_cast<std::uint64_t>(event.stream);
    record.object = event.object;
    record.bytes = event.bytes;
    record.context = event.context;
    record.thread = writer.thread;
    record.count = 1;
    record.code = event.code;
    record.call = static_cast<std::uint16_t>(2 * number(event.call.name) + event.call.per_thread);
    record.captured = event.captured;
    record.kind.store(static_cast<std::uint8_t>(event.kind), std::memory_order_release);
    return true;
}

bool same_kind(const Record& record, const Event& event) {
    return record.kind.load(std::memory_order_relaxed) == static_cast<std::uint8_t>(event.kind);
}

bool same(const Record& record, const Event& event) {
    return record.stream == reinterpret_cast<std::uint64_t>(event.stream) &&
           record.object == event.object && record.count != UINT32_MAX &&
           record.call == 2 * number(event.call.name) + event.call.per_thread;
}

}  // namespace

void start_recording(const char* driver) {
    int state = not_started;
    if (start.compare_exchange_strong(state, starting, std::memory_order_acquire)) {
        const char* folder = secure_getenv("VRAMKIT_GATE_TRACE");
        if (folder != nullptr && pthread_key_create(&thread_end, &at_thread_end) == 0) {
            pthread_atfork(nullptr, nullptr, &in_forked_child);
            file.set_folder(folder, driver);
        }
        start.store(started, std::memory_order_release);
    }
    while (start.load(std::memory_order_acquire) != started) sched_yield();  // by another thread
}

bool is_recording() { return file.enabled(); }

std::uint64_t time_now() {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

void record(const Event& event) {
    writer.row = nullptr;
    write(event);
}

void record_repeated(const Event& event) {
    // A program that goes round a few streams still has few records.
    constexpr std::ptrdiff_t kFewRecords = 8;
    // Kinds do not mix: a launch after a wait may not be counted with those before it.
    if (writer.row != nullptr && !same_kind(*writer.row, event)) writer.row = nullptr;
    if (writer.row != nullptr) {
        Record* const end = writer.room.next;
        Record* const start = end - writer.row > kFewRecords ? end - kFewRecords : writer.row;
        for (Record* known = end; known-- != start;) {
            if (!same(*known, event)) continue;
            ++known->count;
            return;
        }
    }
    if (write(event) && writer.row == nullptr) writer.row = writer.room.next - 1;
}

}  // namespace vramkit::gate
