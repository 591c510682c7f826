// A card that processes share, from inside: what a killed process leaves behind, turns, and the
// discrete-event core that works in turns. The processes' side is in tests/sim/test_cards.py.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "gpu.h"
#include "sim/card/card.h"
#include "sim/control/settings.h"
#include "sim/time/core.h"
#include "testing.h"

namespace {

using namespace vramkit::sim;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr double kMs = 1e6;  // the length of a whole turn, too
constexpr double kLoss = 0.25;

// A folder of cards of this test's own.
struct Cards {
    Cards() { REQUIRE(::setenv("XDG_RUNTIME_DIR", folder.path.c_str(), 1) == 0); }
    ~Cards() { CHECK(gpu::fs::is_empty(folder.path)); }
    gpu::Folder folder;
};

Profile round_profile() {
    auto parsed = parse_profile(gpu::kRoundProfile, "round");
    REQUIRE(std::holds_alternative<Profile>(parsed));
    Profile profile = std::get<Profile>(parsed);
    profile.sharing.time_slice_loss = kLoss;
    return profile;
}

std::unique_ptr<Card> attach(std::uint64_t capacity = 64 * kMiB, double scale = 1) {
    Settings settings;
    settings.profile = round_profile();
    settings.capacity = capacity;
    settings.scale = scale;
    settings.card = "native";
    std::string error;
    auto card = Card::attach(settings, error);
    CHECK_EQUAL(error, "");
    REQUIRE(card != nullptr);
    return card;
}

std::int64_t monotonic_ns() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * std::int64_t{1000000000} + now.tv_nsec;
}

// The file of a card as any process can map it.
SharedCard& mapped(const Card& card) {
    const int file = ::open(card.path().c_str(), O_RDWR | O_CLOEXEC);
    REQUIRE(file >= 0);
    void* at = ::mmap(nullptr, sizeof(SharedCard), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    ::close(file);
    REQUIRE(at != MAP_FAILED);
    return *static_cast<SharedCard*>(at);
}

// Runs a scenario in a child, which tells when it has come to its end and then waits for its own.
class Child {
  public:
    template <class Scenario>
    explicit Child(Scenario scenario) {
        int ends[2];
        REQUIRE(::pipe(ends) == 0);
        std::fflush(nullptr);
        pid_ = ::fork();
        REQUIRE(pid_ >= 0);
        if (pid_ == 0) {
            ::alarm(60);
            const auto tell = [&] { return ::write(ends[1], "x", 1) == 1; };
            scenario(tell);
            for (;;) ::pause();
        }
        char ready = 0;
        CHECK_EQUAL(::read(ends[0], &ready, 1), 1);
        ::close(ends[0]);
        ::close(ends[1]);
    }
    ~Child() {
        kill();
        ::waitpid(pid_, nullptr, 0);
    }
    Child(const Child&) = delete;
    Child& operator=(const Child&) = delete;

    pid_t pid() const { return pid_; }
    // It stays a zombie, as that of a parent who does not look.
    void kill() const {
        ::kill(pid_, SIGKILL);
        siginfo_t ended;
        ::waitid(P_PID, static_cast<id_t>(pid_), &ended, WEXITED | WNOWAIT);
    }

  private:
    pid_t pid_ = -1;
};

std::uint64_t bytes_of_all(Card& card) {
    std::uint64_t sum = 0;
    for (const Card::Share& share : card.shares()) sum += share.bytes;
    return sum;
}

void wait_up_to_200_us(std::mt19937_64& random) {
    std::this_thread::sleep_for(
        std::chrono::microseconds(std::uniform_int_distribution<int>(0, 200)(random)));
}

}  // namespace

TEST(bytes_of_a_killed_process_come_back) {
    const Cards cards;
    const auto card = attach();
    const Child child([&](auto tell) {
        const auto own = attach();
        if (own->take_memory(48 * kMiB)) tell();
        for (;;) ::pause();
    });
    CHECK_EQUAL(card->shares().size(), 2u);
    CHECK_EQUAL(card->free_bytes(), 16 * kMiB);
    CHECK(!card->take_memory(32 * kMiB));
    child.kill();
    CHECK(card->take_memory(64 * kMiB));
    CHECK_EQUAL(card->shares().size(), 1u);
}

