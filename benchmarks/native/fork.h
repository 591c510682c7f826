// Work on several streams at once, timed by events from its common start to its common end.
#pragma once

#include <cstddef>
#include <vector>

#include "objects.h"

namespace bench {

class Fork {
  public:
    Fork(Gpu& gpu, std::size_t streams) : gpu_(gpu), start_(gpu), end_(gpu) {
        for (std::size_t i = 0; i < streams; ++i) {
            streams_.emplace_back(gpu);
            done_.emplace_back(gpu, CU_EVENT_DISABLE_TIMING);
        }
    }

    CUstream stream(std::size_t index) const { return streams_[index]; }

    // GPU time in microseconds until all streams are through what `enqueue` puts on them. With
    // ahead_ns the first stream is kept busy for that long before the clock starts.
    template <class Enqueue>
    double time(Enqueue&& enqueue, std::uint64_t ahead_ns = 0) {
        if (ahead_ns > 0) gpu_.spin(ahead_ns, 1, 32, streams_[0]);
        start_.record(streams_[0]);
        for (std::size_t i = 1; i < streams_.size(); ++i) {
            GPU_CALL(gpu_, cuStreamWaitEvent, streams_[i], start_, 0);
        }
        enqueue();
        for (std::size_t i = 1; i < streams_.size(); ++i) {
            done_[i].record(streams_[i]);
            GPU_CALL(gpu_, cuStreamWaitEvent, streams_[0], done_[i], 0);
        }
        end_.record(streams_[0]);
        end_.synchronize();
        return end_.microseconds_since(start_);
    }

  private:
    Gpu& gpu_;
    Event start_;
    Event end_;
    std::vector<Stream> streams_;
    std::vector<Event> done_;
};

}  // namespace bench
