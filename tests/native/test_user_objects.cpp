// User objects of the simulated GPU: when their callbacks run, and in whose way they are not.
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "graphs.h"

namespace {

using gpu::cu;
using gpu::sim;

constexpr std::uint64_t kMillisecond = 1'000'000;

void count_up(void* counter) { ++*static_cast<std::atomic<int>*>(counter); }

CUuserObject make_object(void* data, CUhostFn callback = count_up, unsigned references = 1) {
    CUuserObject object = nullptr;
    CHECK_EQUAL(cu().cuUserObjectCreate(&object, data, callback, references,
                                        CU_USER_OBJECT_NO_DESTRUCTOR_SYNC),
                CUDA_SUCCESS);
    return object;
}

CUresult release(CUuserObject object, unsigned count = 1) {
    return cu().cuUserObjectRelease(object, count);
}

CUresult release_from(CUgraph graph, CUuserObject object, unsigned count) {
    static const auto call =
        graphs::find<CUresult(CUgraph, CUuserObject, unsigned)>("cuGraphReleaseUserObject");
    return call(graph, object, count);
}

// Gives the graph the only reference to a new object.
void attach(CUgraph graph, void* data, CUhostFn callback = count_up) {
    CHECK_EQUAL(cu().cuGraphRetainUserObject(graph, make_object(data, callback), 1,
                                             CU_GRAPH_USER_OBJECT_MOVE),
                CUDA_SUCCESS);
}

CUgraph graph_being_captured(CUstream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUgraph graph = nullptr;
    CHECK_EQUAL(cu().cuStreamGetCaptureInfo_v2(stream, &status, nullptr, &graph, nullptr, nullptr),
                CUDA_SUCCESS);
    CHECK_EQUAL(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    return graph;
}

// An executable that runs for so long, with an object of its own.
CUgraphExec executable_with_object(CUstream stream, std::uint64_t nanoseconds,
                                   std::atomic<int>& called) {
    const CUfunction spin = gpu::kernel("vk_spin");
    CHECK_EQUAL(graphs::begin_capture(stream), CUDA_SUCCESS);
    CHECK_EQUAL(gpu::spin(spin, nanoseconds, 1, stream), CUDA_SUCCESS);
    attach(graph_being_captured(stream), &called);
    return graphs::end_and_instantiate(stream);
}

bool objects_live() {
    return gpu::text_of(sim().live_objects).find("\"user_objects\":0") == std::string::npos;
}

// Makes a driver call in another thread and waits for it.
void call_elsewhere(void* counter) {
    std::thread([] {
        size_t free = 0, total = 0;
        gpu::use_device();
        CHECK_EQUAL(cu().cuMemGetInfo_v2(&free, &total), CUDA_SUCCESS);
    }).join();
    count_up(counter);
}

void call_here(void* seen) {
    CUdeviceptr pointer = 0;
    *static_cast<CUresult*>(seen) = cu().cuMemAlloc_v2(&pointer, 256);
}

}  // namespace

TEST(more_than_is_owned_cannot_be_released) {
    gpu::reset_round();
    gpu::use_device();
    std::atomic<int> called = 0;
    const CUuserObject object = make_object(&called, count_up, 2);
    CHECK_EQUAL(release(object, 3), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(release(object), CUDA_SUCCESS);
    CHECK_EQUAL(release(object, 2), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(called.load(), 0);
    CHECK(objects_live());
    CHECK_EQUAL(release(object), CUDA_SUCCESS);
    CHECK_EQUAL(called.load(), 1);
    CHECK(!objects_live());
    CHECK_EQUAL(release(object), CUDA_ERROR_INVALID_VALUE);
}

TEST(more_than_is_owned_cannot_be_moved) {
    gpu::reset_round();
    gpu::use_device();
    const CUstream stream = gpu::make_stream();
    std::atomic<int> called = 0;
    const CUuserObject object = make_object(&called);
    CUgraph graph = nullptr;
    CHECK_EQUAL(graphs::begin_capture(stream), CUDA_SUCCESS);
    CHECK_EQUAL(graphs::end_capture(stream, &graph), CUDA_SUCCESS);
    CHECK_EQUAL(cu().cuGraphRetainUserObject(graph, object, 2, CU_GRAPH_USER_OBJECT_MOVE),
                CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(graphs::destroy(graph), CUDA_SUCCESS);
    CHECK_EQUAL(called.load(), 0);
    CHECK_EQUAL(release(object), CUDA_SUCCESS);
    CHECK_EQUAL(called.load(), 1);
}

TEST(graph_releases_no_more_than_it_has) {
    gpu::reset_round();
    gpu::use_device();
    const CUstream stream = gpu::make_stream();
    std::atomic<int> called = 0;
    const CUuserObject object = make_object(&called);
    CUgraph graph = nullptr;
    CHECK_EQUAL(graphs::begin_capture(stream), CUDA_SUCCESS);
    CHECK_EQUAL(graphs::end_capture(stream, &graph), CUDA_SUCCESS);
    CHECK_EQUAL(cu().cuGraphRetainUserObject(graph, object, 1, 0), CUDA_SUCCESS);
    // The first takes what there is, the second finds nothing; the program's own reference stays.
    CHECK_EQUAL(release_from(graph, object, 2), CUDA_SUCCESS);
    CHECK_EQUAL(release_from(graph, object, 1), CUDA_SUCCESS);
    CHECK_EQUAL(called.load(), 0);
    CHECK_EQUAL(release(object), CUDA_SUCCESS);
    CHECK_EQUAL(called.load(), 1);
    CHECK_EQUAL(release_from(graph, object, 1), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(graphs::destroy(graph), CUDA_SUCCESS);
}

TEST(graph_that_nobody_asks_for_goes_with_its_objects) {
    gpu::reset_round();
    gpu::use_device();
    const CUstream stream = gpu::make_stream();
    std::atomic<int> called = 0;
    CHECK_EQUAL(graphs::begin_capture(stream), CUDA_SUCCESS);
    attach(graph_being_captured(stream), &called);
    CHECK_EQUAL(graphs::end_capture(stream, nullptr), CUDA_SUCCESS);
    CHECK_EQUAL(called.load(), 1);
    CHECK(!objects_live());
}

TEST(callback_runs_while_other_threads_may_call) {
    gpu::reset_round();
    gpu::use_device();
    const CUstream stream = gpu::make_stream();
    const CUfunction spin = gpu::kernel("vk_spin");
    std::atomic<int> called = 0;
    CHECK_EQUAL(release(make_object(&called, call_elsewhere)), CUDA_SUCCESS);
    CHECK_EQUAL(called.load(), 1);
    CHECK_EQUAL(graphs::begin_capture(stream), CUDA_SUCCESS);
    CHECK_EQUAL(gpu::spin(spin, kMillisecond, 1, stream), CUDA_SUCCESS);
    attach(graph_being_captured(stream), &called, call_elsewhere);
    const CUgraphExec executable = graphs::end_and_instantiate(stream);
    CHECK_EQUAL(graphs::launch(executable, stream), CUDA_SUCCESS);
    CHECK_EQUAL(graphs::destroy(executable), CUDA_SUCCESS);
    CHECK_EQUAL(called.load(), 1);
    CHECK_EQUAL(cu().cuStreamSynchronize(stream), CUDA_SUCCESS);
    CHECK_EQUAL(called.load(), 2);
}

TEST(callback_may_not_call_the_driver) {
    gpu::reset_round();
    gpu::use_device();
    CUresult seen = CUDA_SUCCESS;
    CHECK_EQUAL(release(make_object(&seen, call_here)), CUDA_SUCCESS);
    CHECK_EQUAL(seen, CUDA_ERROR_NOT_PERMITTED);
    // The thread itself may again.
    const CUdeviceptr memory = gpu::make_memory(256);
    CHECK_EQUAL(cu().cuMemFree_v2(memory), CUDA_SUCCESS);
}

TEST(reset_forgets_objects_without_a_callback) {
    gpu::reset_round();
    gpu::use_device();
    const CUstream stream = gpu::make_stream();
    std::atomic<int> called = 0;
    make_object(&called);
    const CUgraphExec kept = executable_with_object(stream, kMillisecond, called);
    const CUgraphExec dropped = executable_with_object(stream, kMillisecond, called);
    CHECK_EQUAL(graphs::launch(kept, stream), CUDA_SUCCESS);
    CHECK_EQUAL(graphs::launch(dropped, stream), CUDA_SUCCESS);
    CHECK_EQUAL(graphs::destroy(dropped), CUDA_SUCCESS);
    gpu::reset_round();
    gpu::use_device();
    CHECK_EQUAL(cu().cuCtxSynchronize(), CUDA_SUCCESS);
    CHECK_EQUAL(called.load(), 0);
    CHECK(!objects_live());
}

TEST(callback_comes_at_the_end_of_the_last_launch) {
    gpu::reset_round();
    gpu::use_device();
    const CUstream one = gpu::make_stream(), two = gpu::make_stream();
    std::atomic<int> called = 0;
    const CUgraphExec executable = executable_with_object(one, kMillisecond, called);
    CHECK_EQUAL(graphs::launch(executable, one), CUDA_SUCCESS);
    CHECK_EQUAL(graphs::launch(executable, two), CUDA_SUCCESS);
    CHECK_EQUAL(graphs::destroy(executable), CUDA_SUCCESS);
    // The second launch runs after the first, and each starts after its latency.
    const double end = 2 * (gpu::kLaunchLatency + kMillisecond);
    sim().advance(end - 1);
    CHECK_EQUAL(cu().cuStreamQuery(one), CUDA_SUCCESS);
    CHECK_EQUAL(cu().cuStreamQuery(two), CUDA_ERROR_NOT_READY);
    CHECK_EQUAL(called.load(), 0);
    sim().advance(1);
    CHECK_EQUAL(cu().cuStreamQuery(two), CUDA_SUCCESS);
    CHECK_EQUAL(called.load(), 1);
    CHECK_EQUAL(sim().now(), end);
}

TEST(lost_context_ends_launches_and_what_they_keep) {
    gpu::reset_round();
    gpu::use_device();
    const CUstream stream = gpu::make_stream();
    std::atomic<int> called = 0;
    const CUgraphExec executable = executable_with_object(stream, kMillisecond, called);
    CHECK_EQUAL(graphs::launch(executable, stream), CUDA_SUCCESS);
    CHECK_EQUAL(sim().lose_device(0, CUDA_ERROR_ILLEGAL_ADDRESS), 0);
    CHECK_EQUAL(graphs::destroy(executable), CUDA_SUCCESS);
    CHECK_EQUAL(cu().cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
    CHECK_EQUAL(called.load(), 1);
}

TEST(quiet_program_gets_the_callback) {
    for (const char* clock : {"clock=virtual", "clock=wall"}) {
        gpu::reset_round(clock);
        gpu::use_device();
        const CUstream stream = gpu::make_stream();
        std::atomic<int> called = 0;
        const CUgraphExec executable = executable_with_object(stream, kMillisecond, called);
        CHECK_EQUAL(graphs::launch(executable, stream), CUDA_SUCCESS);
        CHECK_EQUAL(graphs::destroy(executable), CUDA_SUCCESS);
        while (called.load() == 0) std::this_thread::yield();
        CHECK_EQUAL(called.load(), 1);
    }
}

TEST(abandoned_capture_lets_go_though_an_event_remembers_it) {
    gpu::reset_round();
    gpu::use_device();
    std::atomic<int> called = 0;
    const CUstream stream = gpu::make_stream();
    const CUevent event = gpu::make_event();
    CHECK_EQUAL(graphs::begin_capture(stream), CUDA_SUCCESS);
    attach(graph_being_captured(stream), &called);
    CHECK_EQUAL(cu().cuEventRecord(event, stream), CUDA_SUCCESS);
    CHECK_EQUAL(cu().cuStreamDestroy_v2(stream), CUDA_SUCCESS);
    CHECK_EQUAL(called.load(), 1);
}

TEST(destroyed_context_lets_go_of_its_captures) {
    gpu::reset_round();
    gpu::use_device();
    std::atomic<int> called = 0;
    CUcontext context = nullptr;
    CHECK_EQUAL(cu().cuCtxCreate_v2(&context, 0, 0), CUDA_SUCCESS);
    const CUstream stream = gpu::make_stream();
    CHECK_EQUAL(graphs::begin_capture(stream), CUDA_SUCCESS);
    attach(graph_being_captured(stream), &called);
    CHECK_EQUAL(cu().cuCtxDestroy_v2(context), CUDA_SUCCESS);
    CHECK_EQUAL(called.load(), 1);
}

TEST(executable_of_a_graph_being_captured_is_of_that_moment) {
    gpu::reset_round();
    gpu::use_device();
    const CUstream stream = gpu::make_stream(), other = gpu::make_stream();
    const CUdeviceptr memory = gpu::make_memory(8);
    std::atomic<int> called = 0;
    CHECK_EQUAL(cu().cuMemsetD8_v2(memory, 0, 8), CUDA_SUCCESS);
    CHECK_EQUAL(cu().cuCtxSynchronize(), CUDA_SUCCESS);
    CHECK_EQUAL(graphs::begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
    CHECK_EQUAL(cu().cuMemsetD32Async(memory, 1, 1, stream), CUDA_SUCCESS);
    attach(graph_being_captured(stream), &called);
    const CUgraphExec early = graphs::instantiate(graph_being_captured(stream));
    CHECK_EQUAL(cu().cuMemsetD32Async(memory, 2, 1, stream), CUDA_SUCCESS);
    const CUgraphExec whole = graphs::end_and_instantiate(stream);
    unsigned seen = 0;
    for (const auto& [executable, expected] : {std::pair{early, 1u}, std::pair{whole, 2u}}) {
        CHECK_EQUAL(graphs::launch(executable, other), CUDA_SUCCESS);
        CHECK_EQUAL(cu().cuStreamSynchronize(other), CUDA_SUCCESS);
        CHECK_EQUAL(cu().cuMemcpyDtoH_v2(&seen, memory, 4), CUDA_SUCCESS);
        CHECK_EQUAL(seen, expected);
        CHECK_EQUAL(called.load(), 0);
        CHECK_EQUAL(graphs::destroy(executable), CUDA_SUCCESS);
    }
    CHECK_EQUAL(called.load(), 1);
}

TEST(threads_make_and_drop_objects_side_by_side) {
    gpu::reset_round();
    const CUcontext context = gpu::use_device();
    constexpr int kThreads = 4, kRounds = 100;
    std::atomic<int> called = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
        threads.emplace_back([&] {
            CHECK_EQUAL(cu().cuCtxSetCurrent(context), CUDA_SUCCESS);
            const CUstream stream = gpu::make_stream();
            for (int round = 0; round < kRounds; ++round) {
                CHECK_EQUAL(graphs::begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED),
                            CUDA_SUCCESS);
                attach(graph_being_captured(stream), &called);
                const CUgraphExec executable = graphs::end_and_instantiate(stream);
                CHECK_EQUAL(graphs::launch(executable, stream), CUDA_SUCCESS);
                CHECK_EQUAL(graphs::destroy(executable), CUDA_SUCCESS);
                CHECK_EQUAL(release(make_object(&called)), CUDA_SUCCESS);
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK_EQUAL(called.load(), 2 * kThreads * kRounds);
    CHECK(!objects_live());
}
