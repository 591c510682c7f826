// A library that stands in for the driver: it takes arguments of many kinds, and gives out
// functions by cuGetProcAddress that are not those that it exports, as a driver may.
#include <sched.h>
#include <stddef.h>
#include <string.h>

struct Wide {  // too large for registers
    double first;
    long second;
    float third[5];
};

namespace {

typedef unsigned long long Address;

// Which function was called can be told from the address that it gives.
int allocate(Address* pointer, Address address) {
    *pointer = address;
    return 0;
}
int given_alloc(Address* pointer, size_t) { return allocate(pointer, 0x2000); }
int newer_alloc(Address* pointer, size_t, long) { return allocate(pointer, 0x3000); }
int given_async(Address* pointer, size_t, void*) { return allocate(pointer, 0x5000); }
int given_async_ptsz(Address* pointer, size_t, void*) { return allocate(pointer, 0x6000); }
int unknown_call() { return 77; }

constexpr int kVersion = 14000;

struct Given {
    const char* name;
    int since;
    bool per_thread;
    void* function;
};

extern "C" int cuMemAlloc_v2(Address* pointer, size_t);

const Given kGiven[] = {
    {"cuRenamedAlloc", 12000, false, (void*)&cuMemAlloc_v2},
    {"cuMemAlloc", 14000, false, (void*)&newer_alloc},
    {"cuMemAlloc", 3020, false, (void*)&given_alloc},
    {"cuMemAllocAsync", 11020, true, (void*)&given_async_ptsz},
    {"cuMemAllocAsync", 11020, false, (void*)&given_async},
    {"cuOfTheFuture", 13000, false, (void*)&unknown_call},
};

int find(const char* name, void** function, int version, unsigned long long flags, int* status) {
    if (version > kVersion) return 1;
    *function = nullptr;
    bool known = false;
    for (const Given& given : kGiven) {
        if (strcmp(given.name, name) != 0) continue;
        known = true;
        if (given.since > version || (given.per_thread && flags != 2)) continue;
        *function = given.function;
        break;
    }
    if (status != nullptr) *status = *function != nullptr ? 0 : known ? 2 : 1;
    return *function != nullptr || status != nullptr ? 0 : 500;
}

int calls = 0;
int frees = 0;
bool held_back = false;
void* captured = nullptr;

// Runs while the gate opens this library, in the middle of the program's first call.
__attribute__((constructor)) void overwrite_registers() {
#if defined(__x86_64__)
    asm volatile(
        "pcmpeqd %%xmm0, %%xmm0; pcmpeqd %%xmm1, %%xmm1; pcmpeqd %%xmm2, %%xmm2;"
        "pcmpeqd %%xmm3, %%xmm3; pcmpeqd %%xmm4, %%xmm4; pcmpeqd %%xmm5, %%xmm5;"
        "pcmpeqd %%xmm6, %%xmm6; pcmpeqd %%xmm7, %%xmm7;"
        "xor %%edi, %%edi; xor %%esi, %%esi; xor %%edx, %%edx; xor %%ecx, %%ecx;"
        "xor %%r8d, %%r8d; xor %%r9d, %%r9d; xor %%eax, %%eax" ::
            : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "rdi", "rsi", "rdx",
              "rcx", "r8", "r9", "rax");
#endif
}

}  // namespace

extern "C" {

int cuInit(unsigned) { return 0; }
int cuCtxGetCurrent(void** context) {
    *context = nullptr;
    return 0;
}
int cuMemAlloc_v2(Address* pointer, size_t) { return allocate(pointer, 0x1000); }
int cuMemAllocAsync(Address* pointer, size_t, void*) { return allocate(pointer, 0x4000); }
// The address is free at once, but the call returns only when cuProfilerStop says so, if that was
// asked for by cuProfilerStart.
int cuMemFree_v2(Address) {
    __atomic_add_fetch(&frees, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&held_back, __ATOMIC_SEQ_CST)) sched_yield();
    return 0;
}
int cuProfilerStart() { return __atomic_store_n(&held_back, true, __ATOMIC_SEQ_CST), 0; }
int cuProfilerStop() { return __atomic_store_n(&held_back, false, __ATOMIC_SEQ_CST), 0; }
int cuDeviceGetCount(int* count) { return *count = __atomic_load_n(&frees, __ATOMIC_SEQ_CST), 0; }

// One stream can be captured.
int cuStreamBeginCapture_v2(void* stream, int) { return captured = stream, 0; }
int cuStreamIsCapturing(void* stream, int* status) { return *status = stream == captured, 0; }
int cuMemFreeAsync(Address, void*) { return 0; }
int cuEventRecord(void*, void*) { return 0; }
int cuStreamSynchronize(void*) { return 0; }
int cuMemAllocPitch_v2(Address* pointer, size_t* pitch, size_t, size_t, unsigned) {
    *pitch = 512;
    return allocate(pointer, 0x7000);
}
int cuMemAllocManaged(Address* pointer, size_t bytes, unsigned) {
    return bytes == 0 ? 2 : allocate(pointer, 0x8000);
}
int cuLaunchKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                   void*, void**, void**) {
    return ++calls, 0;
}
int cuLaunchCooperativeKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                              unsigned, void*, void**) {
    return ++calls, 0;
}
int cuGetProcAddress(const char* name, void** function, int version, unsigned long long flags) {
    return find(name, function, version, flags, nullptr);
}
int cuGetProcAddress_v2(const char* name, void** function, int version, unsigned long long flags,
                        int* status) {
    return find(name, function, version, flags, status);
}
int cuGetExportTable(const void** table, const void* id) {
    *table = id;
    return 55;
}

// Names of the list with parameters of our own: more of each kind than there are registers for.
long cuArray3DCreate(long a, int b, short c, signed char d, long e, void* f, long g, int h,
                     double i, float j, double k, double l, double m, double n, double o, double p,
                     double q, float r, Wide w) {
    return a == -1 && b == 2 && c == -3 && d == 4 && e == 1L << 60 && g == 7 && h == -8 &&
                   i == 0.5 && j == 1.5f && k == 2.5 && l == 3.5 && m == 4.5 && n == 5.5 &&
                   o == 6.5 && p == 7.5 && q == 8.5 && r == 9.5f && w.first == 10.5 &&
                   w.second == 11 && w.third[4] == 12.5f
               ? (long)f
               : -1;
}
double cuArrayCreate(double a, float b) { return a + b; }
Wide cuArrayDestroy(long a) { return {1.0, a, {0, 0, 0, 0, 2.0f}}; }
}
