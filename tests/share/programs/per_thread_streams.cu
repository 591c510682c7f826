// A program on the runtime, compiled with --default-stream per-thread: four threads, each in the
// default stream of its own, beside a block that every round changes. Says what on_card.py's say.
//   per_thread_streams STEPS BALLAST UNTIL
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#define CHECK(call)                                                            \
    do {                                                                       \
        const cudaError_t checked_ = (call);                                   \
        if (checked_ != cudaSuccess) {                                         \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(checked_));  \
            _exit(3);                                                          \
        }                                                                      \
    } while (false)

using Sum = unsigned long long;

__global__ void fill(unsigned* data, size_t count, unsigned value) {
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
        data[i] = value + static_cast<unsigned>(i);
    }
}

__global__ void sweep(unsigned* data, size_t count) {
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
        data[i] = data[i] * 1664525u + 1013904223u;
    }
}

__global__ void add_up(const unsigned* data, size_t count, Sum* out) {
    Sum sum = 0;
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
        sum += data[i] * Sum{2 * i + 1};  // a word in another place gives another sum
    }
    atomicAdd(out, sum);
}

Sum sum_of(const unsigned* data, size_t count, Sum* out) {
    Sum result = 0;
    CHECK(cudaMemsetAsync(out, 0, sizeof result));
    add_up<<<128, 256>>>(data, count, out);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpyAsync(&result, out, sizeof result, cudaMemcpyDeviceToHost));
    CHECK(cudaStreamSynchronize(cudaStreamPerThread));
    return result;
}

Sum expected(size_t count, long rounds) {
    unsigned multiply = 1, add = 0;
    for (long round = 0; round < rounds; ++round) {
        multiply *= 1664525u;
        add = add * 1664525u + 1013904223u;
    }
    Sum sum = 0;
    for (size_t i = 0; i < count; ++i) {
        sum += ((7u + static_cast<unsigned>(i)) * multiply + add) * Sum{2 * i + 1};
    }
    return sum;
}

int main(int, char** words) {
    constexpr int kThreads = 4;
    constexpr size_t kPart = size_t{1} << 18;
    const int steps = atoi(words[1]);
    const size_t count = strtoull(words[2], nullptr, 10) / 4;
    const std::string until = words[3];
    unsigned* block;
    unsigned* parts[kThreads];
    Sum* outs[kThreads];
    CHECK(cudaMalloc(&block, count * 4));
    for (int i = 0; i < kThreads; ++i) {
        CHECK(cudaMalloc(&parts[i], kPart * 4));
        CHECK(cudaMalloc(&outs[i], sizeof(Sum)));
    }
    fill<<<128, 256>>>(block, count, 7);
    CHECK(cudaGetLastError());

    const auto round = [&] {
        std::vector<Sum> sums(kThreads);
        std::vector<std::thread> threads;
        for (int i = 0; i < kThreads; ++i) {
            threads.emplace_back([&, i] {
                fill<<<64, 256>>>(parts[i], kPart, i);
                for (int step = 0; step < steps; ++step) sweep<<<64, 256>>>(parts[i], kPart);
                CHECK(cudaGetLastError());
                sums[i] = sum_of(parts[i], kPart, outs[i]);
            });
        }
        for (auto& thread : threads) thread.join();
        sweep<<<128, 256>>>(block, count);
        CHECK(cudaGetLastError());
        return sums;
    };

    const std::vector<Sum> first = round();
    long rounds = 1;
    while (rounds < 2 || (!until.empty() && access(until.c_str(), F_OK) != 0)) {
        ++rounds;
        if (round() != first) {
            fprintf(stderr, "round %ld differs from the first\n", rounds);
            return 1;
        }
    }
    if (sum_of(block, count, outs[0]) != expected(count, rounds)) {
        fprintf(stderr, "the block is wrong after %ld rounds\n", rounds);
        return 1;
    }
    printf("{\"result\": [%llu, %llu, %llu, %llu], \"rounds\": %ld}\n", first[0], first[1], first[2],
           first[3], rounds);
}
