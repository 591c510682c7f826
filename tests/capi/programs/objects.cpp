// The objects of vramkit.hpp. Prints what does not hold, and "done".
#include <cstdio>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "vramkit.hpp"

static_assert(!std::is_copy_constructible_v<vramkit::buffer>);
static_assert(std::is_nothrow_move_constructible_v<vramkit::buffer>);
static_assert(std::is_nothrow_move_assignable_v<vramkit::pool>);
static_assert(std::is_base_of_v<vramkit::error, vramkit::out_of_memory>);

#define CHECK(expression) \
    if (!(expression)) std::printf("%d: not so: %s\n", __LINE__, #expression)

namespace {

std::uint64_t in_use(const vramkit::pool& pool) { return pool.stats().current_usage; }

void buffers() {
    vramkit::pool pool;
    vramkit::buffer first(pool, 1000);
    CHECK(first.size() == 1000 && !first.empty() && in_use(pool) == 1000);
    vramkit::buffer second(std::move(first));
    CHECK(second.size() == 1000 && in_use(pool) == 1000);
    first = vramkit::buffer(pool, 2000);
    second = std::move(first);  // its own block goes
    CHECK(second.size() == 2000 && in_use(pool) == 2000);
    second.reset();
    second.reset();
    CHECK(second.empty() && second.size() == 0 && in_use(pool) == 0);
    void* const block = vramkit::buffer(pool, 500).release();
    CHECK(in_use(pool) == 500);
    pool.free_on(block, nullptr);
    vramkit::buffer().reset();
    CHECK(in_use(pool) == 0 && pool.release_all() > 0 && pool.stats().reserved == 0);
    pool.preallocate(4096, 10);
    CHECK(pool.stats().reserved > 0 && pool.trim() > 0);
}

void upkeep() {
    constexpr std::uint64_t kBytes = 4 << 20;
    vramkit::pool_options options;
    options.background = 0;
    vramkit::pool pool(options);
    vramkit::buffer first(pool, kBytes), between(pool, kBytes), last(pool, kBytes);
    first.reset();
    last.reset();
    CHECK(pool.stats().remapped_bytes == 0 && pool.defragment() == kBytes &&
          pool.stats().remapped_bytes == kBytes);
    vramkit::buffer both(pool, 2 * kBytes);
    CHECK(pool.stats().reserved == 3 * kBytes);
    vramkit::buffer small(pool, 1000);
    std::vector<vramkit::buffer> many;
    while (pool.stats().idle >= (2 << 20)) many.emplace_back(pool, 1 << 20);
    const std::uint64_t growths = pool.stats().device_growths;
    pool.step();  // maps a piece ahead
    CHECK(pool.stats().device_growths == growths + 1);
    many.clear();
    void* const per_thread_stream = reinterpret_cast<void*>(2);
    pool.also_used_on(small.data(), per_thread_stream);
    const std::uint64_t live = in_use(pool);
    void* const block = small.release();
    pool.free(block);
    CHECK(in_use(pool) == live - 1000);
    try {
        pool.also_used_on(block, per_thread_stream);
        CHECK(!"thrown");
    } catch (const vramkit::error& error) {
        CHECK(error.status() == VRAMKIT_BAD_VALUE);
    }
    both.reset();
    between.reset();
    CHECK(pool.release_all() > 0 && pool.stats().reserved == 0);
}

void arrays() {
    vramkit::pool pool;
    vramkit::device_vector<double> array(pool, 100);
    CHECK(array.size() == 100 && array.size_bytes() == 800 && in_use(pool) == 800);
    const vramkit::device_vector<double> empty(pool, 0);
    CHECK(empty.empty() && empty.data() == nullptr && empty.size() == 0);
    try {
        vramkit::device_vector<double>(pool, ~std::size_t{0} / 4);
        CHECK(!"thrown");
    } catch (const vramkit::error& error) {
        CHECK(error.status() == VRAMKIT_BAD_VALUE);
    }
    array.reset_on(nullptr);
    CHECK(array.empty() && in_use(pool) == 0);
}

void containers() {
    vramkit::pool pool, other;
    using allocator = vramkit::stl_allocator<float>;
    using traits = std::allocator_traits<allocator>;
    static_assert(std::is_same_v<traits::rebind_alloc<int>, vramkit::stl_allocator<int>>);
    static_assert(std::is_same_v<traits::pointer, float*>);
    const allocator here(pool);
    const vramkit::stl_allocator<int> rebound(here);
    CHECK(here == rebound && !(here != rebound) && here != allocator(other));
    {
        std::vector<float, allocator> values(250, here);
        CHECK(values.size() == 250 && in_use(pool) == 1000);
        float* const data = values.data();
        std::vector<float, allocator> moved(std::move(values));
        CHECK(moved.data() == data && in_use(pool) == 1000);
        std::vector<float, allocator> elsewhere(10, allocator(other));
        elsewhere = std::move(moved);
        CHECK(elsewhere.data() == data && in_use(other) == 0);
    }
    CHECK(in_use(pool) == 0);
}

void errors() {
    vramkit::pool_options options;
    options.limit = 4 << 20;
    vramkit::pool pool(options);
    CHECK(pool.try_malloc(8 << 20) == nullptr);
    try {
        pool.malloc(8 << 20);
        CHECK(!"thrown");
    } catch (const vramkit::out_of_memory& error) {
        CHECK(error.status() == VRAMKIT_OUT_OF_MEMORY);
    }
    pool.close();
    try {
        pool.try_malloc(1);
        CHECK(!"thrown");
    } catch (const vramkit::error& error) {
        CHECK(error.status() == VRAMKIT_CLOSED);
    }
    options.limit = 1;
    try {
        vramkit::pool refused(options);
        CHECK(!"thrown");
    } catch (const vramkit::error& error) {
        CHECK(error.status() == VRAMKIT_BAD_VALUE);
    }
}

void pools() {
    vramkit::pool shared = vramkit::pool::instance();
    CHECK(shared.handle() == vramkit_pool_instance(0));
    {
        const vramkit::pool moved(std::move(shared));
        CHECK(moved.handle() == vramkit_pool_instance(0) && shared.handle() == nullptr);
    }
    shared = vramkit::pool::instance();  // it was not destroyed
    const vramkit::buffer block(shared, 1);
    vramkit::pool own;
    const vramkit_pool* const handle = own.handle();
    vramkit::pool target;
    target = std::move(own);
    CHECK(target.handle() == handle);
}

}  // namespace

int main() {
    buffers();
    upkeep();
    arrays();
    containers();
    errors();
    pools();
    std::printf("done\n");
}
