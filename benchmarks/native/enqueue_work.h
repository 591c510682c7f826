// The operations whose enqueue is measured, and what they work on: every stream goes round slots of
// its own, so that nothing here is a race and the checker has many ranges to keep.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "objects.h"

namespace bench {

class Workbench {
  public:
    static constexpr std::size_t kBytes = 4 * KiB;
    static constexpr std::size_t kSlots = 256;

    Workbench(Gpu& opened, int streams)
        : gpu(opened),
          device(opened, static_cast<std::size_t>(streams) * kSlots * kBytes),
          host(static_cast<char*>(
              opened.pinned(static_cast<std::size_t>(streams) * kSlots * kBytes))),
          recorder(opened),
          recorded(opened, CU_EVENT_DISABLE_TIMING) {
        for (int i = 0; i < streams; ++i) {
            lanes.emplace_back(opened);
            marks.emplace_back(opened, CU_EVENT_DISABLE_TIMING);
            turns.push_back(0);
        }
        recorded.record(recorder);
    }

    // Between two blocks of enqueues: waits for all streams where asked, and renews the event that
    // the streams wait for.
    void next_block(bool synchronised) {
        if (synchronised) synchronize();
        recorded.record(recorder);
    }

    void synchronize() const {
        for (const Stream& lane : lanes) lane.synchronize();
        recorder.synchronize();
    }

    // Byte offset of the slot that this lane uses next, in device and in host memory.
    std::size_t next_slot(std::size_t lane) {
        return (lane * kSlots + turns[lane]++ % kSlots) * kBytes;
    }

    Gpu& gpu;
    DeviceMemory device;
    char* host;
    Stream recorder;
    Event recorded;
    std::vector<Stream> lanes;
    std::vector<Event> marks;
    std::vector<std::size_t> turns;  // slots used so far, by lane
};

struct Operation {
    const char* name;
    const char* call;
    void (*enqueue)(Workbench& bench, std::size_t lane);
};

inline constexpr std::array kOperations = {
    Operation{
        "launch_spin", "cuLaunchKernel, no memory",
        [](Workbench& bench, std::size_t lane) { bench.gpu.spin(1000, 1, 32, bench.lanes[lane]); }},
    Operation{"launch_fill", "cuLaunchKernel, writes 4 KiB",
              [](Workbench& bench, std::size_t lane) {
                  bench.gpu.fill(bench.device + bench.next_slot(lane), Workbench::kBytes / 4, 1,
                                 bench.lanes[lane]);
              }},
    Operation{"copy_h2d_4KiB", "cuMemcpyHtoDAsync, 4 KiB pinned",
              [](Workbench& bench, std::size_t lane) {
                  const std::size_t at = bench.next_slot(lane);
                  GPU_CALL(bench.gpu, cuMemcpyHtoDAsync_v2, bench.device + at, bench.host + at,
                           Workbench::kBytes, bench.lanes[lane]);
              }},
    Operation{
        "event_record", "cuEventRecord",
        [](Workbench& bench, std::size_t lane) { bench.marks[lane].record(bench.lanes[lane]); }},
    Operation{"stream_wait_event", "cuStreamWaitEvent",
              [](Workbench& bench, std::size_t lane) {
                  GPU_CALL(bench.gpu, cuStreamWaitEvent, bench.lanes[lane], bench.recorded, 0);
              }},
    Operation{"memset_4KiB", "cuMemsetD8Async, 4 KiB",
              [](Workbench& bench, std::size_t lane) {
                  GPU_CALL(bench.gpu, cuMemsetD8Async, bench.device + bench.next_slot(lane), 0,
                           Workbench::kBytes, bench.lanes[lane]);
              }},
};

}  // namespace bench
