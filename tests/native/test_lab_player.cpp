// The lab's native player on the simulated GPU, with the checker on: threads that hand blocks over,
// threads that fail or are stopped, and columns that are no program.
#include <chrono>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gpu.h"
#include "lab/player.h"
#include "lab/program.h"
#include "pool/pool.h"
#include "resources/direct.h"
#include "testing.h"

using namespace vramkit;
using namespace vramkit::lab;

namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::chrono::milliseconds kLook{5};

// One object for the pool and the player: streams are announced to allocators of the same driver.
const std::shared_ptr<Driver>& driver() {
    static const std::shared_ptr<Driver> opened = gpu::open();
    return opened;
}

// Columns that grow step by step.
struct Writer {
    std::vector<std::uint8_t> ops;
    std::vector<std::uint16_t> threads;
    std::vector<std::int64_t> what, sizes;
    std::vector<std::int32_t> where;
    std::uint32_t streams = 4, events = 64, thread_count = 1, sections = 1;
    bool in_turns = false;

    void add(Op op, unsigned thread, std::int64_t about, std::int32_t stream = 0) {
        ops.push_back(static_cast<std::uint8_t>(op));
        threads.push_back(static_cast<std::uint16_t>(thread));
        what.push_back(about);
        where.push_back(stream);
    }
    std::int64_t allocate(unsigned thread, std::uint64_t bytes, std::int32_t stream) {
        sizes.push_back(static_cast<std::int64_t>(bytes));
        add(Op::allocate, thread, static_cast<std::int64_t>(sizes.size()) - 1, stream);
        return static_cast<std::int64_t>(sizes.size()) - 1;
    }
    Columns columns() const {
        return {ops,     threads, what,         where,    sizes,
                streams, events,  thread_count, sections, in_turns};
    }
    Program program() const {
        Failure why;
        std::optional<Program> made = Program::make(columns(), why);
        if (!made) testing::note(false, __FILE__, __LINE__, why.message);
        REQUIRE(made.has_value());
        return std::move(*made);
    }
};

struct Fixture {
    explicit Fixture(std::uint64_t limit = 0, const std::string& checker = "on") {
        gpu::reset_round("data=off,capacity=4GiB,checker=" + checker);
        context = gpu::use_device();
        pool::Config config;
        config.background = false;
        if (limit > 0) config.limit = limit;
        Failure why;
        pool = pool::Pool::open(driver(), 0, context, config, why);
        REQUIRE(pool != nullptr);
        spin = gpu::kernel("vk_spin");
    }
    ~Fixture() {
        Failure why;
        CHECK(pool->close(why));
        CHECK_EQUAL(gpu::text_of(gpu::sim().reports), "[]");
    }
    // True where it came to its end.
    bool play(const Program& program, Played& played, Fault& fault, bool raw = false) {
        Player player(driver(), program, *pool, {context, spin, raw, true});
        player.start();
        while (!player.wait(kLook)) {
        }
        return player.finish(played, fault);
    }
    void play_to_the_end(const Writer& writer, bool raw = false) {
        const Program program = writer.program();
        Played played;
        Fault fault;
        CHECK(play(program, played, fault, raw));
        CHECK_EQUAL(pool->live_bytes(), 0U);
        std::uint64_t frees = 0;
        for (const Times& times : played.sections) frees += times.frees;
        CHECK_EQUAL(frees, writer.sizes.size());
        CHECK(played.peak_held >= played.peak_in_use);
    }

    CUcontext context = nullptr;
    std::shared_ptr<pool::Pool> pool;
    CUfunction spin = nullptr;
};

// Blocks go from thread to thread, each on a stream of its own, in the order of events.
Writer handed_over(int count, unsigned threads, bool in_turns) {
    Writer writer;
    writer.thread_count = threads;
    writer.streams = threads;
    writer.events = static_cast<std::uint32_t>(2 * count);
    writer.in_turns = in_turns;
    for (int number = 0; number < count; ++number) {
        const unsigned maker = static_cast<unsigned>(number) % threads;
        const unsigned user = (maker + 1) % threads;
        const auto on = [](unsigned thread) { return static_cast<std::int32_t>(thread); };
        const std::int64_t block = writer.allocate(maker, 4096U << (number % 10), on(maker));
        writer.add(Op::record, maker, 2 * number, on(maker));
        writer.add(Op::wait, user, 2 * number, on(user));
        writer.add(Op::touch, user, block, on(user));
        writer.add(Op::record, user, 2 * number + 1, on(user));
        writer.add(Op::wait, maker, 2 * number + 1, on(maker));
        writer.add(Op::free, maker, block, number % 3 == 0 ? on(maker) : kOwnStream);
    }
    return writer;
}

}  // namespace

TEST(threads_by_themselves_hand_blocks_over) {
    Fixture fixture;
    for (const bool raw : {false, true}) {
        fixture.play_to_the_end(handed_over(testing::rounds(200, 5000), 4, false), raw);
    }
}

TEST(threads_in_turns_hand_blocks_over) {
    Fixture fixture;
    fixture.play_to_the_end(handed_over(testing::rounds(100, 2000), 4, true));
}

