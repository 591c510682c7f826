// Stream caches of streams: what is done becomes anybody's, and streams and captures end.
#include <utility>
#include <vector>

#include "base/rules.h"
#include "base/scopes.h"
#include "pool/pool.h"

namespace vramkit::pool {
namespace {

constexpr std::size_t kAll = ~std::size_t{0};

}  // namespace

// From a stream cache, whose lock is held, to idle memory: the oldest blocks whose work is done.
void Pool::collect(StreamCache& stream_cache, ClassIndex index, std::size_t most) {
    std::vector<BlockRef> blocks;
    stream_cache.take_passed(index, most, blocks);
    if (is_broken(Rule::idle_only_behind_fence)) {
        for (; most > 0 && !stream_cache.bins[index].blocks.empty(); --most) {
            blocks.push_back(stream_cache.take_newest(index));
        }
    }
    for (const BlockRef& block : blocks) give_idle(block);
}

// Whatever is done, of all stream caches; or all that has a fence, at the price of a wait on the
// host.
void Pool::collect_all(Wait wait) {
    release_held(wait != Wait::no);
    for (const auto& each : stream_caches_) {
        StreamCache& stream_cache = *each;
        std::unique_lock guard(stream_cache.lock);
        stream_cache.record_fence();
        if (wait == Wait::no) {
            stream_cache.fences.ask();
        } else if (is_broken(Rule::host_waits_for_the_stream)) {
            stream_cache.fences.pass_all();
        } else {
            stream_cache.wait(guard);
        }
        for (ClassIndex index = 0; index < kClasses; ++index) collect(stream_cache, index, kAll);
    }
    drop_ended();
}

// Blocks of raw streams that nobody spoke of lately: their handles may mean anything by now, and
// only the whole card can be waited for. True: it was, and what has no fence has passed.
bool Pool::pass_unfenced() {
    std::vector<std::pair<StreamCache*, Fences::Number>> unfenced;
    for (const auto& stream_cache : stream_caches_) {
        const std::lock_guard guard(stream_cache->lock);
        // Other threads go on: only what is here now is waited for.
        if (stream_cache->has_unfenced())
            unfenced.emplace_back(stream_cache.get(),
                                  is_broken(Rule::wait_covers_only_what_came_before)
                                      ? stream_cache->fences.open()
                                      : stream_cache->fences.close());
    }
    if (unfenced.empty() && held_blocks_.bytes_awaiting_card() == 0) return false;
    if (!device_sync_.wait()) return false;
    for (const auto& [stream_cache, number] : unfenced) {
        const std::lock_guard guard(stream_cache->lock);
        stream_cache->fences.pass(number);
    }
    held_blocks_.card_is_done();
    return true;
}

// Graphs that are gone end their captures; ended streams whose work is done need no stream cache.
void Pool::drop_ended() {
    for (const auto& arena : arenas_) {
        if (!known(arena->number).graph->over() &&
            !is_broken(Rule::graph_keeps_its_block_until_its_end)) {
            continue;
        }
        end_stream(arena->number);
        const std::lock_guard guard(arena->lock);
        arena->fences.pass_all();
    }
    const auto drop = [&](Known& each) {
        if (each.stream_cache == nullptr || !each.stream_cache->ended) return;
        {
            StreamCache& stream_cache = *each.stream_cache;
            const std::lock_guard guard(stream_cache.lock);
            stream_cache.fences.ask();
            if (!stream_cache.fences.has_passed(stream_cache.last_fence)) return;
            for (ClassIndex index = 0; index < kClasses; ++index)
                collect(stream_cache, index, kAll);
            slow_.stream_cache_hits += stream_cache.hits;
            slow_.events_recorded += stream_cache.recorded;
            large_->keep(stream_cache.spare, 0);
        }
        each.stream_cache = nullptr;
    };
    for (const std::uint32_t number : ending_) drop(known(number));
    const auto is_over = [&](std::uint32_t number) {
        return known(number).stream_cache == nullptr;
    };
    if (std::erase_if(ending_, is_over) == 0) return;
    for (auto* list : {&stream_caches_, &arenas_}) {
        std::erase_if(*list,
                      [&](const auto& stream_cache) { return is_over(stream_cache->number); });
    }
}

// Nothing new comes from the stream; caches of it pass on what is still freed.
void Pool::end_stream(std::uint32_t number) {
    StreamCache& stream_cache = *known(number).stream_cache;
    for (const auto& cache : caches_) {
        if (cache->number == number) drain(*cache, true);
    }
    const std::lock_guard guard(stream_cache.lock);
    stream_cache.end();
    if (is_broken(Rule::ending_stream_gets_last_fence)) stream_cache.fences.pass_all();
    numbers_.erase({stream_cache.stream.id, stream_cache.stream.capture});
    ending_.push_back(number);
}

void Pool::stream_closing(std::uint64_t id, CUstream handle) {
    const std::lock_guard guard(lock_);
    // Captures that were made on it go by its handle.
    for (Known& each : captures_) {
        if (each.handle == handle) each.durable = false;
    }
    const auto found = numbers_.find({id, 0});
    if (closed() || found == numbers_.end()) return;
    const SlowPathScope scope(call_, context_);
    end_stream(found->second);
    drop_ended();
}

}  // namespace vramkit::pool
