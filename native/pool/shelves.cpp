// Shelves of streams: what is done becomes anybody's, and streams and captures end.
#include <utility>
#include <vector>

#include "pool/pool.h"
#include "pool/scopes.h"

namespace vramkit::pool {
namespace {

constexpr std::size_t kAll = ~std::size_t{0};

}  // namespace

// From a shelf, whose lock is held, to idle memory: the oldest blocks whose work is done.
void Pool::collect(Shelf& shelf, ClassIndex index, std::size_t most) {
    std::vector<BlockRef> blocks;
    shelf.take_passed(index, most, blocks);
    for (const BlockRef& block : blocks) give_idle(block);
}

// Whatever is done, of all shelves; or all that has a mark, at the price of a wait on the host.
void Pool::collect_all(Wait wait) {
    release_held(wait != Wait::no);
    for (const auto& each : shelves_) {
        Shelf& shelf = *each;
        std::unique_lock guard(shelf.lock);
        shelf.mark();
        wait == Wait::no ? shelf.marks.ask() : shelf.wait(guard);
        for (ClassIndex index = 0; index < kClasses; ++index) collect(shelf, index, kAll);
    }
    drop_ended();
}

// Blocks of raw streams that nobody spoke of lately: their handles may mean anything by now, and
// only the whole card can be waited for. True: it was, and what has no mark has passed.
bool Pool::pass_unmarked() {
    std::vector<std::pair<Shelf*, Marks::Number>> unmarked;
    for (const auto& shelf : shelves_) {
        const std::lock_guard guard(shelf->lock);
        // Other threads go on: only what is here now is waited for.
        if (shelf->has_unmarked()) unmarked.emplace_back(shelf.get(), shelf->marks.close());
    }
    if (unmarked.empty() && lending_.bytes_awaiting_card() == 0) return false;
    if (!fence_.wait()) return false;
    for (const auto& [shelf, number] : unmarked) {
        const std::lock_guard guard(shelf->lock);
        shelf->marks.pass(number);
    }
    lending_.card_is_done();
    return true;
}

// Graphs that are gone end their captures; ended streams whose work is done need no shelf.
void Pool::drop_ended() {
    for (const auto& arena : arenas_) {
        if (!known(arena->number).graph->over()) continue;
        end_shelf(arena->number);
        const std::lock_guard guard(arena->lock);
        arena->marks.pass_all();
    }
    const auto drop = [&](Known& each) {
        if (each.shelf == nullptr || !each.shelf->ended) return;
        {
            Shelf& shelf = *each.shelf;
            const std::lock_guard guard(shelf.lock);
            shelf.marks.ask();
            if (!shelf.marks.has_passed(shelf.last_mark)) return;
            for (ClassIndex index = 0; index < kClasses; ++index) collect(shelf, index, kAll);
            slow_.shelf_hits += shelf.hits;
            slow_.marks += shelf.recorded;
            large_->keep(shelf.spare, 0);
        }
        each.shelf = nullptr;
    };
    for (const std::uint32_t number : ending_) drop(known(number));
    const auto is_over = [&](std::uint32_t number) { return known(number).shelf == nullptr; };
    if (std::erase_if(ending_, is_over) == 0) return;
    for (auto* list : {&shelves_, &arenas_}) {
        std::erase_if(*list, [&](const auto& shelf) { return is_over(shelf->number); });
    }
}

// Nothing new comes from the stream; caches of it pass on what is still freed.
void Pool::end_shelf(std::uint32_t number) {
    Shelf& shelf = *known(number).shelf;
    for (const auto& cache : caches_) {
        if (cache->number == number) drain(*cache, true);
    }
    const std::lock_guard guard(shelf.lock);
    shelf.end();
    numbers_.erase({shelf.stream.id, shelf.stream.capture});
    ending_.push_back(number);
}

void Pool::stream_closing(std::uint64_t id, CUstream handle) {
    const std::lock_guard guard(lock_);
    // Captures that were made on it go by its handle.
    for (Known& each : captures_) {
        if (each.handle == handle) each.told = false;
    }
    const auto found = numbers_.find({id, 0});
    if (closed() || found == numbers_.end()) return;
    const SlowPathScope scope(call_, context_);
    end_shelf(found->second);
    drop_ended();
}

}  // namespace vramkit::pool
