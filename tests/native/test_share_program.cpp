// The library under a program that shares its card, without a gate: contexts that end while its
// threads use them, and a daemon that comes and goes meanwhile. Driver calls can be held up, so
// that each order is made and not waited for.
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <future>
#include <mutex>
#include <string>
#include <thread>

#include "counted_locks.h"
#include "gate/slots.h"
#include "gpu.h"
#include "share/hooks.h"
#include "share/program.h"
#include "share/wire.h"
#include "share/worker.h"

using namespace std::chrono_literals;
using namespace vramkit;
using namespace vramkit::share;

namespace {

constexpr auto kPatience = 20s;     // far above what anything here takes
constexpr auto kNotWithin = 500ms;  // for what must not happen

// Holds up who waits for the card, which ends with a call of cuMemFree.
class HeldUp {
  public:
    static CUresult free_memory(CUdeviceptr pointer) {
        {
            std::unique_lock guard(lock_);
            if (holds_) {
                ++inside_;
                changed_.notify_all();
                changed_.wait(guard, [] { return !holds_; });
            }
        }
        return gpu::cu().cuMemFree_v2(pointer);
    }

    HeldUp() { set(true); }
    ~HeldUp() { set(false); }
    HeldUp(const HeldUp&) = delete;
    HeldUp& operator=(const HeldUp&) = delete;

    // Whether so many are in it before the time is over.
    bool comes_to(int count, std::chrono::milliseconds within) {
        std::unique_lock guard(lock_);
        return changed_.wait_for(guard, within, [count] { return inside_ >= count; });
    }
    void let_go() { set(false); }

  private:
    static void set(bool holds) {
        const std::lock_guard guard(lock_);
        holds_ = holds;
        inside_ = 0;
        changed_.notify_all();
    }

