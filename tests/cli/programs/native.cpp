// Opens libcuda.so.1 by name, as any CUDA program does, and writes one buffer from two streams.
#include <dlfcn.h>

#include <cstdio>
#include <cstring>

static void* library;

template <class Function>
Function* find(const char* name) {
    return reinterpret_cast<Function*>(dlsym(library, name));
}

using Stream = void*;
using Event = void*;
using Address = unsigned long long;

int main(int count, char** arguments) {
    const bool ordered = count > 1 && std::strcmp(arguments[1], "ordered") == 0;
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == nullptr) {
        std::fprintf(stderr, "%s\n", dlerror());
        return 9;
    }
    void* context = nullptr;
    Stream first = nullptr;
    Stream second = nullptr;
    Event event = nullptr;
    Address data = 0;
    find<int(unsigned)>("cuInit")(0);
    find<int(void**, int)>("cuDevicePrimaryCtxRetain")(&context, 0);
    find<int(void*)>("cuCtxSetCurrent")(context);
    find<int(Stream*, unsigned)>("cuStreamCreate")(&first, 1);
    find<int(Stream*, unsigned)>("cuStreamCreate")(&second, 1);
    find<int(Event*, unsigned)>("cuEventCreate")(&event, 0);
    find<int(Address*, size_t)>("cuMemAlloc_v2")(&data, 4096);
    auto* set = find<int(Address, unsigned char, size_t, Stream)>("cuMemsetD8Async");
    set(data, 1, 4096, first);  // first
    if (ordered) {
        find<int(Event, Stream)>("cuEventRecord")(event, first);
        find<int(Stream, Event, unsigned)>("cuStreamWaitEvent")(second, event, 0);
    }
    set(data, 2, 4096, second);  // second
    return find<int()>("cuCtxSynchronize")();
}
