// Programs that take turns: work that goes on for as long as the test says.
#pragma once

#include "card.h"

namespace {

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

// Allocates one block after the other, and works on all that it has so far.
void grows(int mebibytes, int count) {
    std::vector<Block> blocks;
    for (int index = 0; index < 4; ++index) {
        blocks.push_back(allocate((size_t(mebibytes) << 20) / 4));
        launch(fill, nullptr, blocks.back().address, blocks.back().bytes / 4, index);
        for (int round = 0; round < count; ++round) {
            for (Block& to : blocks) {
                launch(add, nullptr, to.address, to.address, blocks[0].address, to.bytes / 4);
            }
            CALL(cuStreamSynchronize, nullptr);
        }
    }
    for (Block& block : blocks) printf("%llx\n", sum(block, nullptr));
}

// Takes three quarters of what the card is said to have, as JAX does, and works on so many MiB.
void preallocates(int mebibytes, int count) {
    size_t free = 0, total = 0;
    CALL(cuMemGetInfo_v2, &free, &total);
    Block all = allocate(free / 4 * 3);
    const Block used{all.address, size_t(mebibytes) << 20};
    launch(fill, nullptr, used.address, used.bytes / 4, 1);
    for (int round = 0; round < count; ++round) {
        launch(add, nullptr, used.address, used.address, used.address, used.bytes / 8);
        CALL(cuStreamSynchronize, nullptr);
    }
    printf("%llx\n", sum(used, nullptr));
    give_back(all);
}

// Has a kernel on the card that does not end for so many seconds, while it has this memory.
void spins(int mebibytes, int seconds) {
    auto* get = other<CUresult(CUfunction*, CUmodule, const char*)>("cuModuleGetFunction");
    CUfunction spin;
    check(get(&spin, module_, "vk_spin"), "cuModuleGetFunction");
    std::vector<Block> blocks;
    for (int index = 0; index < 4; ++index) {
        blocks.push_back(allocate((size_t(mebibytes) << 20) / 4));
    }
    for (Block& block : blocks) launch(fill, nullptr, block.address, block.bytes / 4, 3);
    launch(spin, nullptr, seconds * 1000000000ull);
    puts("begins");
    fflush(stdout);
    for (Block& block : blocks) printf("%llx\n", sum(block, nullptr));
}

}  // namespace
