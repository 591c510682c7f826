// Linked with libcuda.so.1. Works on the card in ways that programs have, and prints what came out:
// the same however often its memory leaves the card and comes back.
//   works KIND [STEPS]
//   works rounds MIB COUNT    also: leaves (with its memory in use), resets (its context, between
//   works grows MIB COUNT     two times of it), grows (one allocation after the other), spins,
//                             exports (gives its memory to other processes), preallocates
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "works/card.h"
#include "works/exports.h"
#include "works/memory.h"
#include "works/pools.h"
#include "works/stream_ordered.h"
#include "works/turns.h"

namespace {

struct Thread {
    pthread_t id;
    bool ordered;  // stream-ordered memory
    unsigned seed;
    int steps;
    std::string said;
};

void* of_thread(void* given) {
    auto* thread = static_cast<Thread*>(given);
    CALL(cuCtxSetCurrent, context);
    if (thread->ordered) {
        async_at_random(thread->seed, thread->steps, thread->said);
    } else {
        at_random(thread->seed, thread->steps, true, thread->said);
    }
    return nullptr;
}

void threads(int count, int steps, bool ordered) {
    std::vector<Thread> all(count);
    for (int index = 0; index < count; ++index) {
        all[index].seed = index;
        all[index].steps = steps;
        all[index].ordered = ordered;
        pthread_create(&all[index].id, nullptr, &of_thread, &all[index]);
    }
    for (Thread& each : all) {
        pthread_join(each.id, nullptr);
        fputs(each.said.c_str(), stdout);
    }
}

}  // namespace

int main(int count, char** words) {
    const std::string kind = words[1];
    const int steps = count > 2 ? atoi(words[2]) : 300;
    find_calls(kind == "per_thread_streams" || kind == "async_per_thread_streams");
    if (kind == "fork_first") {
        if (fork() == 0) return 0;
        wait(nullptr);
    }
    begin();
    std::string said;
    if (kind == "memory" || kind == "fork_first") at_random(2, steps, false, said);
    if (kind == "mappings") at_random(4, steps, true, said);
    if (kind == "default_stream") at_random(1, steps, true, said);
    if (kind == "threads" || kind == "per_thread_streams") threads(4, steps, false);
    if (kind == "async") async_at_random(2, steps, said);
    if (kind == "async_threads" || kind == "async_per_thread_streams") threads(4, steps, true);
    if (kind == "pools") pools();
    if (kind == "graph_memory") graph_memory(steps);
    if (kind == "boxes") boxes(steps);
    if (kind == "unused") unused(steps);
    if (kind == "two_cards") two_cards(steps);
    if (kind == "first_uses") first_uses();
    if (kind == "streams_end") streams_end(steps);
    if (kind == "misuse") misuse();
    if (kind == "shareable" || kind == "compressible") handles(kind, steps);
    if (kind == "handed") handed(steps);
    if (kind == "async_contexts") async_contexts();
    if (kind == "counted") counted();
    if (kind == "warm_pairs") warm_pairs(steps);
    if (kind == "async_exit") {
        // Ends in the middle of everything.
        static Hand& hand = *new Hand;
        hand.seed = 0;
        hand.blocks.resize(100000);
        hand.sums.resize(100000);
        hand.events.resize(100000);
        pthread_t threads[2];
        pthread_create(&threads[0], nullptr, &makes, &hand);
        pthread_create(&threads[1], nullptr, &takes, &hand);
        while (hand.made < static_cast<size_t>(steps)) sched_yield();
        exit(0);
    }
    if (kind == "async_fork") {
        CUdeviceptr address = 0;
        CALL(cuMemAllocAsync, &address, 4096, nullptr);
        const pid_t child = fork();
        if (child == 0) {
            const bool refused = call.cuMemAllocAsync(&address, 4096, nullptr) != CUDA_SUCCESS &&
                                 call.cuMemFreeAsync(address, nullptr) != CUDA_SUCCESS &&
                                 call.cuMemFree_v2(address) != CUDA_SUCCESS;
            exit(refused ? 0 : 1);
        }
        int status = 0;
        waitpid(child, &status, 0);
        printf("child %d\n", status);
        async_at_random(6, steps, said);
    }
    if (kind == "graphs") graphs(steps);
    if (kind == "graph_allocates") graph_allocates(steps);
    if (kind == "rounds") rounds(steps, atoi(words[3]));
    if (kind == "leaves" || kind == "resets") {
        const int count_of_rounds = atoi(words[3]);
        if (kind == "resets") {
            rounds(steps, count_of_rounds);
            check(other<CUresult(CUdevice)>("cuDevicePrimaryCtxReset_v2")(0), "reset");
            out = 0;
            begin();
        }
        rounds(steps, count_of_rounds);
        allocate(size_t(steps) << 20);
        fflush(stdout);
        _exit(0);
    }
    if (kind == "grows") grows(steps, atoi(words[3]));
    if (kind == "preallocates") preallocates(steps, atoi(words[3]));
    if (kind == "exports") exports(steps, atoi(words[3]));
    if (kind == "spins") spins(steps, atoi(words[3]));
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
    if (getenv("CALLS") != nullptr) say_calls();
    return 0;
}
