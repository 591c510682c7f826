// The check of a program, and what its threads have to wait for.
#include "lab/program.h"

#include <algorithm>
#include <array>
#include <string>

#include "base/sizes.h"

namespace vramkit::lab {
namespace {

constexpr std::uint32_t kMostThreads = 1U << 16, kMostStreams = 1U << 20, kMostEvents = 1U << 24;
constexpr std::int64_t kLongestKernel = 1'000'000'000'000;  // ns
constexpr std::int64_t kLargest = std::int64_t{1} << 40;
constexpr std::array kNames = {"ALLOCATE",        "FREE", "TOUCH",          "KERNEL",
                               "RECORD",          "WAIT", "WAIT_FOR_EVENT", "WAIT_FOR_STREAM",
                               "WAIT_FOR_DEVICE", "LOCK", "UNLOCK",         "SECTION"};
static_assert(kNames.size() == kOps);

constexpr std::uint32_t kNobody = ~std::uint32_t{0};

bool of_block(Op op) { return op <= Op::touch; }
bool of_event(Op op) { return op == Op::record || op == Op::wait || op == Op::wait_for_event; }
bool on_stream(Op op) { return op <= Op::wait || op == Op::wait_for_stream; }

// Reads the steps in their order. What is wrong is said as a sentence that ends with it.
class Check {
  public:
    explicit Check(const Columns& columns)
        : columns_(columns),
          blocks_(columns.sizes.size()),
          events_(columns.events),
          locked_(columns.thread_count) {}

    // Empty: nothing is wrong.
    std::string run() {
        for (std::size_t block = 0; block < columns_.sizes.size(); ++block) {
            const std::int64_t bytes = columns_.sizes[block];
            if (bytes < 1 || bytes > kLargest) {
                return "block " + std::to_string(block) + " has " + std::to_string(bytes) +
                       " bytes; it may have 1 to 2^40";
            }
        }
        for (step_ = 0; step_ < columns_.ops.size(); ++step_) {
            if (std::string wrong = one(); !wrong.empty()) return wrong;
        }
        return end();
    }

    bool shared_block(std::size_t block) const { return blocks_[block].shared; }
    bool shared_event(std::size_t event) const { return events_[event].shared; }

  private:
    enum class State : std::uint8_t { none, in_use, freed };
    struct Block {
        State state = State::none;
        bool shared = false;
        std::uint16_t thread = 0;
    };
    struct Event {
        bool shared = false;
        bool several = false;  // it is recorded by several threads, or on several streams
        std::uint32_t thread = kNobody;
        std::int32_t stream = 0;
    };

    Op op() const { return static_cast<Op>(columns_.ops[step_]); }
    std::uint32_t thread() const { return columns_.threads[step_]; }
    std::int64_t what() const { return columns_.what[step_]; }
    std::int32_t where() const { return columns_.where[step_]; }
    bool by_itself() const { return !columns_.in_turns && columns_.thread_count > 1; }

    std::string wrong(const std::string& text) const {
        const std::uint8_t number = columns_.ops[step_];
        return "step " + std::to_string(step_) + ": " +
               (number < kOps ? std::string(kNames[number]) + ' ' : std::string()) + text;
    }
    std::string out_of(const char* what, std::int64_t given, std::uint64_t count) const {
        return wrong("names " + std::string(what) + ' ' + std::to_string(given) +
                     "; the program has " + std::to_string(count));
    }

