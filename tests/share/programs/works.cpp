// Linked with libcuda.so.1. Works on the card in ways that programs have, and prints what came out:
// the same however often its memory leaves the card and comes back.
//   works KIND [STEPS]
//   works rounds MIB COUNT
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>
#include <string>
#include <vector>

#include "driver/table.h"

namespace {

using Words = std::vector<unsigned>;
constexpr size_t kPage = size_t{2} << 20;

vramkit::DriverTable call;
CUcontext context;
CUmodule module_;
CUfunction fill, add, sweep, checksum;

void check(CUresult result, const char* what) {
    if (result == CUDA_SUCCESS) return;
    printf("%s: %d\n", what, result);
    fflush(stdout);
    _exit(3);
}
#define CALL(name, ...) check(call.name(__VA_ARGS__), #name)

template <class Function>
void find(Function& field, const char* name, const char* per_thread) {
    void* function = per_thread != nullptr ? dlsym(RTLD_DEFAULT, per_thread) : nullptr;
    if (function == nullptr) function = dlsym(RTLD_DEFAULT, name);
    field = reinterpret_cast<Function>(function);
}

// With per-thread default streams as a program that is compiled for them calls.
void find_calls(bool per_thread) {
#define VRAMKIT_FORM_none(symbol) nullptr
#define VRAMKIT_FORM_ptsz(symbol) per_thread ? #symbol "_ptsz" : nullptr
#define VRAMKIT_FORM_ptds(symbol) per_thread ? #symbol "_ptds" : nullptr
#define VRAMKIT_FIND_required(symbol, suffix) find(call.symbol, #symbol, VRAMKIT_FORM_##suffix(symbol));
#define VRAMKIT_FIND_optional(symbol, suffix) VRAMKIT_FIND_required(symbol, suffix)
#define VRAMKIT_FIND_answered(symbol, suffix)
#define VRAMKIT_CALL(base, symbol, since, need, suffix, params) VRAMKIT_FIND_##need(symbol, suffix)
#include "driver/manifest.def"
}

template <class Function>
Function* other(const char* name) {
    return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

void begin() {
    CALL(cuInit, 0);
    CALL(cuDevicePrimaryCtxRetain, &context, 0);
    CALL(cuCtxSetCurrent, context);
    FILE* file = fopen(getenv("KERNELS"), "r");
    static char text[1 << 20];
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    CALL(cuModuleLoadData, &module_, text);
    CALL(cuModuleGetFunction, &fill, module_, "vk_fill");
    CALL(cuModuleGetFunction, &add, module_, "vk_add");
    CALL(cuModuleGetFunction, &sweep, module_, "vk_sweep");
    CALL(cuModuleGetFunction, &checksum, module_, "vk_checksum");
}

template <class... Arguments>
void launch(CUfunction function, CUstream stream, Arguments... arguments) {
    unsigned long long values[] = {static_cast<unsigned long long>(arguments)...};
    void* parameters[sizeof...(arguments)];
    for (size_t i = 0; i < sizeof...(arguments); ++i) parameters[i] = &values[i];
    CALL(cuLaunchKernel, function, 2, 1, 1, 128, 1, 1, 0, stream, parameters, nullptr);
}

struct Block {
    CUdeviceptr address;
    size_t bytes;
    bool mapped;  // by the program itself, in handles of 2 MiB
    std::vector<CUmemGenericAllocationHandle> handles;
};

Block allocate(size_t bytes) {
    Block block{0, bytes, false, {}};
    CALL(cuMemAlloc_v2, &block.address, bytes);
    return block;
}

Block map(size_t pages) {
    Block block{0, pages * kPage, true, {}};
    CUmemAllocationProp kind{};
    kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    kind.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUmemAccessDesc access{kind.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CALL(cuMemAddressReserve, &block.address, block.bytes, 0, 0, 0);
    for (size_t page = 0; page < pages; ++page) {
        CUmemGenericAllocationHandle handle;
        CALL(cuMemCreate, &handle, kPage, &kind, 0);
        CALL(cuMemMap, block.address + page * kPage, kPage, 0, handle, 0);
        block.handles.push_back(handle);
    }
    CALL(cuMemSetAccess, block.address, block.bytes, &access, 1);
    return block;
}

void give_back(Block& block) {
    if (!block.mapped) {
        CALL(cuMemFree_v2, block.address);
        return;
    }
    CALL(cuMemUnmap, block.address, block.bytes);
    for (auto handle : block.handles) CALL(cuMemRelease, handle);
    CALL(cuMemAddressFree, block.address, block.bytes);
}

unsigned long long sum(const Block& block, CUstream stream) {
    static thread_local CUdeviceptr out = 0;
    if (out == 0) CALL(cuMemAlloc_v2, &out, 8);
    unsigned long long result = 0;
    CALL(cuMemsetD8Async, out, 0, 8, stream);
    launch(checksum, stream, block.address, block.bytes / 4, out);
    CALL(cuMemcpyDtoHAsync_v2, &result, out, 8, stream);
    CALL(cuStreamSynchronize, stream);
    return result;
}

// Random work in one stream of each thread: what each block has is known only to the card.
void at_random(unsigned seed, int steps, bool own_memory, std::string& said) {
    std::mt19937 random(seed);
    CUstream stream = nullptr;
    if (seed % 2 == 0) CALL(cuStreamCreateWithPriority, &stream, CU_STREAM_NON_BLOCKING, 0);
    std::vector<Block> blocks;
    const auto any = [&]() -> Block& { return blocks[random() % blocks.size()]; };
    for (int step = 0; step < steps; ++step) {
        const unsigned what = blocks.size() < 2 ? 0 : random() % 12;
        if (what < 2 && blocks.size() < 12) {
            const size_t bytes = (random() % 64 + 1) * (random() % 3 == 0 ? 256 << 10 : 512);
            blocks.push_back(own_memory && random() % 2 == 0 ? map(random() % 3 + 1)
                                                             : allocate(bytes));
            Block& made = blocks.back();
            launch(fill, stream, made.address, made.bytes / 4, random());
        } else if (what < 5) {
            Block& to = any();
            const Block &one = any(), &two = any();
            size_t bytes = to.bytes;
            if (one.bytes < bytes) bytes = one.bytes;
            if (two.bytes < bytes) bytes = two.bytes;
            launch(add, stream, to.address, one.address, two.address, bytes / 4);
        } else if (what < 6) {
            Block& to = any();
            launch(sweep, stream, to.address, to.bytes / 4, random() % 3 + 1);
        } else if (what < 7) {
            Block& to = any();
            CALL(cuMemsetD32Async, to.address, random(), to.bytes / 8, stream);
        } else if (what < 8) {
            Block& to = any();
            Words words(to.bytes / 8, random());
            CALL(cuMemcpyHtoDAsync_v2, to.address, words.data(), words.size() * 4, stream);
            CALL(cuStreamSynchronize, stream);
        } else if (what < 9) {
            Block &to = any(), &from = any();
            const size_t bytes = to.bytes < from.bytes ? to.bytes : from.bytes;
            if (&to != &from) CALL(cuMemcpyDtoDAsync_v2, to.address, from.address, bytes, stream);
        } else if (what < 11) {
            char text[32];
            snprintf(text, sizeof text, "%llx\n", sum(any(), stream));
            said += text;
        } else {
            const size_t index = random() % blocks.size();
            CALL(cuStreamSynchronize, stream);  // that cuMemFree waits is not documented
            give_back(blocks[index]);
            blocks.erase(blocks.begin() + index);
        }
    }
    for (Block& block : blocks) {
        char text[32];
        snprintf(text, sizeof text, "%llx\n", sum(block, stream));
        said += text;
        give_back(block);
    }
    CALL(cuStreamSynchronize, stream);
}

// A graph that adds, replayed among other work; its memory stays where it was captured.
void graphs(int steps) {
    auto* begin_capture = other<CUresult(CUstream, CUstreamCaptureMode)>("cuStreamBeginCapture_v2");
    auto* end_capture = other<CUresult(CUstream, CUgraph*)>("cuStreamEndCapture");
    auto* instantiate =
        other<CUresult(CUgraphExec*, CUgraph, unsigned long long)>("cuGraphInstantiateWithFlags");
    auto* replay = other<CUresult(CUgraphExec, CUstream)>("cuGraphLaunch");
    CUstream stream, beside;
    CALL(cuStreamCreateWithPriority, &stream, CU_STREAM_NON_BLOCKING, 0);
    CALL(cuStreamCreateWithPriority, &beside, CU_STREAM_NON_BLOCKING, 0);
    Block one = allocate(3 << 20), two = allocate(1 << 20), apart = allocate(1 << 20);
    launch(fill, stream, one.address, one.bytes / 4, 1);
    launch(fill, stream, two.address, two.bytes / 4, 5);
    launch(fill, beside, apart.address, apart.bytes / 4, 7);
    CUgraph graph;
    CUgraphExec executable;
    check(begin_capture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), "cuStreamBeginCapture");
    for (int turn = 0; turn < 20; ++turn) {
        launch(add, stream, one.address, one.address, two.address, two.bytes / 4);
        CALL(cuMemcpyDtoDAsync_v2, one.address + two.bytes, one.address, two.bytes, stream);
        launch(sweep, beside, apart.address, apart.bytes / 4, 1);  // not part of the graph
    }
    check(end_capture(stream, &graph), "cuStreamEndCapture");
    check(instantiate(&executable, graph, 0), "cuGraphInstantiate");
    for (int step = 0; step < steps; ++step) check(replay(executable, stream), "cuGraphLaunch");
    printf("%llx %llx %llx\n", sum(one, stream), sum(two, stream), sum(apart, beside));
}

// Allocations that other contexts take with them, and what is asked about addresses.
void contexts() {
    auto* create = other<CUresult(CUcontext*, unsigned, CUdevice)>("cuCtxCreate_v2");
    auto* destroy = other<CUresult(CUcontext)>("cuCtxDestroy_v2");
    auto* range = other<CUresult(CUdeviceptr*, size_t*, CUdeviceptr)>("cuMemGetAddressRange_v2");
    size_t before = 0, during = 0, after = 0, total = 0;
    CALL(cuMemGetInfo_v2, &before, &total);
    CUcontext second;
    check(create(&second, 0, 0), "cuCtxCreate");
    Block block = allocate(32 << 20);
    CUcontext owner;
    CUdeviceptr base;
    size_t bytes;
    unsigned type = 0;
    CALL(cuPointerGetAttribute, &owner, CU_POINTER_ATTRIBUTE_CONTEXT, block.address + 100);
    CALL(cuPointerGetAttribute, &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, block.address);
    check(range(&base, &bytes, block.address + 12345), "cuMemGetAddressRange");
    printf("%d %u %d %zu\n", owner == second, type, base == block.address, bytes);
    CALL(cuMemGetInfo_v2, &during, &total);
    check(destroy(second), "cuCtxDestroy");
    CALL(cuCtxSetCurrent, context);
    CALL(cuMemGetInfo_v2, &after, &total);
    printf("%zu %d\n", before - during, before == after);
    printf("%d\n", call.cuMemFree_v2(block.address));
}

void out_of_memory() {
    size_t free = 0, total = 0;
    CALL(cuMemGetInfo_v2, &free, &total);
    CUdeviceptr address = 0;
    printf("%d %d\n", call.cuMemAlloc_v2(&address, total + 1), call.cuMemAlloc_v2(&address, 0));
    CALL(cuMemAlloc_v2, &address, free / 2);
    CUdeviceptr second = 0;
    printf("%d\n", call.cuMemAlloc_v2(&second, free / 4 * 3));
    CALL(cuMemFree_v2, address);
    CALL(cuMemAlloc_v2, &second, free / 4 * 3);
    CALL(cuMemFree_v2, second);
    printf("%d\n", call.cuMemFree_v2(second));
}

struct Thread {
    pthread_t id;
    unsigned seed;
    int steps;
    std::string said;
};

void* of_thread(void* given) {
    auto* thread = static_cast<Thread*>(given);
    CALL(cuCtxSetCurrent, context);
    at_random(thread->seed, thread->steps, true, thread->said);
    return nullptr;
}

void threads(int count, int steps) {
    std::vector<Thread> all(count);
    for (int index = 0; index < count; ++index) {
        all[index].seed = index;
        all[index].steps = steps;
        pthread_create(&all[index].id, nullptr, &of_thread, &all[index]);
    }
    for (Thread& each : all) {
        pthread_join(each.id, nullptr);
        fputs(each.said.c_str(), stdout);
    }
}

// Works on so many MiB until it has made so many rounds: what comes out says how many those were.
void rounds(int mebibytes, int count) {
    CUstream stream;
    CALL(cuStreamCreateWithPriority, &stream, CU_STREAM_NON_BLOCKING, 0);
    std::vector<Block> blocks;
    for (int index = 0; index < 4; ++index) {
        blocks.push_back(allocate((size_t(mebibytes) << 20) / 4));
        launch(fill, stream, blocks.back().address, blocks.back().bytes / 4, index);
    }
    puts("begins");
    fflush(stdout);
    for (int round = 0; round < count; ++round) {
        const size_t words = blocks[0].bytes / 4;
        for (int index = 0; index < 4; ++index) {
            launch(add, stream, blocks[index].address, blocks[index].address,
                   blocks[(index + 1) % 4].address, words);
        }
        CALL(cuStreamSynchronize, stream);
    }
    for (Block& block : blocks) {
        printf("%llx\n", sum(block, stream));
        give_back(block);
    }
}

}  // namespace

int main(int count, char** words) {
    const std::string kind = words[1];
    const int steps = count > 2 ? atoi(words[2]) : 300;
    find_calls(kind == "per_thread_streams");
    if (kind == "fork_first") {
        if (fork() == 0) return 0;
        wait(nullptr);
    }
    begin();
    std::string said;
    if (kind == "memory" || kind == "fork_first") at_random(2, steps, false, said);
    if (kind == "mappings") at_random(4, steps, true, said);
    if (kind == "default_stream") at_random(1, steps, true, said);
    if (kind == "threads" || kind == "per_thread_streams") threads(4, steps);
    if (kind == "graphs") graphs(steps);
    if (kind == "rounds") rounds(steps, atoi(words[3]));
    if (kind == "contexts") contexts();
    if (kind == "out_of_memory") out_of_memory();
    if (kind == "fork_after") {
        at_random(2, steps, false, said);
        const pid_t child = fork();
        if (child == 0) {
            CUdeviceptr address = 0;
            const bool refused = call.cuMemAlloc_v2(&address, 4096) != CUDA_SUCCESS;
            _exit(refused ? 0 : 1);
        }
        int status = 0;
        waitpid(child, &status, 0);
        printf("child %d\n", status);
        at_random(6, steps, false, said);
    }
    if (kind == "exec") {
        at_random(2, 10, false, said);
        words[1] = const_cast<char*>("memory");
        execv(words[0], words);
    }
    fputs(said.c_str(), stdout);
    return 0;
}
