// The raw trace of this process as a file that is mapped: what was recorded is in the file at once,
// and stays there if the program is killed.
#pragma once

#include <atomic>
#include <cstdint>

#include "gate/path.h"
#include "gate/trace_record.h"

namespace vramkit::gate {

class TraceFile {
  public:
    // Where files are made; call once, before anything else.
    void set_folder(const char* folder, const char* driver);
    bool enabled() const { return enabled_.load(std::memory_order_acquire); }

    // Another chunk, zeroed, for one thread. Null where the file cannot grow, or was never made.
    // Space on the disk is taken first: a full disk ends the recording, not the program.
    Record* map_chunk();

    // Gives back the memory of a chunk, known by its end. Its contents stay in the file.
    static void unmap_chunk(Record* end);

    // In a forked child: the next chunk begins a file of its own.
    void forget();

  private:
    bool make();

    std::atomic<bool> enabled_{false};
    std::atomic<int> state_{0};
    std::atomic<std::uint64_t> end_{0};
    TraceHeader* header_ = nullptr;
    Path folder_;
    Path driver_;
    Path path_;
};

}  // namespace vramkit::gate
