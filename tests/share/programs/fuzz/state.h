// What a random program has: contexts, streams, blocks of memory and who used them last. It calls
// the driver through note(), which prints what the call returned.
#pragma once

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "driver/cuda_abi.h"

namespace fuzz {

constexpr size_t kPage = size_t{2} << 20;

// Every call that the simulated GPU has, by symbol.
struct Calls {
#define VRAMKIT_CALL(base, symbol, since, need, suffix, params) CUresult(*symbol) params = nullptr;
#include "driver/manifest.def"
#undef VRAMKIT_CALL
};

enum class Lookup { symbols, resolver };

// As programs that link with the driver find their calls, or as the CUDA runtime does.
inline Calls find_calls(bool per_thread, Lookup lookup) {
    using Resolver =
        CUresult(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);
    auto* resolve = reinterpret_cast<Resolver*>(dlsym(RTLD_DEFAULT, "cuGetProcAddress_v2"));
    const auto find = [&](const char* base, const char* symbol, int since, const char* suffix) {
        void* found = nullptr;
        const std::string name = symbol + (per_thread ? std::string("_") + suffix : "");
        if (lookup == Lookup::resolver) {
            const cuuint64_t flags = per_thread ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : 0;
            resolve(base, &found, std::max(since, 7000), flags, nullptr);
        }
        if (found == nullptr) found = dlsym(RTLD_DEFAULT, name.c_str());
        return found != nullptr ? found : dlsym(RTLD_DEFAULT, symbol);
    };
    Calls calls;
#define VRAMKIT_CALL(base, symbol, since, need, suffix, params) \
    calls.symbol = reinterpret_cast<CUresult(*) params>(find(#base, #symbol, since, #suffix));
#include "driver/manifest.def"
#undef VRAMKIT_CALL
    return calls;
}

// A control of the simulated GPU, beneath a gate too.
template <class Function>
Function* control(const char* name) {
    auto* driver = reinterpret_cast<void* (*)(const char**)>(dlsym(RTLD_DEFAULT, "gateDriver"));
    void* library = driver != nullptr ? driver(nullptr) : RTLD_DEFAULT;
    return reinterpret_cast<Function*>(dlsym(library, name));
}

struct Context {
    CUcontext handle;
    int device;
    bool primary, alive;
    CUmodule module;
    CUfunction fill, add, sweep, checksum;
};

// Streams of one lane are the same stream.
struct Stream {
    CUstream handle;
    int context, lane;
    bool own, alive;
};

struct Event {
    CUevent handle;
    int context;
    bool alive, recorded;
};

// The last use of memory: by a stream, by any stream of a context, or nobody that is not done.
struct LastUse {
    int stream = -1, context = -1;
};

enum class Kind { plain, pitched, managed, host, registered, ordered, mapped };

struct Part {
    CUmemGenericAllocationHandle handle;
    size_t offset, bytes;
    bool released;
};

struct Block {
    Kind kind;
    CUdeviceptr address;
    size_t bytes, pitch = 0;
    int context = -1;  // that takes it with it
    int device = 0;
    int pool = -1;
    int use;  // index into uses: blocks at the same memory share one
    int graphs = 0;
    bool alive = true;
    std::vector<Part> parts{};
};

struct Pool {
    CUmemoryPool handle;
    int device;
    bool alive;
};

struct Graph {
    CUgraph graph;
    CUgraphExec executable;
    int context;
    std::vector<int> blocks;
};

struct State {
    State(unsigned seed, const Calls& calls_, bool per_thread_, int devices_, bool alone_)
        : random(seed), calls(calls_), per_thread(per_thread_), devices(devices_), alone(alone_) {}

    std::mt19937 random;
    const Calls& calls;
    const bool per_thread;
    const int devices;
    const bool alone;  // no other thread uses the card
    int step = 0;
    FILE* out = nullptr;

    std::vector<Context> contexts;
    std::vector<Stream> streams;
    std::vector<Event> events;
    std::vector<LastUse> uses;
    std::vector<Block> blocks;
    std::vector<Pool> pools;
    std::vector<Graph> graphs;
    std::vector<int> stack;  // of current contexts

    unsigned pick(unsigned below) { return random() % below; }
    bool one_in(unsigned count) { return pick(count) == 0; }
    int current() const { return stack.empty() ? -1 : stack.back(); }

    __attribute__((format(printf, 2, 3))) void say(const char* format, ...) {
        va_list values;
        va_start(values, format);
        fprintf(out, "%d ", step);
        vfprintf(out, format, values);
        fputc('\n', out);
        va_end(values);
    }
    CUresult note(const char* name, CUresult result) {
        say("%s %d", name, result);
        return result;
    }
    std::string name_of(CUdeviceptr address) const {
        for (size_t index = 0; index < blocks.size(); ++index) {
            const Block& block = blocks[index];
            if (block.alive && address - block.address < block.bytes) {
                return "b" + std::to_string(index) + "+" + std::to_string(address - block.address);
            }
        }
        return address == 0 ? "0" : "elsewhere";
    }
    std::string name_of(CUcontext context) const {
        for (size_t index = 0; index < contexts.size(); ++index) {
            if (contexts[index].alive && contexts[index].handle == context) {
                return "c" + std::to_string(index);
            }
        }
        return context == nullptr ? "none" : "unknown";
    }
};

#define CALL(name, ...) state.note(#name, state.calls.name(__VA_ARGS__))

// Any that is alive and that a test likes; -1: none is.
template <class Things, class Test>
int any(State& state, const Things& things, Test test) {
    std::vector<int> found;
    for (size_t index = 0; index < things.size(); ++index) {
        if (things[index].alive && test(things[index])) found.push_back(static_cast<int>(index));
    }
    return found.empty() ? -1 : found[state.pick(static_cast<unsigned>(found.size()))];
}

inline void make_current(State& state, int context) {
    if (state.current() == context) return;
    if (state.stack.size() < 5 && state.one_in(4)) {
        CALL(cuCtxPushCurrent_v2, state.contexts[context].handle);
        state.stack.push_back(context);
        return;
    }
    CALL(cuCtxSetCurrent, state.contexts[context].handle);
    if (state.stack.empty()) state.stack.push_back(context);
    state.stack.back() = context;
}

// The stream that calls without one use, in the current context.
inline int default_stream(State& state) {
    return any(state, state.streams, [&](const Stream& each) {
        return each.context == state.current() && each.handle == nullptr;
    });
}

// A stream of a device, with its context current; now and then another one is.
inline int any_stream(State& state, int device, bool own_only = false) {
    const int found = any(state, state.streams, [&](const Stream& each) {
        return state.contexts[each.context].device == device && (each.own || !own_only);
    });
    if (found < 0) return -1;
    const Stream& stream = state.streams[found];
    if (!stream.own || !state.one_in(8)) make_current(state, stream.context);
    return found;
}

inline void wait_for_stream(State& state, int stream) {
    if (!state.streams[stream].own) make_current(state, state.streams[stream].context);
    CALL(cuStreamSynchronize, state.streams[stream].handle);
}

inline void wait_for_context(State& state, int context) {
    make_current(state, context);
    CALL(cuCtxSynchronize);
}

// The stream comes behind the last use of the memory, in one of the ways that programs have. The
// context of a default stream is current before and after.
inline void order(State& state, const Block& block, int stream) {
    LastUse& last = state.uses[block.use];
    const LastUse before = last;
    last = {stream, -1};
    state.say("memory %d, stream %d", block.use, stream);
    const int current = state.streams[stream].context;
    if (before.context >= 0) wait_for_context(state, before.context);
    if (before.stream >= 0 && state.streams[before.stream].lane != state.streams[stream].lane) {
        const Stream& from = state.streams[before.stream];
        const int event = any(state, state.events,
                              [&](const Event& each) { return each.context == from.context; });
        const unsigned how = event < 0 ? state.pick(2) : state.pick(6);
        if (how == 0) {
            wait_for_stream(state, before.stream);
        } else if (how == 1) {
            wait_for_context(state, from.context);
        } else {
            if (!from.own) make_current(state, from.context);
            if (state.one_in(4)) {
                CALL(cuEventRecordWithFlags, state.events[event].handle, from.handle, 0);
            } else {
                CALL(cuEventRecord, state.events[event].handle, from.handle);
            }
            state.events[event].recorded = true;
            if (how == 2) {
                CALL(cuEventSynchronize, state.events[event].handle);
            } else {
                if (!state.streams[stream].own) make_current(state, current);
                CALL(cuStreamWaitEvent, state.streams[stream].handle, state.events[event].handle,
                     0);
            }
        }
    }
    if (!state.streams[stream].own) make_current(state, current);
}

inline void wait_for_block(State& state, const Block& block) {
    LastUse& last = state.uses[block.use];
    if (last.context >= 0) wait_for_context(state, last.context);
    if (last.stream >= 0) wait_for_stream(state, last.stream);
    last = {};
}

inline void wait_for_all(State& state) {
    for (size_t index = 0; index < state.contexts.size(); ++index) {
        if (state.contexts[index].alive) wait_for_context(state, static_cast<int>(index));
    }
    for (const Block& block : state.blocks) {
        if (block.alive) state.uses[block.use] = {};
    }
}

inline int any_block(State& state, int device) {
    return any(state, state.blocks, [&](const Block& each) { return each.device == device; });
}

// A part of a block that begins and ends at words.
struct Range {
    CUdeviceptr address;
    size_t bytes;
};

inline Range any_range(State& state, const Block& block) {
    if (block.bytes < 8 || state.one_in(3)) return {block.address, block.bytes & ~size_t{3}};
    const size_t begin = state.random() % (block.bytes / 4);
    const size_t words = state.random() % (block.bytes / 4 - begin) + 1;
    return {block.address + begin * 4, words * 4};
}

inline unsigned long long hash(const void* data, size_t bytes) {
    unsigned long long value = 14695981039346656037ULL;
    const auto* each = static_cast<const unsigned char*>(data);
    for (size_t index = 0; index < bytes; ++index) value = (value ^ each[index]) * 1099511628211ULL;
    return value;
}

}  // namespace fuzz