TEST(process_killed_while_it_holds_the_mutex_blocks_nobody) {
    const Cards cards;
    const auto card = attach();
    const Child child([&](auto tell) {
        const auto own = attach();
        SharedCard& all = mapped(*own);
        if (own->take_memory(8 * kMiB) && ::pthread_mutex_lock(&all.mutex) == 0) tell();
        for (;;) ::pause();
    });
    child.kill();
    CHECK(card->take_memory(64 * kMiB));
    card->give_memory_back(64 * kMiB);
    CHECK_EQUAL(card->free_bytes(), 64 * kMiB);
    // The mutex is as good as new: for those who come later, too.
    SharedCard& all = mapped(*card);
    REQUIRE(::pthread_mutex_lock(&all.mutex) == 0);
    ::pthread_mutex_unlock(&all.mutex);
    const Child next([&](auto tell) {
        const auto own = attach();
        if (own->take_memory(kMiB)) tell();
        for (;;) ::pause();
    });
    CHECK_EQUAL(card->free_bytes(), 63 * kMiB);
}

TEST(process_killed_at_any_moment_leaves_the_card_whole) {
    const Cards cards;
    const auto card = attach();
    REQUIRE(card->take_memory(16 * kMiB));
    std::mt19937_64 random(7);
    for (int round = 0; round < testing::rounds(40, 1000); ++round) {
        const Child child([&](auto tell) {
            bool told = false;
            for (;;) {
                const auto own = attach();
                for (int i = 0; i < 20; ++i) {
                    if (own->take_memory(48 * kMiB)) own->give_memory_back(48 * kMiB);
                    own->take(Lane::compute, 0, kMs, false);
                }
                if (!std::exchange(told, true)) tell();
            }
        });
        wait_up_to_200_us(random);
        child.kill();
        CHECK_EQUAL(card->free_bytes(), 48 * kMiB);
        CHECK_EQUAL(bytes_of_all(*card), 16 * kMiB);
        CHECK(card->take_memory(48 * kMiB));
        card->give_memory_back(48 * kMiB);
    }
}

TEST(process_killed_while_it_comes_and_goes_leaves_the_way_open) {
    const Cards cards;
    std::mt19937_64 random(8);
    for (int round = 0; round < testing::rounds(40, 1000); ++round) {
        const Child child([&](auto tell) {
            attach();
            tell();
            for (;;) attach();
        });
        wait_up_to_200_us(random);
        child.kill();
        const auto card = attach();
        CHECK_EQUAL(card->free_bytes(), 64 * kMiB);
        CHECK_EQUAL(card->shares().size(), 1u);
    }
}

TEST(processes_that_come_and_go_meet_on_one_file) {
    const Cards cards;
    const int times = testing::rounds(400, 20000);
    std::vector<pid_t> children;
    for (int i = 0; i < 4; ++i) {
        std::fflush(nullptr);
        children.push_back(::fork());
        REQUIRE(children.back() >= 0);
        if (children.back() != 0) continue;
        ::alarm(60);
        for (int time = 0; time < times; ++time) {
            // Whoever is on a card is on the one that others find.
            const auto card = attach();
            if (!gpu::fs::exists(card->path())) ::_exit(1);
        }
        ::_exit(0);
    }
    for (const pid_t child : children) {
        int status = -1;
        ::waitpid(child, &status, 0);
        CHECK_EQUAL(status, 0);
    }
}

TEST(file_that_its_maker_did_not_finish_is_made_again) {
    const Cards cards;
    const std::string path = [] {
        const auto card = attach();
        return card->path();
    }();
    CHECK(!gpu::fs::exists(path));
    gpu::fs::create_directory(gpu::fs::path(path).parent_path());
    gpu::fs::permissions(gpu::fs::path(path).parent_path(), gpu::fs::perms::owner_all);
    std::ofstream(path) << std::string(sizeof(SharedCard), '\0');
    gpu::fs::permissions(path, gpu::fs::perms::owner_read | gpu::fs::perms::owner_write);
    const auto card = attach();
    CHECK_EQUAL(card->free_bytes(), 64 * kMiB);
}

TEST(forked_child_is_no_process_of_the_card) {
    const Cards cards;
    auto card = attach();
    REQUIRE(card->take_memory(kMiB));
    const Child child([&](auto tell) {
        card.reset();
        tell();
    });
    CHECK(gpu::fs::exists(card->path()));
    REQUIRE(card->shares().size() == 1);
    CHECK_EQUAL(card->shares()[0].pid, ::getpid());
    CHECK_EQUAL(card->shares()[0].bytes, kMiB);
}

TEST(more_processes_than_a_card_has_rows_are_refused) {
    const Cards cards;
    std::vector<std::unique_ptr<Card>> all;
    for (std::size_t i = 0; i < kMostCardProcesses; ++i) all.push_back(attach());
    Settings settings;
    settings.profile = round_profile();
    settings.capacity = 64 * kMiB;
    settings.card = "native";
    std::string error;
    CHECK(Card::attach(settings, error) == nullptr);
    CHECK(error.find("256 processes") != std::string::npos);
    all.pop_back();
    all.push_back(attach());
}