    std::string one() {
        if (columns_.ops[step_] >= kOps) {
            return wrong("has operation " + std::to_string(columns_.ops[step_]) +
                         "; there are 0 to " + std::to_string(kOps - 1));
        }
        if (thread() >= columns_.thread_count) {
            return out_of("thread", thread(), columns_.thread_count);
        }
        const bool own = op() == Op::free && where() == kOwnStream;
        if (on_stream(op()) && !own &&
            (where() < 0 || static_cast<std::uint32_t>(where()) >= columns_.streams)) {
            return out_of("stream", where(), columns_.streams);
        }
        if (section_left_ > 0 && op() != Op::section) {
            return wrong(
                "stands between the SECTION steps of the threads; they follow one another");
        }
        if (of_block(op())) return block();
        if (of_event(op())) return event();
        switch (op()) {
            case Op::kernel:
                if (what() < 0 || what() > kLongestKernel) {
                    return wrong("of " + std::to_string(what()) + " ns; it may last 0 to 10^12");
                }
                return "";
            case Op::lock:
                return lock();
            case Op::unlock:
                return unlock();
            case Op::section:
                return section();
            default:
                return "";
        }
    }

    std::string block() {
        if (what() < 0 || static_cast<std::size_t>(what()) >= blocks_.size()) {
            return out_of("block", what(), blocks_.size());
        }
        Block& block = blocks_[static_cast<std::size_t>(what())];
        const auto name = [&] { return "of block " + std::to_string(what()); };
        if (op() == Op::allocate) {
            if (block.state != State::none) return wrong(name() + ", which was allocated before");
            block.state = State::in_use;
            block.thread = columns_.threads[step_];
            return "";
        }
        if (block.state != State::in_use) return wrong(name() + ", which is not in use");
        if (op() == Op::free) block.state = State::freed;
        const bool foreign = block.thread != thread();
        block.shared |= foreign;
        // A free waits for the writes of other threads too.
        const bool waits = foreign || (op() == Op::free && block.shared);
        return waits ? refuse_in_lock(name()) : "";
    }

    std::string event() {
        if (what() < 0 || static_cast<std::size_t>(what()) >= events_.size()) {
            return out_of("event", what(), events_.size());
        }
        Event& event = events_[static_cast<std::size_t>(what())];
        if (op() == Op::record) {
            event.several |=
                event.thread != kNobody && (event.thread != thread() || event.stream != where());
            event.thread = thread();
            event.stream = where();
        } else if (event.thread != kNobody && event.thread != thread()) {
            event.shared = true;
            if (std::string no = refuse_in_lock("for event " + std::to_string(what()));
                !no.empty()) {
                return no;
            }
        }
        if (by_itself() && event.shared && event.several) {
            return wrong("of event " + std::to_string(what()) +
                         ", for which another thread waits: it may be recorded by one thread on "
                         "one stream only, or in_turns must be set");
        }
        return "";
    }

    // Who holds the mutex waits for nobody: else two threads could wait for one another.
    std::string refuse_in_lock(const std::string& what) const {
        if (!by_itself() || !locked_[thread()]) return "";
        return wrong(what +
                     " waits for another thread while its own holds the mutex; do it before "
                     "LOCK or after UNLOCK");
    }

    std::string lock() {
        if (locked_[thread()]) return wrong("while the thread holds the mutex");
        if (columns_.in_turns && holds_ > 0) return wrong("while another thread holds the mutex");
        locked_[thread()] = true;
        ++holds_;
        return "";
    }
    std::string unlock() {
        if (!locked_[thread()]) return wrong("while the thread does not hold the mutex");
        locked_[thread()] = false;
        --holds_;
        return "";
    }

    std::string section() {
        if (what() < 0 || what() >= columns_.sections) {
            return out_of("section", what(), columns_.sections);
        }
        if (locked_[thread()]) return wrong("while the thread holds the mutex");
        if (section_left_ == 0) {
            section_ = what();
            section_left_ = columns_.thread_count;
            in_section_.assign(columns_.thread_count, false);
        }
        if (what() != section_ || in_section_[thread()]) {
            return wrong("of section " + std::to_string(what()) + " by thread " +
                         std::to_string(thread()) +
                         "; each thread has the step once before one of them goes on");
        }
        in_section_[thread()] = true;
        --section_left_;
        return "";
    }

    std::string end() const {
        if (section_left_ > 0) return "the last SECTION lacks the step of some threads";
        if (holds_ > 0) return "a thread holds the mutex at the end";
        for (std::size_t block = 0; block < blocks_.size(); ++block) {
            const State state = blocks_[block].state;
            if (state == State::freed) continue;
            return "block " + std::to_string(block) +
                   (state == State::none ? " is never allocated" : " is never freed");
        }
        return "";
    }