    static inline std::mutex lock_;
    static inline std::condition_variable changed_;
    static inline bool holds_ = false;
    static inline int inside_ = 0;
};

// How much memory graphs have on each card, as the driver says it.
std::atomic<std::uint64_t> graph_bytes{0};

CUresult graph_memory(CUdevice, CUgraphMem_attribute attribute, void* value) {
    if (attribute != CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) return CUDA_ERROR_INVALID_VALUE;
    *static_cast<cuuint64_t*>(value) = graph_bytes.load();
    return CUDA_SUCCESS;
}

const std::string& socket_path() {
    static const gpu::Folder folder;
    static const std::string path = (folder.path / "daemon.sock").string();
    return path;
}

// One for all tests, as in a process.
Program& program() {
    static std::array<std::atomic<void*>, gate::kExports> calls;
    static Program* const made = [] {
        gpu::reset("devices=2");
        setenv("VRAMKIT_SHARE_SOCKET", socket_path().c_str(), 1);
        void* const library = dlopen(VRAMKIT_SIM_PATH, RTLD_NOW);
        REQUIRE(library != nullptr);
        for (std::size_t each = 0; each < gate::kExports; ++each) {
            calls[each].store(dlsym(library, gate::kExportNames[each]));
        }
        calls[gate::number(gate::Export::cuMemFree_v2)].store(
            reinterpret_cast<void*>(&HeldUp::free_memory));
        calls[gate::number(gate::Export::cuDeviceGetGraphMemAttribute)].store(
            reinterpret_cast<void*>(&graph_memory));
        gpu::use_device();
        return &Program::start({library, VRAMKIT_SIM_PATH, calls.data()});
    }();
    return *made;
}

Card& card(CUdevice device) {
    Failure why;
    Card* const opened = program().card(device, why);
    REQUIRE(opened != nullptr);
    return *opened;
}

// Ends the process where what was to come does not: threads hang.
template <class Result>
Result result_of(std::future<Result>& future) {
    if (future.wait_for(kPatience) != std::future_status::ready) {
        std::fprintf(stderr, "a thread hangs\n");
        std::_Exit(1);
    }
    return future.get();
}

// A daemon that says what the test says.
class Daemon {
  public:
    Daemon() {
        unlink(socket_path().c_str());
        listening_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        socket_path().copy(address.sun_path, sizeof address.sun_path - 1);
        REQUIRE(bind(listening_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
        REQUIRE(listen(listening_, 4) == 0);
    }
    ~Daemon() {
        hang_up();
        close(listening_);
        unlink(socket_path().c_str());
    }
    Daemon(const Daemon&) = delete;
    Daemon& operator=(const Daemon&) = delete;

    // Takes the next connection and greets.
    void greet() {
        REQUIRE(readable(listening_));
        connection_ = accept(listening_, nullptr, nullptr);
        hear<wire::hello_message>();
        const int page = memfd_create("page", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        REQUIRE(ftruncate(page, wire::kCreditPageBytes) == 0);
        REQUIRE(fcntl(page, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
        say(wire::welcome_message{wire::kVersion, 1}, page);
        close(page);
    }
    void hang_up() {
        if (connection_ >= 0) close(connection_);
        connection_ = -1;
    }

    template <class Message>
    void say(const Message& message, int descriptor = -1) {
        char frame[wire::kLargestFrame];
        const wire::Header header{sizeof(wire::Header) + sizeof message, Message::kNumber, 0};
        memcpy(frame, &header, sizeof header);
        memcpy(frame + sizeof header, &message, sizeof message);
        iovec bytes{frame, header.length};
        alignas(cmsghdr) char control[CMSG_SPACE(sizeof descriptor)] = {};
        msghdr all{};
        all.msg_iov = &bytes;
        all.msg_iovlen = 1;
        if (descriptor >= 0) {
            all.msg_control = control;
            all.msg_controllen = sizeof control;
            cmsghdr* const first = CMSG_FIRSTHDR(&all);
            first->cmsg_level = SOL_SOCKET;
            first->cmsg_type = SCM_RIGHTS;
            first->cmsg_len = CMSG_LEN(sizeof descriptor);
            memcpy(CMSG_DATA(first), &descriptor, sizeof descriptor);
        }
        CHECK_EQUAL(sendmsg(connection_, &all, MSG_NOSIGNAL), ssize_t(header.length));
    }
    // The next message of this kind; what comes before it is not looked at.
    template <class Message>
    Message hear() {
        for (;;) {
            wire::Header header;
            take(&header, sizeof header);
            std::vector<char> fields(header.length - sizeof header);
            take(fields.data(), fields.size());
            if (header.number != Message::kNumber) continue;
            Message message;
            memcpy(&message, fields.data(), sizeof message);
            return message;
        }
    }
    // Tells a number for a card that the program names.
    void number_card(wire::u32 number) {
        const auto device = hear<wire::device_message>();
        wire::card_message card{};
        card.card = number;
        memcpy(card.uuid, device.uuid, sizeof card.uuid);
        card.budget = card.limit = device.total_bytes;
        say(card);
    }

  private:
    static bool readable(int socket) {
        pollfd waiting{socket, POLLIN, 0};
        return poll(&waiting, 1, 20'000) == 1;
    }
    void take(void* into, std::size_t bytes) {
        auto* at = static_cast<char*>(into);
        while (bytes > 0) {
            REQUIRE(readable(connection_));
            const ssize_t got = recv(connection_, at, bytes, 0);
            REQUIRE(got > 0);
            at += got;
            bytes -= static_cast<std::size_t>(got);
        }
    }

    int listening_ = -1, connection_ = -1;
};

// Whether another thread has the agent's lock for a while.
bool agent_is_busy() {
    std::future<bool> asks = std::async(std::launch::async, [] { return program().say_idle(); });
    const bool busy = asks.wait_for(100ms) != std::future_status::ready;
    static std::vector<std::future<bool>> waiting;
    if (busy) waiting.push_back(std::move(asks));  // ends when the lock is free
    return busy;
}

}  // namespace

TEST(a_reset_waits_for_who_uses_the_card) {
    card(0);
    HeldUp held;
    std::future<bool> waits =
        std::async(std::launch::async, [] { return program().wait_for_work(); });
    REQUIRE(held.comes_to(1, kPatience));
    std::future<bool> resets =
        std::async(std::launch::async, [] { return program().primary_resetting(0); });
    // It would be the second one in the driver.
    CHECK(!held.comes_to(2, kNotWithin));
    held.let_go();
    CHECK(result_of(waits));
    CHECK(result_of(resets));
    CHECK(program().card_if_open(0) == nullptr);
}

TEST(a_card_that_is_opened_again_without_a_daemon_has_all_of_its_memory) {
    const std::uint64_t before = card(0).limit();
    CHECK(program().primary_resetting(0));
    CHECK_EQUAL(card(0).limit(), before);
    CHECK_EQUAL(before, card(0).card_bytes());
}

TEST(a_context_that_ends_waits_for_who_uses_it) {
    card(0);
    CUcontext own = nullptr;
    CHECK_EQUAL(gpu::cu().cuCtxCreate_v2(&own, 0, 0), CUDA_SUCCESS);
    program().context_made(own, 0);
    HeldUp held;
    std::future<bool> waits =
        std::async(std::launch::async, [] { return program().wait_for_work(); });
    REQUIRE(held.comes_to(1, kPatience));
    std::future<bool> ends = std::async(std::launch::async, [own] {
        program().context_ending(own);
        return true;
    });
    CHECK(!held.comes_to(2, kNotWithin));
    held.let_go();
    CHECK(result_of(waits));
    CHECK(result_of(ends));
    CHECK_EQUAL(gpu::cu().cuCtxDestroy_v2(own), CUDA_SUCCESS);
    gpu::use_device();
}

TEST(a_capture_ends_with_its_context) {
    card(0);
    CUcontext own = nullptr;
    CUstream stream = nullptr;
    CHECK_EQUAL(gpu::cu().cuCtxCreate_v2(&own, 0, 0), CUDA_SUCCESS);
    program().context_made(own, 0);
    CHECK_EQUAL(gpu::cu().cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0),
                CUDA_SUCCESS);
    program().capture_begins(stream);
    CHECK(!program().close_gate(1ms));
    program().context_ending(own);
    CHECK(program().close_gate(kPatience));
    program().resume();
    CHECK_EQUAL(gpu::cu().cuCtxDestroy_v2(own), CUDA_SUCCESS);
    gpu::use_device();
}

TEST(a_context_ends_with_the_last_of_its_uses) {
    static int uses = 0;
    const Call<CUresult(CUcontext*, unsigned int)> attach{
        {Export::cuCtxAttach, false}, [](CUcontext* context, unsigned int) {
            ++uses;
            return gpu::cu().cuCtxGetCurrent(context);
        }};
    const Call<CUresult(CUcontext)> detach{
        {Export::cuCtxDetach, false}, [](CUcontext context) {
            CUcontext current = nullptr;
            gpu::cu().cuCtxGetCurrent(&current);
            if (current != context) return CUDA_ERROR_INVALID_CONTEXT;
            return --uses > 0 ? CUDA_SUCCESS : gpu::cu().cuCtxDestroy_v2(context);
        }};
    Card& shared = card(0);
    CUcontext own = nullptr, attached = nullptr;
    CHECK_EQUAL(gpu::cu().cuCtxCreate_v2(&own, 0, 0), CUDA_SUCCESS);
    uses = 1;
    program().context_made(own, 0);
    Failure why;
    const std::uint64_t address = shared.allocate(4096, own, why);
    CHECK_EQUAL(hooks::attach_context(attach, &attached, 0), CUDA_SUCCESS);
    CHECK(attached == own);
    CHECK_EQUAL(hooks::detach_context(detach, own), CUDA_SUCCESS);
    CHECK(shared.find(address).has_value());
    // The driver refuses where it is not current: nothing ends.
    gpu::use_device();
    CHECK_EQUAL(hooks::detach_context(detach, own), CUDA_ERROR_INVALID_CONTEXT);
    CHECK(shared.find(address).has_value());
    CHECK_EQUAL(gpu::cu().cuCtxSetCurrent(own), CUDA_SUCCESS);
    CHECK_EQUAL(hooks::detach_context(detach, own), CUDA_SUCCESS);
    CHECK_EQUAL(uses, 0);
    CHECK(!shared.find(address).has_value());
    CHECK(program().wait_for_work());  // and not for a context that is gone
    gpu::use_device();
}

TEST(managed_memory_above_the_limit_counts_as_all_that_there_is) {
    constexpr std::uint64_t kLimit = std::uint64_t{64} << 20;
    Card& shared = card(0);
    gpu::use_device();
    shared.set_limit(kLimit);
    const Call<CUresult(CUdeviceptr*, size_t, unsigned int)> allocate{
        {Export::cuMemAllocManaged, false}, gpu::cu().cuMemAllocManaged};
    const Call<CUresult(CUdeviceptr)> free{{Export::cuMemFree_v2, false}, gpu::cu().cuMemFree_v2};
    CUdeviceptr pointers[3] = {};
    const std::uint64_t counted[] = {kLimit / 4, kLimit, kLimit};
    for (int index = 0; index < 3; ++index) {
        const std::uint64_t bytes = index == 0 ? kLimit / 4 : 2 * kLimit;
        CHECK_EQUAL(
            hooks::allocate_managed(allocate, &pointers[index], bytes, CU_MEM_ATTACH_GLOBAL),
            CUDA_SUCCESS);
        CHECK_EQUAL(shared.unswappable(), counted[index]);
    }
    for (int index = 2; index >= 0; --index) {
        CHECK_EQUAL(hooks::free_memory(free, pointers[index]), CUDA_SUCCESS);
    }
    CHECK_EQUAL(shared.unswappable(), 0U);
    shared.set_limit(0);
}

// Sanitizers have functions of their own in front of those that are replaced here and below.
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
extern "C" const gate::AddedHooks* vramkitShareStart(const gate::Beneath& beneath);

// What a program calls, with all that stands before the driver: windows end within these launches.
TEST(a_launch_takes_no_lock) {
    using Launch = CUresult(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                            unsigned, CUstream, void**, void**);
    static int launched = 0;
    Launch* const driver = [](CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,
                              unsigned, unsigned, CUstream, void**, void**) {
        ++launched;
        return CUDA_SUCCESS;
    };
    static std::array<std::atomic<void*>, gate::kExports> calls;
    calls[gate::number(Export::cuLaunchKernel)].store(reinterpret_cast<void*>(driver));
    program();
    const gate::AddedHooks* const hooks = vramkitShareStart({nullptr, "", calls.data()});
    Launch* launch = nullptr;
    for (std::size_t each = 0; each < hooks->count; ++each) {
        const gate::AddedHook& hook = hooks->hooks[each];
        if (hook.name == Export::cuLaunchKernel) launch = reinterpret_cast<Launch*>(hook.function);
    }
    REQUIRE(launch != nullptr);
    const auto launch_once = [&] {
        CHECK_EQUAL(launch(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr), CUDA_SUCCESS);
    };
    launch_once();
    const std::uint64_t before = program().launches();
    locks = 0;
    for (int each = 0; each < 1000; ++each) launch_once();
    CHECK_EQUAL(locks, 0);
    CHECK_EQUAL(launched, 1001);
    CHECK(program().launches() > before);  // at the end of each window
    program().say_idle();
    CHECK(locks > 0);  // they are counted
}
#endif

TEST(memory_of_graphs_is_told_and_needs_credits_like_any_other) {
    constexpr std::uint64_t kBytes = std::uint64_t{24} << 20;
    Daemon daemon;
    std::future<bool> opens = std::async(std::launch::async, [] {
        card(0);
        return true;
    });
    daemon.greet();
    daemon.number_card(0);
    result_of(opens);
    const std::uint64_t before = card(0).in_use();
    for (const std::uint64_t bytes : {kBytes, kBytes / 3, std::uint64_t{0}}) {
        graph_bytes.store(bytes);
        while (daemon.hear<wire::usage_message>().unswappable != bytes) {
        }
        CHECK_EQUAL(card(0).in_use(), before + bytes);
        if (bytes == kBytes) CHECK(daemon.hear<wire::need_message>().bytes >= bytes);
    }
}

TEST(a_reset_and_a_daemon_that_comes_back_do_not_wait_for_each_other) {
    Daemon daemon;
    std::future<bool> opens = std::async(std::launch::async, [] {
        card(0);
        card(1);
        return true;
    });
    daemon.greet();
    daemon.number_card(0);
    daemon.number_card(1);
    result_of(opens);

    HeldUp held;
    std::future<bool> resets =
        std::async(std::launch::async, [] { return program().primary_resetting(0); });
    REQUIRE(held.comes_to(1, kPatience));  // nothing moves until it is done
    daemon.hang_up();
    daemon.greet();
    // The program says what it has of the other card: for that it waits until nothing moves.
    int looks = 0;
    while (!agent_is_busy() && ++looks < 2000) std::this_thread::sleep_for(10ms);
    CHECK(looks < 2000);
    held.let_go();
    CHECK(result_of(resets));
    daemon.number_card(1);
}

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
namespace {

std::atomic<bool> no_threads{false};

}  // namespace

extern "C" [[gnu::visibility("default")]] int pthread_create(pthread_t* thread,
                                                             const pthread_attr_t* attributes,
                                                             void* (*body)(void*),
                                                             void* argument) noexcept {
    static auto* const next = decltype(&pthread_create)(dlsym(RTLD_NEXT, "pthread_create"));
    return no_threads.load() ? EAGAIN : next(thread, attributes, body, argument);
}

TEST(a_worker_that_gets_no_thread_has_one_later) {
    Worker& worker = *new Worker;  // its thread never ends
    std::promise<int> done;
    no_threads.store(true);
    CHECK(!worker.start([&done] { done.set_value(1); }));
    CHECK(!worker.is_busy());
    no_threads.store(false);
    CHECK(worker.start([&done] { done.set_value(2); }));
    std::future<int> result = done.get_future();
    CHECK_EQUAL(result_of(result), 2);
}
#endif
