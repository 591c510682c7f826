// Linked with libcuda.so.1. A program of driver calls that are drawn at random, and what each of
// them returned: the same with the memory of a shared program as with the driver's own.
//   fuzz SEED STEPS [devices] [threads]
// Work on the same memory is ordered, so that the result does not depend on time. An even seed uses
// the legacy default streams, an odd one those of each thread.
#include <pthread.h>

#include "fuzz/contexts.h"
#include "fuzz/copies.h"
#include "fuzz/graphs.h"
#include "fuzz/memory.h"
#include "fuzz/questions.h"
#include "fuzz/state.h"
#include "fuzz/work.h"

namespace {

using fuzz::State;

struct Action {
    unsigned weight;
    void (*run)(State&);
};

constexpr Action kActions[] = {
    {14, fuzz::allocate},
    {20, fuzz::work},
    {8, fuzz::set},
    {10, fuzz::copy_flat},
    {6, fuzz::copy_box},
    {4, fuzz::copy_batch},
    {6, fuzz::read_any},
    {4, fuzz::write_any},
    {9, fuzz::free_any},
    {6, fuzz::change_mapping},
    {3, fuzz::managed},
    {5, fuzz::pools},
    {3, fuzz::write_value},
    {4, fuzz::capture},
    {6, fuzz::replay},
    {8, fuzz::ask_about_address},
    {3, fuzz::ask},
    {2, fuzz::ask_events},
    {3, fuzz::wait},
    {2, fuzz::create_context},
    {2, fuzz::destroy_context},
    {3, fuzz::pop_context},
    {1, fuzz::end_primary},
    {3, fuzz::streams},
    {2, fuzz::misuse_work},
    {3, fuzz::misuse_memory},
    {2, fuzz::misuse_contexts},
};

void act(State& state) {
    unsigned all = 0;
    for (const Action& each : kActions) all += each.weight;
    unsigned drawn = state.pick(all);
    for (const Action& each : kActions) {
        if (drawn < each.weight) return each.run(state);
        drawn -= each.weight;
    }
}

void run(State& state, int steps) {
    for (int device = 0; device < state.devices; ++device) fuzz::retain_primary(state, device);
    for (state.step = 1; state.step <= steps; ++state.step) act(state);
    for (size_t index = 0; index < state.blocks.size(); ++index) {
        if (state.blocks[index].alive) fuzz::read_block(state, static_cast<int>(index));
    }
    for (size_t index = 0; index < state.blocks.size(); ++index) {
        if (state.blocks[index].alive) fuzz::give_back(state, static_cast<int>(index));
    }
    fuzz::wait_for_all(state);
}

struct Thread {
    pthread_t id;
    State* state;
    int steps;
    char* said = nullptr;
    size_t bytes = 0;
};

void* of_thread(void* given) {
    auto* thread = static_cast<Thread*>(given);
    run(*thread->state, thread->steps);
    fclose(thread->state->out);
    return nullptr;
}

}  // namespace

int main(int count, char** words) {
    const unsigned seed = strtoul(words[1], nullptr, 10);
    const int steps = atoi(words[2]);
    const int devices = count > 3 ? atoi(words[3]) : 1;
    const int threads = count > 4 ? atoi(words[4]) : 1;
    const bool per_thread = seed % 2 == 1;
    const fuzz::Calls calls = fuzz::find_calls(
        per_thread, seed / 2 % 2 == 0 ? fuzz::Lookup::symbols : fuzz::Lookup::resolver);
    printf("init %d\n", calls.cuInit(0));
    if (threads == 1) {
        setvbuf(stdout, nullptr, _IOLBF, 0);
        State state(seed, calls, per_thread, devices, true);
        state.out = stdout;
        run(state, steps);
        return 0;
    }
    std::vector<Thread> all(threads);
    for (int index = 0; index < threads; ++index) {
        Thread& each = all[index];
        each.state = new State(seed + 1000 * index, calls, per_thread, devices, false);
        each.state->out = open_memstream(&each.said, &each.bytes);
        each.steps = steps;
        pthread_create(&each.id, nullptr, &of_thread, &each);
    }
    for (Thread& each : all) {
        pthread_join(each.id, nullptr);
        fputs(each.said, stdout);
    }
}