    const Columns& columns_;
    std::size_t step_ = 0;
    std::vector<Block> blocks_;
    std::vector<Event> events_;
    std::vector<bool> locked_;
    std::uint32_t holds_ = 0;
    std::int64_t section_ = 0;
    std::uint32_t section_left_ = 0;
    std::vector<bool> in_section_;
};

std::string wrong_counts(const Columns& given) {
    const std::size_t steps = given.ops.size();
    if (given.threads.size() != steps || given.what.size() != steps ||
        given.where.size() != steps) {
        return "the columns of a program have " + std::to_string(steps) + ", " +
               std::to_string(given.threads.size()) + ", " + std::to_string(given.what.size()) +
               " and " + std::to_string(given.where.size()) + " steps; they must be of one length";
    }
    const auto beyond = [](const char* what, std::uint64_t count, std::uint64_t least,
                           std::uint64_t most) {
        return std::string("a program has ") + std::to_string(count) + ' ' + what +
               "; it may have " + std::to_string(least) + " to " + std::to_string(most);
    };
    if (steps > kNobody / 2) return beyond("steps", steps, 0, kNobody / 2);
    if (given.thread_count < 1 || given.thread_count > kMostThreads) {
        return beyond("threads", given.thread_count, 1, kMostThreads);
    }
    if (given.streams > kMostStreams) return beyond("streams", given.streams, 0, kMostStreams);
    if (given.events > kMostEvents) return beyond("events", given.events, 0, kMostEvents);
    if (given.sections < 1) return beyond("sections", given.sections, 1, kNobody);
    return "";
}

}  // namespace

std::optional<Program> Program::make(const Columns& columns, Failure& why) {
    if (std::string wrong = wrong_counts(columns); !wrong.empty()) {
        why = Failure::bad_value(std::move(wrong));
        return std::nullopt;
    }
    Check check(columns);
    if (std::string wrong = check.run(); !wrong.empty()) {
        why = Failure::bad_value(std::move(wrong));
        return std::nullopt;
    }
    Program made;
    made.sizes.assign(columns.sizes.begin(), columns.sizes.end());
    made.streams = columns.streams;
    made.events = columns.events;
    made.sections = columns.sections;
    made.in_turns = columns.in_turns && columns.thread_count > 1;
    made.threads.resize(columns.thread_count);
    const bool by_itself = columns.thread_count > 1 && !columns.in_turns;
    // How often each block and event has been told of, in the order of the steps.
    std::vector<std::uint32_t> told(by_itself ? made.sizes.size() + made.events : 0);
    const std::size_t count = columns.ops.size();
    for (std::size_t index = 0; index < count; ++index) {
        const std::uint16_t thread = columns.threads[index];
        Step step{columns.what[index],
                  columns.where[index],
                  static_cast<std::uint32_t>(index),
                  {},
                  static_cast<Op>(columns.ops[index])};
        if (made.in_turns) {
            step.sync.after = index > 0 && columns.threads[index - 1] != thread;
            step.sync.tells = index + 1 < count && columns.threads[index + 1] != thread;
        } else if (by_itself) {
            const auto what = static_cast<std::size_t>(step.what);
            const bool shared = (of_block(step.op) && check.shared_block(what)) ||
                                (of_event(step.op) && check.shared_event(what));
            if (shared) {
                made.shares = true;
                std::uint32_t& so_far = told[made.slot(step)];
                const bool makes = step.op == Op::allocate || step.op == Op::record;
                if (!makes) step.sync.after = step.op == Op::touch ? 1U : so_far;
                if (makes || step.op == Op::touch) {
                    step.sync.tells = 1;
                    ++so_far;
                }
            }
        }
        made.threads[thread].push_back(step);
    }
    return made;
}

}  // namespace vramkit::lab