namespace {

// Two processes' view of one card, with clocks that began at the same moment.
struct Two {
    explicit Two(double scale = 1)
        : one(attach(64 * kMiB, scale)), other(attach(64 * kMiB, scale)) {
        const std::int64_t now = monotonic_ns();
        one->begin(now);
        other->begin(now);
    }
    Cards cards;
    std::unique_ptr<Card> one, other;
};

bool near(double a, double b) { return std::abs(a - b) <= 4; }

void check_turn(const Turn& turn, double start, double end, double rate = 1) {
    CHECK(near(turn.start, start));
    CHECK(near(turn.end, end));
    CHECK_EQUAL(turn.rate, rate);
}

}  // namespace

TEST(work_of_one_process_has_turns_without_a_gap) {
    const Two two;
    double at = 0;
    for (int i = 0; i < 5; ++i) {
        const Turn turn = two.one->take(Lane::host_to_device, at, 10 * kMs, false);
        CHECK_EQUAL(turn.start, at);  // to the last bit
        CHECK(near(turn.end, at + kMs));
        at = turn.end;
    }
}

TEST(processes_on_one_lane_take_turns) {
    const Two two;
    const Lane lane = Lane::host_to_device;
    check_turn(two.one->take(lane, 0, 10 * kMs, false), 0, kMs);
    check_turn(two.other->take(lane, 0, 10 * kMs, false), kMs, 2 * kMs);
    check_turn(two.one->take(lane, kMs, 10 * kMs, false), 2 * kMs, 3 * kMs);
    check_turn(two.other->take(lane, 2 * kMs, 10 * kMs, false), 3 * kMs, 4 * kMs);
    // A short piece takes what it needs, or a whole turn where more of its kind follows.
    check_turn(two.one->take(lane, 3 * kMs, 0.1 * kMs, false), 4 * kMs, 4.1 * kMs);
    check_turn(two.other->take(lane, 4 * kMs, 0.1 * kMs, true), 4.1 * kMs, 5.1 * kMs);
    check_turn(two.one->take(lane, 9 * kMs, kMs, false), 9 * kMs, 10 * kMs);
}

TEST(computing_in_turn_loses_time_and_copying_does_not) {
    const Two two;
    for (const Lane lane : {Lane::compute, Lane::device_to_host}) {
        const double rate = lane == Lane::compute ? 1 - kLoss : 1;
        check_turn(two.one->take(lane, 0, kMs, false), 0, kMs);
        check_turn(two.other->take(lane, 0, 0.3 * kMs, false), kMs, kMs + 0.3 * kMs / rate, rate);
    }
    // Alone again.
    check_turn(two.other->take(Lane::compute, 5 * kMs, kMs, false), 5 * kMs, 6 * kMs);
}

TEST(rest_of_a_turn_goes_back_unless_the_next_is_taken) {
    const Two two;
    const Lane lane = Lane::on_device;
    const Turn first = two.one->take(lane, 0, kMs, false);
    CHECK(two.one->give_back(lane, first, 0.2 * kMs));
    const Turn second = two.other->take(lane, 0.2 * kMs, kMs, false);
    check_turn(second, 0.2 * kMs, 1.2 * kMs);
    CHECK(!two.one->give_back(lane, first, 0.3 * kMs));
    CHECK(two.one->used_by_others(lane, kMs));
    CHECK(!two.other->used_by_others(lane, kMs));
    CHECK(!two.one->used_by_others(lane, 1.3 * kMs));
    two.one->take(lane, 1.2 * kMs, kMs, false);
    CHECK(!two.other->give_back(lane, second, kMs));
}

TEST(turns_are_as_long_in_real_time_at_any_scale) {
    const Two two(10);
    check_turn(two.one->take(Lane::compute, 0, 100 * kMs, false), 0, 10 * kMs);
    check_turn(two.other->take(Lane::compute, 0, 100 * kMs, false), 10 * kMs, 20 * kMs, 1 - kLoss);
}

TEST(time_that_cannot_be_is_not_believed) {
    const Two two;
    SharedCard& all = mapped(*two.one);
    all.lanes[static_cast<std::size_t>(Lane::compute)] = {1e18, 77};
    check_turn(two.one->take(Lane::compute, 0, kMs, false), 0, kMs);
}

