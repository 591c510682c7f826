// Goes through a program on a resource, with threads, streams and events of its own, so that no
// Python is in the times. The rules are those of src/vramkit/lab/python_player.py; tests compare
// the two.
//
// A step costs 29 ns beside the call itself, most of it one look at the clock: it is timed from the
// end of the one before it, so that an allocation of nothing reads as 29 ns. 35 ns more where
// memory is measured, and the resource's own cost of telling. (One of 2 shared cores, 2026-11-18.)
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/failure.h"
#include "base/resource.h"
#include "base/stream_ref.h"
#include "driver/driver.h"
#include "lab/clock.h"
#include "lab/meeting.h"
#include "lab/program.h"

namespace vramkit::lab {

// Of one section. Times are sums over the threads, in nanoseconds.
struct Times {
    double allocate = 0, free = 0, launch = 0, wait = 0;
    std::uint64_t allocations = 0, frees = 0, launches = 0;

    void add(const Times& other);
};

struct Played {
    std::vector<Times> sections;
    std::vector<double> walls;
    // Only where memory is measured. Bytes.
    std::uint64_t peak_in_use = 0, peak_held = 0, end_held = 0;
    double average_held = 0;
};

// What went wrong first.
struct Fault {
    Failure why;
    // Of the resource: "malloc" or "free". None: a driver call failed; or no thread was to be had,
    // which the message says.
    const char* method = nullptr;
    std::int64_t step = -1;  // -1: before the first one
};

// Bytes in use and held, over time. From any thread.
class Meter {
  public:
    explicit Meter(const Resource& resource) : resource_(resource) {}

    void begin(double now);
    void note(double now, std::int64_t change);
    void finish(double now, Played& played);

  private:
    void read(double now);

    const Resource& resource_;
    std::mutex lock_;
    std::int64_t in_use_ = 0, peak_in_use_ = 0;
    std::uint64_t held_ = 0, peak_ = 0;
    double begun_ = 0, at_ = 0, area_ = 0;
};

class Player {
  public:
    struct Settings {
        CUcontext context = nullptr;
        CUfunction spin = nullptr;  // the kernel vk_spin, in that context
        // Each malloc and free gets the stream as a handle of somebody else's, and asks the driver
        // what it is.
        bool raw_streams = false;
        bool measure_memory = false;
    };

    // The program and the resource outlive it. The context is current on the calling thread, here
    // and in every other call.
    Player(std::shared_ptr<Driver> driver, const Program& program, Resource& resource,
           const Settings& settings);
    // Stops, and waits for the threads. Nothing of it is left then.
    ~Player();
    Player(const Player&) = delete;
    Player& operator=(const Player&) = delete;

    // Makes streams and events, and lets the threads go.
    void start();
    // True when all threads are at their end.
    bool wait(std::chrono::milliseconds most);
    void stop() { meeting_.stop(); }
    // Joins the threads, frees what is in use after a failure, and destroys streams and events.
    // False and the first fault where there was one; a play that was stopped has no result either.
    bool finish(Played& played, Fault& fault);

  private:
    void work(std::size_t number);
    bool walk(std::size_t number);
    bool allocate(const Step& step);
    bool free(const Step& step);
    bool launch(const Step& step);
    bool wait_for_card(const Step& step);
    // The stream as the resource gets it.
    bool stream_for(std::int32_t number, StreamRef& ref, const Step& step);
    bool fail(const Failure& why, const char* method, std::int64_t step);
    // False and a fault where the call has failed.
    bool done(CUresult result, const char* call, std::int64_t step);
    void clean_up();

    const DriverTable& call() const { return driver_->call(); }

    const std::shared_ptr<Driver> driver_;
    const Program& program_;
    Resource& resource_;
    const Settings settings_;
    const Clock clock_;
    Meeting meeting_;
    Meter meter_;
    std::vector<StreamRef> streams_;
    std::vector<CUevent> events_;
    // By block: its address, 0 where it is not in use, and the stream of its allocation.
    std::vector<std::uint64_t> addresses_;
    std::vector<std::int32_t> own_;
    std::vector<std::vector<Times>> times_;  // by thread and section
    std::mutex program_lock_;                // the mutex of LOCK
    double unlocked_at_ = 0;
    std::vector<std::thread> threads_;
    std::mutex lock_;
    std::condition_variable ended_;
    std::size_t running_ = 0;
    bool failed_ = false;
    Fault fault_;
};

}  // namespace vramkit::lab
