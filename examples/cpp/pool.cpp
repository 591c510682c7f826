// Device memory from C++: a pool, typed arrays that free themselves, and two threads that share it.
#include <cstdio>
#include <thread>
#include <vector>

#include "vramkit.hpp"

int main() try {
    vramkit::pool pool;  // of device 0, with nothing to configure

    // Each iteration gets the block of the one before: no driver call after the first.
    for (int step = 0; step < 1000; ++step) {
        vramkit::device_vector<float> activations(pool, 1 << 16);
        // Launch kernels on activations.data() here, on the stream given as the third argument.
    }

    std::vector<std::thread> threads;
    for (int each = 0; each < 2; ++each) {
        threads.emplace_back([&pool] {
            for (int step = 0; step < 1000; ++step) vramkit::buffer scratch(pool, 4096);
        });
    }
    for (std::thread& thread : threads) thread.join();

    const vramkit_stats stats = pool.stats();
    std::printf("%llu allocations, memory taken from the driver %llu times, %llu bytes in use\n",
                static_cast<unsigned long long>(stats.allocation_count),
                static_cast<unsigned long long>(stats.device_growths),
                static_cast<unsigned long long>(stats.current_usage));

    try {
        vramkit::buffer too_large(pool, std::size_t{1} << 40);
    } catch (const vramkit::out_of_memory& error) {
        std::printf("%s\n", error.what());
    }
    return 0;
} catch (const vramkit::error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