namespace {

// What the core tells of operations that have ended; nothing else happens.
class Ends final : public Effects {
  public:
    void prepare(Operation&) override {}
    void started(Operation&) override {}
    void finished(Operation& operation, double end) override { times[operation.bytes] = end; }
    bool lost(const Operation&) override { return false; }
    bool value_reached(const Operation&) override { return true; }
    void run_host_function(Operation&) override {}

    std::map<std::uint64_t, double> times;  // by the operation's number
};

// Turns as a test wants them: whole ones of 100 ns, each after a wait of `away`.
class Scripted final : public Turns {
  public:
    Turn take(Lane lane, double from, double, bool more) override {
        takes.push_back({lane, more});
        return {from + away, from + away + 100, rate};
    }
    bool give_back(Lane lane, const Turn&, double at) override {
        returns.push_back({lane, at});
        return gives_back;
    }
    bool used_by_others(Lane lane, double) override { return lane == used; }

    double away = 0;
    double rate = 1;
    bool gives_back = true;
    Lane used = Lane::none;
    std::vector<std::pair<Lane, bool>> takes;
    std::vector<std::pair<Lane, double>> returns;
};

struct Work {
    explicit Work(bool shared = true) : core(profile, 1, ends) {
        if (shared) core.share(turns);
    }
    Operation* issue(std::uint64_t number, Lane lane, double work, Operation* after = nullptr) {
        Operation* operation = core.make();
        operation->kind = lane == Lane::compute ? Kind::kernel : Kind::copy;
        operation->lane = lane;
        operation->work = operation->wave = work;
        operation->bytes = number;
        if (after != nullptr) Core::depend(operation, after);
        core.issue(operation);
        return operation;
    }
    double end_of(std::uint64_t number) {
        while (core.step(std::numeric_limits<double>::infinity())) {
        }
        CHECK_EQUAL(core.next(), std::numeric_limits<double>::infinity());
        return ends.times.at(number);
    }

    const Profile profile = round_profile();
    Ends ends;
    Scripted turns;
    Core core;
};

}  // namespace

TEST(core_alone_on_a_shared_card_ends_work_when_it_would_on_its_own) {
    for (const Lane lane : {Lane::host_to_device, Lane::compute, Lane::on_device}) {
        Work shared, own(false);
        for (Work* each : {&shared, &own}) {
            each->issue(1, lane, 1234);
            each->issue(2, lane, 777);
        }
        CHECK_EQUAL(shared.end_of(1), own.end_of(1));
        CHECK_EQUAL(shared.end_of(2), own.end_of(2));
    }
}

TEST(core_works_in_its_turns_only) {
    Work work;
    work.turns.away = 50;
    work.issue(1, Lane::compute, 250);
    // Waits 50, works 100, three times; the third turn is needed for half of it.
    CHECK(near(work.end_of(1), 3 * 50 + 250));
    CHECK_EQUAL(work.turns.takes.size(), 3u);
    REQUIRE(work.turns.returns.size() == 1);
    CHECK(near(work.turns.returns[0].second, 400));
}

TEST(core_works_slower_in_a_turn_that_loses_time) {
    Work work;
    work.turns.rate = 0.5;
    work.issue(1, Lane::compute, 150);
    CHECK(near(work.end_of(1), 300));
}

TEST(core_lets_copies_run_beside_a_wait_for_compute) {
    Work work;
    work.turns.away = 0;
    work.issue(1, Lane::host_to_device, 4000);  // 4 bytes a nanosecond
    work.turns.away = 5000;
    work.issue(2, Lane::compute, 50);
    work.turns.away = 0;
    CHECK(near(work.end_of(1), 1000));
    CHECK(near(work.end_of(2), 5050));
}

TEST(core_copies_at_the_duplex_rate_while_others_use_the_other_direction) {
    Work work;
    work.turns.used = Lane::device_to_host;
    work.issue(1, Lane::host_to_device, 500);
    CHECK(near(work.end_of(1), 500));
}

TEST(core_asks_for_a_whole_turn_where_more_follows) {
    Work work;
    Operation* first = work.issue(1, Lane::compute, 10);
    CHECK_EQUAL(work.turns.takes.back().second, false);
    work.issue(2, Lane::compute, 300, first);
    work.end_of(2);
    // The second kernel begins in the turn of the first where that could not be given back.
    Work kept;
    kept.turns.gives_back = false;
    Operation* before = kept.issue(1, Lane::compute, 10);
    kept.issue(2, Lane::compute, 10, before);
    CHECK(near(kept.end_of(2), 20));
    CHECK_EQUAL(kept.turns.takes.size(), 1u);
}
