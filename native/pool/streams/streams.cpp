// Streams come and go; blocks whose work is done become idle.
#include "pool/streams/streams.h"

#include <algorithm>
#include <utility>

#include "base/rules.h"

namespace vramkit::pool {
namespace {

// The last fence of a stream, whose event nobody records again while this lives.
class LastFence {
  public:
    LastFence(std::shared_ptr<StreamCache> cache, Fences::Pinned pinned)
        : cache_(std::move(cache)), pinned_(pinned) {}
    LastFence(LastFence&&) = default;
    ~LastFence() {
        if (cache_ == nullptr) return;  // moved from
        const std::lock_guard guard(cache_->lock);
        cache_->fences.unpin(pinned_, passed_);
    }

    void wait(const DriverTable& call) {
        passed_ = is_broken(Rule::host_waits_for_the_stream) ||
                  call.cuEventSynchronize(pinned_.second) == CUDA_SUCCESS;
    }

  private:
    std::shared_ptr<StreamCache> cache_;
    Fences::Pinned pinned_;
    bool passed_ = false;
};

// Room for one more, so that the next push cannot fail.
template <class List>
void make_room(List& list) {
    if (list.size() == list.capacity()) list.reserve(2 * list.size() + 8);
}

}  // namespace

std::optional<std::uint32_t> Streams::number_of(const StreamRef& stream, Failure& why) {
    const Key key{stream.id, stream.capture};
    if (const auto found = numbers_.find(key); found != numbers_.end()) {
        // It may have been seen first as a raw handle, and now as a stream of ours.
        StreamRecord& record = (*this)[found->second];
        const std::lock_guard guard(record.cache->lock);
        record.cache->stream.durable |= stream.durable;
        record.durable |= stream.durable;
        return found->second;
    }
    const SlowPathScope scope = card_.enter();
    CUcontext context = card_.context;  // the legacy stream is that of this context
    if (!is_legacy(stream.handle) &&
        failed(card_.call.cuStreamGetCtx(stream.handle, &context), "cuStreamGetCtx", why)) {
        return {};
    }
    if (context != card_.context) {
        why = Failure::bad_value("the stream is of another context than the pool");
        return {};
    }
    std::shared_ptr<GraphLife> graph;
    if (stream.capture != 0) {
        cuuint64_t id = 0;
        CUgraph captured = nullptr;
        CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
        const CUresult result = card_.call.cuStreamGetCaptureInfo_v2(stream.handle, &status, &id,
                                                                     &captured, nullptr, nullptr);
        if (result != CUDA_SUCCESS || id != stream.capture || captured == nullptr) {
            why = Failure::bad_value("the stream's capture is over or was broken");
            return {};
        }
        graph = GraphLife::of(card_.call, captured);
    }
    const std::optional<std::uint32_t> number = new_number(stream.capture != 0, why);
    if (!number) return {};
    auto& caches = stream.capture == 0 ? caches_ : arenas_;
    make_room(caches);
    const auto cache = std::make_shared<StreamCache>(events_, memory_.ranges(), *number, stream);
    if (stream.capture != 0) {
        captures_by_handle_.emplace(stream.handle, *number);
        cache->keeps_blocks = memory_.nvtx() != nullptr;
    }
    numbers_.emplace(key, *number);
    (*this)[*number] = {cache, std::move(graph), stream.capture, stream.handle, stream.durable};
    caches.push_back(cache);
    return number;
}

// An unused number if there is one. Its record stays marked as spare until it is filled.
std::optional<std::uint32_t> Streams::new_number(bool capture, Failure& why) {
    auto& spare = capture ? spare_captures_ : spare_streams_;
    auto& records = capture ? captures_ : streams_;
    if (spare.empty()) {
        if (records.size() == kCaptureBit) {
            why = Failure::bad_value("the pool knows too many streams (8,388,608)");
            return {};
        }
        records.emplace_back().spare = true;
        spare.reserve(records.capacity());  // so that reuse_numbers() cannot fail
        spare.push_back(static_cast<std::uint32_t>(records.size() - 1));
    }
    const std::uint32_t number = spare.back();
    spare.pop_back();
    return capture ? number | kCaptureBit : number;
}

std::optional<std::uint32_t> Streams::find(std::uint64_t id) const {
    const auto found = numbers_.find({id, 0});
    if (found == numbers_.end()) return {};
    return found->second;
}

void Streams::collect(StreamCache& cache, ClassIndex index, std::size_t most) {
    std::vector<BlockRef> blocks;
    cache.take_passed(index, most, blocks);
    if (is_broken(Rule::idle_only_behind_fence)) {
        for (; most > 0 && !cache.bins[index].blocks.empty(); --most) {
            blocks.push_back(cache.take_newest(index));
        }
    }
    for (const BlockRef& block : blocks) memory_.give_idle(block);
}

void Streams::collect(StreamCache& cache, FreeRanges& ranges) {
    if (is_broken(Rule::idle_only_behind_fence)) cache.fences.pass_all();
    ranges.collect(cache.fences, [&](Slab& range) { memory_.give_idle(BlockRef{&range, 0}); });
}

void Streams::collect(StreamCache& cache, bool with_ranges) {
    for (ClassIndex index = cache.next_filled(0); index < kClasses;
         index = cache.next_filled(index + 1)) {
        collect(cache, index, ~std::size_t{0});
    }
    collect(cache, cache.leaving);
    if (with_ranges) collect(cache, cache.ranges);
}

void Streams::collect_all(const StreamCache* keeps_ranges) {
    for (const auto& each : caches_) {
        StreamCache& cache = *each;
        const std::lock_guard guard(cache.lock);
        cache.record_fence();
        cache.fences.poll();
        collect(cache, each.get() != keeps_ranges);
    }
}

bool Streams::wait(std::unique_lock<BriefMutex>& pool) {
    std::vector<LastFence> last;
    last.reserve(caches_.size());
    for (const auto& each : caches_) {
        const std::lock_guard guard(each->lock);
        each->record_fence();
        if (const auto pinned = each->fences.pin_last()) last.emplace_back(each, *pinned);
    }
    if (last.empty()) return false;
    pool.unlock();
    for (LastFence& each : last) each.wait(card_.call);
    last.clear();
    pool.lock();
    return true;
}

bool Streams::wait_for_unfenced(std::unique_lock<BriefMutex>& pool, bool for_others) {
    std::vector<std::pair<std::shared_ptr<StreamCache>, Fences::Number>> unfenced;
    unfenced.reserve(caches_.size());
    for (const auto& each : caches_) {
        const std::lock_guard guard(each->lock);
        if (!each->has_unfenced()) continue;
        // Other threads continue: the wait covers only what is here now.
        unfenced.emplace_back(each, is_broken(Rule::wait_covers_only_what_came_before)
                                        ? each->fences.open()
                                        : each->fences.close());
    }
    if (unfenced.empty() && !for_others) return false;
    pool.unlock();
    const bool waited = device_sync_.wait();
    pool.lock();
    if (!waited) return false;
    for (const auto& [cache, number] : unfenced) {
        const std::lock_guard guard(cache->lock);
        cache->fences.pass(number);
    }
    return true;
}

void Streams::end(std::uint32_t number) {
    StreamCache& cache = *(*this)[number].cache;
    make_room(ending_);
    const std::lock_guard guard(cache.lock);
    cache.end();
    if (is_broken(Rule::ending_stream_gets_last_fence)) cache.fences.pass_all();
    // A graph that is gone has no work left.
    if (is_capture(number)) cache.fences.pass_all();
    numbers_.erase({cache.stream.id, cache.stream.capture});
    ending_.push_back(number);
}

std::vector<std::uint32_t> Streams::captures_that_are_over() const {
    std::vector<std::uint32_t> over;
    for (const auto& arena : arenas_) {
        if (!arena->ended && ((*this)[arena->number].graph->over() ||
                              is_broken(Rule::graph_keeps_its_block_until_its_end))) {
            over.push_back(arena->number);
        }
    }
    return over;
}

void Streams::drop_ended() {
    for (const std::uint32_t number : ending_) {
        StreamRecord& record = (*this)[number];
        {
            StreamCache& cache = *record.cache;
            const std::lock_guard guard(cache.lock);
            cache.fences.poll();
            if (!cache.fences.has_passed(cache.last_fence)) continue;
            collect(cache, true);
            counters_.stream_cache_hits += cache.hits;
            counters_.events_recorded += cache.recorded;
        }
        record.cache = nullptr;
    }
    const auto is_over = [&](std::uint32_t number) { return (*this)[number].cache == nullptr; };
    if (std::erase_if(ending_, is_over) == 0) return;
    for (auto* list : {&caches_, &arenas_}) {
        std::erase_if(*list, [&](const auto& cache) { return is_over(cache->number); });
    }
}

void Streams::handle_closing(CUstream handle) {
    const auto [begin, end] = captures_by_handle_.equal_range(handle);
    for (auto each = begin; each != end; ++each) (*this)[each->second].durable = false;
}

void Streams::forget_handle(CUstream handle, std::uint32_t number) {
    const auto [begin, end] = captures_by_handle_.equal_range(handle);
    for (auto each = begin; each != end; ++each) {
        if (each->second == number) {
            captures_by_handle_.erase(each);
            return;
        }
    }
}

void Streams::forget_driver() {
    each_cache([](StreamCache& cache) {
        const std::lock_guard guard(cache.lock);
        cache.fences.forget();
    });
    events_.forget();
    device_sync_.forget();
}

void Streams::drop_blocks() {
    each_cache([](StreamCache& cache) {
        const std::lock_guard guard(cache.lock);
        for (ClassIndex index = 0; index < kFirstRange; ++index) {
            while (cache.take_newest(index).slab != nullptr) {
            }
        }
        for (FreeRanges* ranges : {&cache.ranges, &cache.leaving}) {
            ranges->each([&](Slab& range) {
                ranges->take(range);
                return true;
            });
        }
    });
}

void Streams::clear() {
    streams_.clear();
    captures_.clear();
    caches_.clear();
    arenas_.clear();
    events_.drop();
}

}  // namespace vramkit::pool
