// One walk over the steps of each thread.
#include "lab/player.h"

#include <signal.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/listeners.h"

namespace vramkit::lab {
namespace {

constexpr unsigned char kFill = 0xA5;  // what a TOUCH writes

}  // namespace

void Times::add(const Times& other) {
    allocate += other.allocate;
    free += other.free;
    launch += other.launch;
    wait += other.wait;
    allocations += other.allocations;
    frees += other.frees;
    launches += other.launches;
}

void Meter::begin(double now) {
    const std::lock_guard guard(lock_);
    begun_ = at_ = now;
    read(now);
}

void Meter::note(double now, std::int64_t change) {
    const std::lock_guard guard(lock_);
    in_use_ += change;
    peak_in_use_ = std::max(peak_in_use_, in_use_);
    read(now);
}

void Meter::finish(double now, Played& played) {
    const std::lock_guard guard(lock_);
    read(now);
    const double passed = at_ - begun_;
    played.peak_in_use = static_cast<std::uint64_t>(peak_in_use_);
    played.peak_held = peak_;
    played.end_held = held_;
    played.average_held = passed > 0 ? area_ / passed : static_cast<double>(held_);
}

void Meter::read(double now) {
    if (now > at_) area_ += static_cast<double>(held_) * (now - at_);
    at_ = std::max(at_, now);
    held_ = resource_.reserved_bytes();
    peak_ = std::max(peak_, held_);
}

Player::Player(std::shared_ptr<Driver> driver, const Program& program, Resource& resource,
               const Settings& settings)
    : driver_(std::move(driver)),
      program_(program),
      resource_(resource),
      settings_(settings),
      clock_(*driver_),
      meeting_(program, clock_),
      meter_(resource),
      addresses_(program.sizes.size()),
      own_(program.sizes.size()),
      times_(program.threads.size(), std::vector<Times>(program.sections)) {}

Player::~Player() {
    stop();
    for (std::thread& thread : threads_) thread.join();
    clean_up();
}

void Player::start() {
    for (std::uint32_t made = 0; made < program_.streams; ++made) {
        StreamRef stream;
        unsigned long long id = 0;
        if (!done(call().cuStreamCreateWithPriority(&stream.handle, CU_STREAM_NON_BLOCKING, 0),
                  "cuStreamCreateWithPriority", -1)) {
            return;
        }
        const bool known = done(call().cuStreamGetId(stream.handle, &id), "cuStreamGetId", -1);
        stream.id = id;
        stream.durable = true;  // told of before it is destroyed
        streams_.push_back(stream);
        if (!known) return;
    }
    for (std::uint32_t made = 0; made < program_.events; ++made) {
        CUevent event = nullptr;
        if (!done(call().cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate", -1)) {
            return;
        }
        events_.push_back(event);
    }
    for (std::size_t number = 0; number < program_.threads.size(); ++number) {
        {
            const std::lock_guard guard(lock_);
            ++running_;
        }
        try {
            threads_.emplace_back([this, number] { work(number); });
        } catch (const std::system_error& error) {
            {
                const std::lock_guard guard(lock_);
                --running_;
            }
            Failure why;
            why.message = "the system gives only " + std::to_string(number) + " of " +
                          std::to_string(program_.threads.size()) + " threads: " + error.what();
            fail(why, nullptr, -1);
            return;
        }
    }
}

bool Player::wait(std::chrono::milliseconds most) {
    std::unique_lock guard(lock_);
    return ended_.wait_for(guard, most, [this] { return running_ == 0; });
}

bool Player::finish(Played& played, Fault& fault) {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    const bool complete = !failed_ && !meeting_.stopped();
    if (complete) {
        clock_.catch_up(meeting_.moment());
        played.walls = meeting_.walls();
        played.sections.resize(program_.sections);
        for (const std::vector<Times>& of_thread : times_) {
            for (std::size_t section = 0; section < of_thread.size(); ++section) {
                played.sections[section].add(of_thread[section]);
            }
        }
        if (settings_.measure_memory) meter_.finish(meeting_.moment(), played);
    }
    clean_up();
    fault = fault_;
    return complete;
}

void Player::work(std::size_t number) {
    sigset_t every;  // signals are for the thread that waits
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, nullptr);
    const auto begin = [&](double now) {
        if (settings_.measure_memory) meter_.begin(now);
    };
    const auto nothing = [](double) {};
    if (done(call().cuCtxSetCurrent(settings_.context), "cuCtxSetCurrent", -1) &&
        meeting_.meet(0, begin) && walk(number)) {
        meeting_.meet(0, nothing);
    }
    const std::lock_guard guard(lock_);
    --running_;
    ended_.notify_all();
}

bool Player::walk(std::size_t number) {
    Times* times = times_[number].data();
    std::unique_lock program_lock(program_lock_, std::defer_lock);
    double at = clock_.now();
    // The time since the last look is the step's.
    const auto take = [&](double Times::* part) {
        const double now = clock_.now();
        times->*part += now - at;
        at = now;
    };
    const auto measure = [&](std::int64_t change) {
        if (!settings_.measure_memory) return;
        meter_.note(at, change);
        at = clock_.now();
    };
    for (const Step& step : program_.threads[number]) {
        if (meeting_.stopped()) return false;
        if (step.sync.after != 0) {
            if (!(program_.in_turns ? meeting_.wait_for_turn(step.index)
                                    : meeting_.wait_for(program_.slot(step), step.sync.after))) {
                return false;
            }
            at = clock_.now();
        }
        switch (step.op) {
            case Op::allocate:
                if (!allocate(step)) return false;
                take(&Times::allocate);
                ++times->allocations;
                measure(static_cast<std::int64_t>(program_.sizes[step.what]));
                break;
            case Op::free:
                if (!free(step)) return false;
                take(&Times::free);
                ++times->frees;
                measure(-static_cast<std::int64_t>(program_.sizes[step.what]));
                break;
            case Op::touch:
            case Op::kernel:
            case Op::record:
            case Op::wait:
                if (!launch(step)) return false;
                take(&Times::launch);
                times->launches += step.op <= Op::kernel;
                break;
            case Op::wait_for_event:
            case Op::wait_for_stream:
            case Op::wait_for_device:
                if (!wait_for_card(step)) return false;
                take(&Times::wait);
                break;
            case Op::lock:
                program_lock.lock();
                clock_.catch_up(unlocked_at_);
                at = clock_.now();
                break;
            case Op::unlock:
                at = unlocked_at_ = clock_.now();
                program_lock.unlock();
                break;
            case Op::section:
                if (program_.in_turns && step.sync.tells != 0) meeting_.give_turn(step.index + 1);
                if (!meeting_.meet(static_cast<std::size_t>(step.what), [](double) {})) {
                    return false;
                }
                times = &times_[number][static_cast<std::size_t>(step.what)];
                at = clock_.now();
                continue;
        }
        if (step.sync.tells != 0) {
            if (program_.in_turns) {
                meeting_.give_turn(step.index + 1);
            } else {
                meeting_.tell(program_.slot(step));
            }
            at = clock_.now();
        }
    }
    return true;
}

bool Player::stream_for(std::int32_t number, StreamRef& ref, const Step& step) {
    ref = streams_[static_cast<std::size_t>(number)];
    if (!settings_.raw_streams) return true;
    ref = {ref.handle, 0, false};
    return done(identify(call(), ref), "cuStreamGetId", step.index);
}

bool Player::allocate(const Step& step) {
    StreamRef stream;
    if (!stream_for(step.where, stream, step)) return false;
    Failure why;
    const auto block = static_cast<std::size_t>(step.what);
    const std::uint64_t address = resource_.malloc(program_.sizes[block], stream, why);
    if (address == 0) return fail(why, "malloc", step.index);
    addresses_[block] = address;
    own_[block] = step.where;
    return true;
}

bool Player::free(const Step& step) {
    const auto block = static_cast<std::size_t>(step.what);
    std::optional<StreamRef> stream(std::in_place);
    if (!stream_for(step.where == kOwnStream ? own_[block] : step.where, *stream, step)) {
        return false;
    }
    Failure why;
    if (!resource_.free(addresses_[block], program_.sizes[block], stream, why)) {
        return fail(why, "free", step.index);
    }
    addresses_[block] = 0;
    return true;
}

bool Player::launch(const Step& step) {
    CUstream stream = streams_[static_cast<std::size_t>(step.where)].handle;
    const auto what = static_cast<std::size_t>(step.what);
    switch (step.op) {
        case Op::touch:
            return done(
                call().cuMemsetD8Async(addresses_[what], kFill, program_.sizes[what], stream),
                "cuMemsetD8Async", step.index);
        case Op::kernel: {
            std::uint64_t nanoseconds = what;
            void* parameters[] = {&nanoseconds};
            return done(call().cuLaunchKernel(settings_.spin, 1, 1, 1, 32, 1, 1, 0, stream,
                                              parameters, nullptr),
                        "cuLaunchKernel", step.index);
        }
        case Op::record:
            return done(call().cuEventRecord(events_[what], stream), "cuEventRecord", step.index);
        default:
            return done(call().cuStreamWaitEvent(stream, events_[what], 0), "cuStreamWaitEvent",
                        step.index);
    }
}

bool Player::wait_for_card(const Step& step) {
    switch (step.op) {
        case Op::wait_for_event:
            return done(call().cuEventSynchronize(events_[static_cast<std::size_t>(step.what)]),
                        "cuEventSynchronize", step.index);
        case Op::wait_for_stream:
            return done(
                call().cuStreamSynchronize(streams_[static_cast<std::size_t>(step.where)].handle),
                "cuStreamSynchronize", step.index);
        default:
            return done(call().cuCtxSynchronize(), "cuCtxSynchronize", step.index);
    }
}

bool Player::done(CUresult result, const char* name, std::int64_t step) {
    if (result == CUDA_SUCCESS) [[likely]]
        return true;
    return fail(Failure::of_driver(result, name), nullptr, step);
}

bool Player::fail(const Failure& why, const char* method, std::int64_t step) {
    {
        const std::lock_guard guard(lock_);
        if (!failed_) fault_ = {why, method, step};
        failed_ = true;
    }
    meeting_.stop();
    return false;
}

// Nothing is left to be ordered once the card is idle. Errors are dropped: the first one counts.
void Player::clean_up() {
    Failure dropped;
    if (std::any_of(addresses_.begin(), addresses_.end(), [](auto each) { return each != 0; })) {
        call().cuCtxSynchronize();
        for (std::size_t block = 0; block < addresses_.size(); ++block) {
            const std::uint64_t address = std::exchange(addresses_[block], 0);
            if (address == 0) continue;
            resource_.free(address, program_.sizes[block],
                           streams_[static_cast<std::size_t>(own_[block])], dropped);
        }
    }
    for (CUevent event : std::exchange(events_, {})) call().cuEventDestroy_v2(event);
    for (const StreamRef& stream : std::exchange(streams_, {})) {
        announce_stream_closing(call(), stream.id, stream.handle);
        call().cuStreamDestroy_v2(stream.handle);
    }
}

}  // namespace vramkit::lab
