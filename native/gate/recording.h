// Recording: what the program allocates, launches and waits for, written by each thread into a
// piece of the trace of its own. No lock and no system call, but for one piece in a thousand
// records.
#pragma once

#include <cstdint>

#include "gate/hooks.h"
#include "gate/trace_record.h"

namespace vramkit::gate {

// Starts where VRAMKIT_GATE_TRACE names a folder. Any thread may call, and again: when it returns,
// is_recording() has its final value.
void start_recording(const char* driver);
bool is_recording();

std::uint64_t time_now();

struct Event {
    Kind kind;
    CallId call;
    CUstream stream = nullptr;  // null: the call takes none
    std::uint64_t object = 0;
    std::uint64_t bytes = 0;
    std::uint64_t context = 0;
    CUresult code = CUDA_SUCCESS;
    bool captured = false;
    // Taken before a call that gives something back, after one that takes it: another thread that
    // gets the same address then comes later.
    std::uint64_t time_ns = 0;  // 0: now
};

// Never fails as far as the caller can see, and keeps errno.
void record(const Event& event);

// One more like one of the last is counted with it: launches, or waits, in a row become one record,
// which costs neither time nor space. The time of the first counts.
void record_repeated(const Event& event);

}  // namespace vramkit::gate
