// Stream-ordered memory: blocks that go from stream to stream, from thread to thread, between
// cards.
#pragma once

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <random>

#include "card.h"

namespace {

// Random work on stream-ordered blocks in several streams. A block goes to another stream behind an
// event, and is freed in whatever stream had it last.
void async_at_random(unsigned seed, int steps, std::string& said) {
    struct Ordered {
        CUdeviceptr address;
        size_t bytes;
        size_t stream;
    };
    std::mt19937 random(seed);
    std::vector<CUstream> streams{nullptr, nullptr, nullptr};
    for (size_t index = seed % 2; index < streams.size(); ++index) {
        CALL(cuStreamCreateWithPriority, &streams[index], CU_STREAM_NON_BLOCKING, 0);
    }
    CUmemPoolProps properties{};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUmemoryPool own, usual;
    CALL(cuMemPoolCreate, &own, &properties);
    CALL(cuDeviceGetDefaultMemPool, &usual, 0);
    CUevent event;
    CALL(cuEventCreate, &event, CU_EVENT_DISABLE_TIMING);
    std::vector<Ordered> blocks;
    const auto any = [&]() -> Ordered& { return blocks[random() % blocks.size()]; };
    const auto bring = [&](Ordered& block, size_t stream) {
        if (block.stream == stream) return;
        CALL(cuEventRecord, event, streams[block.stream]);
        CALL(cuStreamWaitEvent, streams[stream], event, 0);
        block.stream = stream;
    };
    const auto say = [&](Ordered& block) {
        char text[32];
        const Block whole{block.address, block.bytes, false, {}};
        // sum() has memory of its own for all streams.
        for (CUstream stream : streams) CALL(cuStreamSynchronize, stream);
        snprintf(text, sizeof text, "%llx\n", sum(whole, streams[block.stream]));
        said += text;
    };
    for (int step = 0; step < steps; ++step) {
        const unsigned what = blocks.size() < 2 ? 0 : random() % 12;
        if (what < 3 && blocks.size() < 16) {
            const size_t stream = random() % streams.size();
            Ordered made{0, (random() % 64 + 1) * (random() % 4 == 0 ? 128 << 10 : 512), stream};
            if (random() % 3 == 0) {
                CALL(cuMemAllocFromPoolAsync, &made.address, made.bytes, own, streams[stream]);
            } else {
                CALL(cuMemAllocAsync, &made.address, made.bytes, streams[stream]);
            }
            launch(fill, streams[stream], made.address, made.bytes / 4, random());
            blocks.push_back(made);
        } else if (what < 6) {
            Ordered &to = any(), &from = any();
            const size_t bytes = to.bytes < from.bytes ? to.bytes : from.bytes;
            const size_t stream = random() % streams.size();
            bring(to, stream);
            bring(from, stream);
            launch(add, streams[stream], to.address, from.address, to.address, bytes / 4);
        } else if (what < 8) {
            Ordered& to = any();
            launch(sweep, streams[to.stream], to.address, to.bytes / 4, random() % 3 + 1);
        } else if (what < 9) {
            say(any());
        } else if (what < 10 && random() % 4 == 0) {
            CALL(cuMemPoolTrimTo, random() % 2 == 0 ? own : usual, 0);
        } else {
            const size_t index = random() % blocks.size();
            CALL(cuMemFreeAsync, blocks[index].address, streams[blocks[index].stream]);
            blocks.erase(blocks.begin() + index);
        }
        // A stream goes with all it had; what it freed is used again.
        if (step % 50 == 49) {
            for (Ordered& block : blocks) bring(block, 1);
            CALL(cuStreamDestroy_v2, streams[2]);
            CALL(cuStreamCreateWithPriority, &streams[2], CU_STREAM_NON_BLOCKING, 0);
        }
    }
    for (Ordered& block : blocks) {
        say(block);
        CALL(cuMemFreeAsync, block.address, streams[block.stream]);
    }
    for (CUstream stream : streams) CALL(cuStreamSynchronize, stream);
    CALL(cuMemPoolDestroy, own);
}

// Blocks that one thread makes in its stream, and another one uses and frees in its own.
struct Hand {
    unsigned seed;
    std::vector<CUdeviceptr> blocks;
    std::vector<CUevent> events;
    std::vector<unsigned long long> sums;
    std::atomic<size_t> made{0};
};
constexpr size_t kHandedBytes = 96 << 10;

void* makes(void* given) {
    auto* hand = static_cast<Hand*>(given);
    CUstream stream;
    CALL(cuCtxSetCurrent, context);
    CALL(cuStreamCreateWithPriority, &stream, CU_STREAM_NON_BLOCKING, 0);
    for (size_t index = 0; index < hand->blocks.size(); ++index) {
        CALL(cuMemAllocAsync, &hand->blocks[index], kHandedBytes, stream);
        launch(fill, stream, hand->blocks[index], kHandedBytes / 4, hand->seed + index);
        CALL(cuEventCreate, &hand->events[index], CU_EVENT_DISABLE_TIMING);
        CALL(cuEventRecord, hand->events[index], stream);
        hand->made = index + 1;
    }
    CALL(cuStreamSynchronize, stream);
    CALL(cuStreamDestroy_v2, stream);
    return nullptr;
}

void* takes(void* given) {
    auto* hand = static_cast<Hand*>(given);
    CUstream stream;
    CALL(cuCtxSetCurrent, context);
    CALL(cuStreamCreateWithPriority, &stream, CU_STREAM_NON_BLOCKING, 0);
    for (size_t index = 0; index < hand->blocks.size(); ++index) {
        while (hand->made <= index) sched_yield();
        CALL(cuStreamWaitEvent, stream, hand->events[index], 0);
        hand->sums[index] = sum(Block{hand->blocks[index], kHandedBytes, false, {}}, stream);
        CALL(cuMemFreeAsync, hand->blocks[index], stream);
    }
    CALL(cuStreamSynchronize, stream);
    return nullptr;
}

void handed(int steps) {
    Hand hands[2];
    pthread_t threads[4];
    for (unsigned index = 0; index < 2; ++index) {
        hands[index].seed = index * 1000;
        hands[index].blocks.resize(steps);
        hands[index].events.resize(steps);
        hands[index].sums.resize(steps);
        pthread_create(&threads[2 * index], nullptr, &makes, &hands[index]);
        pthread_create(&threads[2 * index + 1], nullptr, &takes, &hands[index]);
    }
    for (pthread_t each : threads) pthread_join(each, nullptr);
    for (const Hand& each : hands) {
        for (unsigned long long value : each.sums) printf("%llx\n", value);
    }
}

// Streams of a context that is not the primary one, and a reset of the device.
void async_contexts() {
    auto* create = other<CUresult(CUcontext*, unsigned, CUdevice)>("cuCtxCreate_v2");
    auto* destroy = other<CUresult(CUcontext)>("cuCtxDestroy_v2");
    auto* reset = other<CUresult(CUdevice)>("cuDevicePrimaryCtxReset_v2");
    CUcontext second;
    CUstream apart;
    CUdeviceptr one, two, three;
    CALL(cuMemAllocAsync, &one, 1 << 20, nullptr);
    launch(fill, nullptr, one, (1 << 20) / 4, 3);
    CALL(cuCtxSynchronize);
    check(create(&second, 0, 0), "cuCtxCreate");
    CALL(cuStreamCreateWithPriority, &apart, CU_STREAM_NON_BLOCKING, 0);
    CALL(cuMemAllocAsync, &two, 1 << 20, apart);
    CALL(cuMemAllocAsync, &three, 1 << 20, nullptr);
    CALL(cuMemsetD32Async, two, 5, (1 << 20) / 4, apart);
    CALL(cuMemcpyDtoDAsync_v2, two, one, 1 << 19, apart);
    Words words((1 << 20) / 4);
    CALL(cuMemcpyDtoHAsync_v2, words.data(), two, 1 << 20, apart);
    CALL(cuMemFreeAsync, one, apart);
    CALL(cuStreamSynchronize, apart);
    printf("%u %u %u\n", words[0], words[words.size() / 2 - 1], words.back());
    CALL(cuMemFreeAsync, two, apart);
    CALL(cuMemFree_v2, three);
    CALL(cuStreamDestroy_v2, apart);
    check(destroy(second), "cuCtxDestroy");
    CALL(cuCtxSetCurrent, context);
    CALL(cuMemAllocAsync, &one, 1 << 20, nullptr);
    check(reset(0), "cuDevicePrimaryCtxReset");
    begin();
    printf("%d\n", call.cuMemFreeAsync(one, nullptr) != CUDA_SUCCESS);
    std::string said;
    async_at_random(3, 60, said);
    fputs(said.c_str(), stdout);
}

// Blocks of two cards, each freed in a stream of the other one.
void two_cards(int steps) {
    CUcontext contexts[2] = {context, nullptr};
    CUstream streams[2];
    CALL(cuDevicePrimaryCtxRetain, &contexts[1], 1);
    for (int card : {0, 1}) {
        CALL(cuCtxSetCurrent, contexts[card]);
        CALL(cuStreamCreateWithPriority, &streams[card], CU_STREAM_NON_BLOCKING, 0);
    }
    CUevent events[2];
    for (int card : {0, 1}) {
        CALL(cuCtxSetCurrent, contexts[card]);
        CALL(cuEventCreate, &events[card], CU_EVENT_DISABLE_TIMING);
    }
    for (int step = 0; step < steps; ++step) {
        CUdeviceptr blocks[2];
        CALL(cuCtxSetCurrent, contexts[step % 2]);
        for (int card : {0, 1}) {
            CALL(cuMemAllocAsync, &blocks[card], 3 << 20, streams[card]);
            CALL(cuMemsetD32Async, blocks[card], step + card, (3 << 20) / 4, streams[card]);
        }
        for (int card : {0, 1}) {
            unsigned word = 0;
            int device = -1;
            CALL(cuCtxSetCurrent, contexts[card]);
            CALL(cuMemcpyDtoHAsync_v2, &word, blocks[card] + 4000, 4, streams[card]);
            CALL(cuEventRecord, events[card], streams[card]);
            CALL(cuStreamSynchronize, streams[card]);
            CALL(cuPointerGetAttribute, &device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                 blocks[card] + 9);
            printf("%u %d\n", word, device);
            CALL(cuStreamWaitEvent, streams[1 - card], events[card], 0);
            CALL(cuMemFreeAsync, blocks[card], streams[1 - card]);
        }
    }
    for (int card : {0, 1}) CALL(cuStreamSynchronize, streams[card]);
}

// Streams that end while their work still runs; the next one has the same handle, perhaps.
void streams_end(int steps) {
    CUdeviceptr kept = 0;
    CALL(cuMemAllocAsync, &kept, 4 * steps, nullptr);
    CALL(cuMemsetD8Async, kept, 0, 4 * steps, nullptr);
    CALL(cuCtxSynchronize);
    for (int step = 0; step < steps; ++step) {
        CUstream stream;
        CUdeviceptr block, small;
        CALL(cuStreamCreateWithPriority, &stream, CU_STREAM_NON_BLOCKING, 0);
        CALL(cuMemAllocAsync, &block, 4 << 20, stream);
        CALL(cuMemAllocAsync, &small, 2000, stream);
        launch(fill, stream, block, (4 << 20) / 4, step);
        launch(sweep, stream, block, (4 << 20) / 4, 200);
        launch(fill, stream, small, 500, step);
        CALL(cuMemcpyDtoDAsync_v2, kept + 4 * step, block + (1 << 20), 4, stream);
        CALL(cuMemFreeAsync, block, stream);
        CALL(cuMemFreeAsync, small, stream);
        CALL(cuStreamDestroy_v2, stream);
    }
    CALL(cuCtxSynchronize);
    Words words(steps);
    CALL(cuMemcpyDtoH_v2, words.data(), kept, 4 * steps);
    for (unsigned word : words) printf("%x\n", word);
}

}  // namespace
