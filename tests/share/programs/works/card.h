// The card as these programs use it: the driver's calls, kernels, blocks of memory and their sums.
#pragma once

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

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
#define VRAMKIT_FIND_required(symbol, suffix) \
    find(call.symbol, #symbol, VRAMKIT_FORM_##suffix(symbol));
#define VRAMKIT_FIND_optional(symbol, suffix) VRAMKIT_FIND_required(symbol, suffix)
#define VRAMKIT_FIND_answered(symbol, suffix)
#define VRAMKIT_CALL(base, symbol, since, need, suffix, params) VRAMKIT_FIND_##need(symbol, suffix)
#include "driver/manifest.def"
}

template <class Function>
Function* other(const char* name) {
    return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

// Of stream capture, which the table of calls does not have.
struct GraphCalls {
    CUresult (*begin_capture)(CUstream, CUstreamCaptureMode) =
        other<CUresult(CUstream, CUstreamCaptureMode)>("cuStreamBeginCapture_v2");
    CUresult (*end_capture)(CUstream,
                            CUgraph*) = other<CUresult(CUstream, CUgraph*)>("cuStreamEndCapture");
    CUresult (*instantiate)(CUgraphExec*, CUgraph, unsigned long long) =
        other<CUresult(CUgraphExec*, CUgraph, unsigned long long)>("cuGraphInstantiateWithFlags");
    CUresult (*replay)(CUgraphExec,
                       CUstream) = other<CUresult(CUgraphExec, CUstream)>("cuGraphLaunch");
};

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

CUmemAllocationProp plain_kind() {
    CUmemAllocationProp kind{};
    kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    kind.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    return kind;
}

Block map(size_t pages, const CUmemAllocationProp& kind = plain_kind()) {
    Block block{0, pages * kPage, true, {}};
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

thread_local CUdeviceptr out = 0;  // of sum()

unsigned long long sum(const Block& block, CUstream stream) {
    if (out == 0) CALL(cuMemAlloc_v2, &out, 8);
    unsigned long long result = 0;
    CALL(cuMemsetD8Async, out, 0, 8, stream);
    launch(checksum, stream, block.address, block.bytes / 4, out);
    CALL(cuMemcpyDtoHAsync_v2, &result, out, 8, stream);
    CALL(cuStreamSynchronize, stream);
    return result;
}

}  // namespace
