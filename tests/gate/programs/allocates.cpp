// Linked with libcuda.so.1. Allocates on the simulated GPU; the first argument says how.
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern "C" {
typedef unsigned long long Address;
int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void**, int);
int cuDevicePrimaryCtxRelease_v2(int);
int cuCtxSetCurrent(void*);
int cuCtxSynchronize();
int cuMemAlloc_v2(Address*, size_t);
int cuMemFree_v2(Address);
int cuMemAllocAsync_ptsz(Address*, size_t, void*);
int cuMemFreeAsync_ptsz(Address, void*);
int cuStreamCreate(void**, unsigned);
int cuStreamDestroy_v2(void*);
int cuStreamSynchronize(void*);
int cuStreamSynchronize_ptsz(void*);
int cuMemAllocAsync(Address*, size_t, void*);
int cuMemFreeAsync(Address, void*);
}

static void* context;

static void begin() {
    cuInit(0);
    cuDevicePrimaryCtxRetain(&context, 0);
    cuCtxSetCurrent(context);
}

static void pairs(int count) {
    for (int turn = 0; turn < count; ++turn) {
        Address block = 0;
        if (cuMemAlloc_v2(&block, 4096 * (turn % 7 + 1)) != 0 || cuMemFree_v2(block) != 0) {
            puts("failed");
        }
    }
}

static void* of_thread(void*) {
    cuCtxSetCurrent(context);
    pairs(100);
    return nullptr;
}

static void on_threads(int count) {
    pthread_t threads[64];
    for (int turn = 0; turn < count; ++turn) {
        pthread_create(&threads[turn], nullptr, &of_thread, nullptr);
    }
    for (int turn = 0; turn < count; ++turn) pthread_join(threads[turn], nullptr);
}

static void* default_stream_of_thread(void*) {
    cuCtxSetCurrent(context);
    Address block = 0;
    cuMemAllocAsync_ptsz(&block, 1000, nullptr);
    cuStreamSynchronize_ptsz(nullptr);
    cuMemFreeAsync_ptsz(block, nullptr);
    return nullptr;
}

// Each stream has one block; the driver may give the handle of the first to the second.
static void on_streams() {
    for (int turn = 0; turn < 2; ++turn) {
        void* stream = nullptr;
        Address block = 0;
        cuStreamCreate(&stream, 1);
        cuMemAllocAsync(&block, 2000, stream);
        cuMemFreeAsync(block, stream);
        cuStreamSynchronize(stream);
        cuStreamDestroy_v2(stream);
    }
}

int main(int, char** words) {
    const char* what = words[1];
    if (strcmp(what, "fork_first") == 0) {  // both use the driver, which works in both
        const pid_t child = fork();
        begin();
        pairs(child == 0 ? 2 : 3);
        if (child == 0) _exit(0);
        waitpid(child, nullptr, 0);
        return 0;
    }
    begin();
    if (strcmp(what, "pairs") == 0) {
        Address kept = 0;
        pairs(2);
        cuMemAlloc_v2(&kept, 1 << 20);
        cuCtxSynchronize();
        puts("out");
        fputs("err", stderr);
        return 5;
    }
    if (strcmp(what, "killed") == 0) {
        pairs(5000);
        kill(getpid(), SIGKILL);
    }
    if (strcmp(what, "descriptors") == 0) {  // as daemons do
        pairs(1);
        for (int file = 3; file < 100; ++file) close(file);
        pairs(2000);
    }
    if (strcmp(what, "threads") == 0) on_threads(8);
    if (strcmp(what, "thread_after_thread") == 0) {
        for (int turn = 0; turn < 40; ++turn) on_threads(1);
    }
    if (strcmp(what, "default_streams") == 0) {
        pthread_t thread;
        pthread_create(&thread, nullptr, &default_stream_of_thread, nullptr);
        pthread_join(thread, nullptr);
        default_stream_of_thread(nullptr);
    }
    if (strcmp(what, "streams") == 0) on_streams();
    if (strcmp(what, "released") == 0) {
        Address block = 0;
        cuMemAlloc_v2(&block, 5000);
        cuDevicePrimaryCtxRelease_v2(0);
    }
    if (strcmp(what, "fork_after") == 0) {  // the driver refuses the child; the trace stays whole
        pairs(1);
        const pid_t child = fork();
        if (child == 0) {
            Address block = 0;
            cuMemAlloc_v2(&block, 4096);
            _exit(0);
        }
        waitpid(child, nullptr, 0);
        pairs(2);
    }
    if (strcmp(what, "exec") == 0) {
        pairs(1);
        words[1] = const_cast<char*>("pairs");
        execv(words[0], words);
    }
    return 0;
}
