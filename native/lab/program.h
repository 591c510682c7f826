// A program of allocations, streams and threads as a player needs it: src/vramkit/lab/program.py
// says what a program is.
//
// Columns come from anywhere and are checked wholly here, so that a player trusts every number:
//
// 1. every index is in range; each block is allocated once, freed once after it, and written
// between;
// 2. SECTION stands once for each thread, all of them one after the other;
// 3. a mutex that is held is not locked again by its thread, and is let go of in the end;
// 4. threads that go on by themselves wait for nobody while they hold the mutex, and otherwise only
//    for what is earlier in the order of the steps; threads that take turns lock in that order. So
//    no program that passes can come to a stand.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/failure.h"

namespace vramkit::lab {

// As in src/vramkit/lab/program.py; a test compares them.
enum class Op : std::uint8_t {
    allocate,
    free,
    touch,
    kernel,
    record,
    wait,
    wait_for_event,
    wait_for_stream,
    wait_for_device,
    lock,
    unlock,
    section,
};
inline constexpr unsigned kOps = 12;
inline constexpr std::int32_t kOwnStream = -1;

// What a step has to do with other threads. In turns: whether it begins a run of steps of its
// thread, and whether it ends one. Else: how often its block or event must have been told of
// before, and whether it tells of it.
struct Sync {
    std::uint32_t after : 31 = 0;
    std::uint32_t tells : 1 = 0;

    bool any() const { return after != 0 || tells != 0; }
};

struct Step {
    std::int64_t what = 0;
    std::int32_t where = 0;
    std::uint32_t index = 0;  // in the program
    Sync sync;
    Op op = Op::allocate;
};

struct Columns {
    std::span<const std::uint8_t> ops;
    std::span<const std::uint16_t> threads;
    std::span<const std::int64_t> what;
    std::span<const std::int32_t> where;
    std::span<const std::int64_t> sizes;
    std::uint32_t streams = 0, events = 0, thread_count = 0, sections = 0;
    bool in_turns = false;
};

struct Program {
    // None and the reason for what is no program. Takes about 30 ns a step.
    static std::optional<Program> make(const Columns& columns, Failure& why);

    std::vector<std::vector<Step>> threads;
    std::vector<std::uint64_t> sizes;
    std::uint32_t streams = 0, events = 0, sections = 0;
    bool in_turns = false;
    bool shares = false;  // some block or event is of more than one thread, and not in turns

    // Of what a step of a shared block or event tells.
    std::size_t slot(const Step& step) const {
        const bool block = step.op <= Op::touch;
        return static_cast<std::size_t>(step.what) + (block ? 0 : sizes.size());
    }
    std::size_t slots() const { return shares ? sizes.size() + events : 0; }
};

}  // namespace vramkit::lab