TEST(threads_meet_in_sections_and_share_the_mutex) {
    Fixture fixture;
    Writer writer;
    constexpr unsigned kThreads = 4;
    writer.thread_count = kThreads;
    writer.sections = 3;
    for (int round = 0; round < testing::rounds(20, 500); ++round) {
        for (unsigned thread = 0; thread < kThreads; ++thread) {
            writer.add(Op::section, thread, round % 3);
        }
        for (unsigned thread = 0; thread < kThreads; ++thread) {
            const auto stream = static_cast<std::int32_t>(thread);
            writer.add(Op::lock, thread, 0);
            const std::int64_t block = writer.allocate(thread, kMiB, stream);
            writer.add(Op::touch, thread, block, stream);
            writer.add(Op::unlock, thread, 0);
            writer.add(Op::kernel, thread, 1000, stream);
            writer.add(Op::free, thread, block, stream);
            writer.add(round % 2 == 0 ? Op::wait_for_stream : Op::wait_for_device, thread, 0,
                       stream);
        }
    }
    fixture.play_to_the_end(writer);
}

TEST(a_thread_that_fails_ends_the_others_and_frees_what_is_in_use) {
    Fixture fixture(32 * kMiB);
    for (const bool in_turns : {false, true}) {
        Writer writer = handed_over(50, 4, in_turns);
        const std::int64_t large = writer.allocate(2, 64 * kMiB, 2);
        writer.add(Op::touch, 1, large, 2);
        writer.add(Op::free, 2, large, 2);
        const Program program = writer.program();
        Played played;
        Fault fault;
        CHECK(!fixture.play(program, played, fault));
        CHECK_EQUAL(fault.why.kind, Failure::Kind::out_of_memory);
        CHECK_EQUAL(std::string(fault.method), "malloc");
        CHECK_EQUAL(fault.step, 350);
        CHECK_EQUAL(fixture.pool->live_bytes(), 0U);
    }
}

TEST(a_play_that_is_stopped_leaves_nothing) {
    Fixture fixture;
    const Program program = handed_over(testing::rounds(2000, 20000), 4, false).program();
    for (const int looks : {0, 1, 3}) {
        Player player(driver(), program, *fixture.pool,
                      {fixture.context, fixture.spin, false, false});
        player.start();
        for (int look = 0; look < looks && !player.wait(std::chrono::milliseconds(1)); ++look) {
        }
        player.stop();
        while (!player.wait(kLook)) {
        }
        Played played;
        Fault fault;
        player.finish(played, fault);
        CHECK_EQUAL(fixture.pool->live_bytes(), 0U);
    }
    {
        Player never_awaited(driver(), program, *fixture.pool,
                             {fixture.context, fixture.spin, false, false});
        never_awaited.start();
    }
    CHECK_EQUAL(fixture.pool->live_bytes(), 0U);
    const std::string live = gpu::text_of(gpu::sim().live_objects);
    CHECK(live.find("\"streams\":0") != std::string::npos);
}

TEST(a_program_takes_the_times_of_its_steps) {
    Fixture fixture;
    Writer writer;
    writer.add(Op::kernel, 0, 5000);
    writer.add(Op::wait_for_stream, 0, 0);
    writer.add(Op::section, 0, 1);
    writer.add(Op::kernel, 0, 7000, 1);
    writer.add(Op::wait_for_device, 0, 0);
    writer.sections = 2;
    const Program program = writer.program();
    Played played;
    Fault fault;
    REQUIRE(fixture.play(program, played, fault));
    CHECK_EQUAL(played.walls[0], 5000 + gpu::kLaunchLatency);
    CHECK_EQUAL(played.walls[1], 7000 + gpu::kLaunchLatency);
    CHECK_EQUAL(played.sections[0].wait, played.walls[0]);
    CHECK_EQUAL(played.sections[1].launch, 0.0);
}

// Columns from a good program with some numbers changed: refused, or played to the end. Whether
// what a changed program does is ordered is not the player's business, so the checker is off.
TEST(changed_columns_are_refused_or_played) {
    std::mt19937 random(7);
    const auto below = [&](std::uint32_t most) { return random() % most; };
    Fixture fixture(0, "off");
    int accepted = 0, refused = 0;
    for (int round = 0; round < testing::rounds(400, 4000); ++round) {
        Writer writer = handed_over(6, 3, round % 2 == 0);
        const std::size_t steps = writer.ops.size();
        for (std::uint32_t changes = 1 + below(3); changes > 0; --changes) {
            const std::size_t at = below(static_cast<std::uint32_t>(steps));
            switch (below(6)) {
                case 0:
                    writer.ops[at] = static_cast<std::uint8_t>(below(kOps + 1));
                    break;
                case 1:
                    writer.threads[at] = static_cast<std::uint16_t>(below(4));
                    break;
                case 2:
                    writer.what[at] = static_cast<std::int64_t>(below(14)) - 1;
                    break;
                case 3:
                    writer.where[at] = static_cast<std::int32_t>(below(5)) - 2;
                    break;
                case 4:
                    std::swap(writer.ops[at], writer.ops[(at + 1) % steps]);
                    std::swap(writer.threads[at], writer.threads[(at + 1) % steps]);
                    std::swap(writer.what[at], writer.what[(at + 1) % steps]);
                    break;
                default:
                    writer.sizes[below(6)] = static_cast<std::int64_t>(random()) - (1 << 30);
                    break;
            }
        }
        Failure why;
        const std::optional<Program> program = Program::make(writer.columns(), why);
        if (!program) {
            CHECK(!why.message.empty());
            ++refused;
            continue;
        }
        ++accepted;
        Played played;
        Fault fault;
        if (!fixture.play(*program, played, fault)) {
            CHECK_EQUAL(fault.why.kind, Failure::Kind::out_of_memory);
        }
        CHECK_EQUAL(fixture.pool->live_bytes(), 0U);
    }
    CHECK(accepted > 20);
    CHECK(refused > 20);
}
