// The file behind a card that several processes share: its layout, where it lies, and how processes
// come and go.
//
// Attaching and leaving are serialised by flock, which the system takes back from a dead process;
// everything else by a robust mutex in the file. A process may be killed at any instruction: each
// store leaves the file consistent, but for the rows of the dead.
#pragma once

#include <pthread.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "sim/time/operation.h"

namespace vramkit::sim {

inline constexpr std::size_t kMostCardProcesses = 256;
inline constexpr std::size_t kLongestCardName = 64;

struct SharedCard {
    static constexpr std::uint64_t kMagic = 0x316472616377766bull;  // "kvwcard1"
    static constexpr std::uint32_t kVersion = 1;

    std::uint64_t magic;  // written last: 0 in a file that is not finished
    std::uint32_t version;
    std::uint32_t bytes;  // of this structure
    pthread_mutex_t mutex;

    // What the first process has fixed.
    std::array<char, 72> profile;
    std::uint64_t figures;  // a hash of the profile's
    std::uint64_t capacity;
    double scale;
    std::int64_t epoch_ns;        // CLOCK_MONOTONIC; times of the lanes count from here
    std::uint64_t pid_namespace;  // in which the numbers of the processes hold

    struct LaneState {
        double next_free_ns;  // real time since the epoch
        std::uint32_t owner;  // row of the process with the newest turn
    };
    std::array<LaneState, kLanes> lanes;  // by number

    // Invariant: the sum of the bytes of all rows with a pid is at most the capacity.
    struct Row {
        std::atomic<std::int32_t> pid;  // 0: free; written last
        std::atomic<std::uint64_t> bytes;
        std::uint64_t started;
        std::uint64_t program;  // tells the process from what it was before an exec
    };
    std::array<Row, kMostCardProcesses> rows;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// An open file. Letters, digits and "-", "_", "." may be in the name of a card.
class CardFile {
  public:
    // Made where it does not exist. The file comes back locked against attaching and leaving. Null
    // and a reason where it is not, or cannot be, this user's own file of a card.
    static std::unique_ptr<CardFile> open(const std::string& name, std::string& error);
    ~CardFile();
    CardFile(const CardFile&) = delete;
    CardFile& operator=(const CardFile&) = delete;

    SharedCard& shared() { return *shared_; }
    const std::string& path() const { return path_; }

    void lock();
    void unlock();
    // With the lock held: the last process has left.
    void remove();

  private:
    CardFile() = default;
    // Whether to try again: another process has just removed the file or its folder.
    enum class Opened : std::uint8_t { done, refused, again };
    Opened try_open(std::string& error);
    bool check_or_make(std::uint64_t size, std::string& error);

    std::string folder_;
    std::string path_;
    int file_ = -1;
    SharedCard* shared_ = nullptr;
};

}  // namespace vramkit::sim
