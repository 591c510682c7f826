// A swap engine on a fresh simulated card, and a program that uses it.
#ifndef VRAMKIT_TESTS_NATIVE_SWAP_BENCH_H
#define VRAMKIT_TESTS_NATIVE_SWAP_BENCH_H

#include <map>
#include <memory>
#include <random>
#include <string>

#include "pool_bench.h"
#include "swap/engine.h"

namespace swap_bench {

using namespace vramkit;
using bench::Card;
using bench::check_nothing_left;
using bench::check_order;
using bench::kMiB;
using swap::Counters;
using swap::Engine;
using swap::kEverything;
using swap::Settings;
using swap::Usage;

inline constexpr std::uint64_t kGiB = 1024 * kMiB;

// Cards on which bytes are compared, and on which only their order is.
inline constexpr const char* kWithData = "checker=on,data=on,capacity=256MiB";
inline constexpr const char* kOrdered = "checker=on,data=off,capacity=1GiB";

// Bytes of the card that nobody has.
class Free final : public swap::Credits {
  public:
    explicit Free(std::uint64_t from_start) : bytes(from_start) {}
    bool take(std::uint64_t wanted) override {
        if (wanted > bytes) return false;
        bytes -= wanted;
        return true;
    }
    void give(std::uint64_t given) override {
        bytes += given;
        ++gifts;
    }

    std::uint64_t bytes;
    int gifts = 0;
};

// Small chunks and slabs, for tests with few bytes.
inline Settings small() {
    Settings settings;
    settings.address_bytes = 4 * kGiB;
    settings.chunk_bytes = 4 * kMiB;
    settings.host.slab_bytes = 16 * kMiB;
    return settings;
}

// The same with hashes; on a fresh card.
inline Settings hashing() {
    Settings settings = small();
    settings.hash = gpu::kernel("vk_hash128");
    return settings;
}

inline CUmemAccessDesc access_of(CUmemAccess_flags flags, int device = 0) {
    return {{CU_MEM_LOCATION_TYPE_DEVICE, device}, flags};
}

// Addresses that the program has reserved itself.
class Reservation {
  public:
    Reservation(const Card& card, std::uint64_t size) : bytes(size), call_(card.call) {
        CUdeviceptr reserved = 0;
        CHECK_EQUAL(call_.cuMemAddressReserve(&reserved, bytes, 0, 0, 0), CUDA_SUCCESS);
        address = reserved;
    }
    ~Reservation() { CHECK_EQUAL(call_.cuMemAddressFree(address, bytes), CUDA_SUCCESS); }
    Reservation(const Reservation&) = delete;
    Reservation& operator=(const Reservation&) = delete;

    std::uint64_t address = 0;
    const std::uint64_t bytes;

  private:
    const DriverTable& call_;
};

inline std::unique_ptr<Engine> open_engine(const Card& card, const Settings& settings) {
    Failure why;
    auto engine = Engine::open(card.call, card.context, 0, settings, why);
    if (engine == nullptr) CHECK_EQUAL(why.message + std::string(why.call), "an engine");
    REQUIRE(engine != nullptr);
    return engine;
}

inline void check_whole(const Engine& engine) { CHECK_EQUAL(engine.broken_invariant(), ""); }

// A program: its allocations, what is in them, and the credits of the card. Each helper fails the
// test where the engine does.
class Program {
  public:
    Program(const Card& on, const Settings& settings, std::uint64_t card_bytes)
        : card(on), credits(card_bytes), engine(open_engine(on, settings)) {
        stream = gpu::make_stream();
        fill_ = gpu::kernel("vk_fill");
        engine_bytes_ = card_bytes;
    }
    ~Program() {
        CHECK_EQUAL(card.call.cuStreamSynchronize(stream), CUDA_SUCCESS);
        engine.reset();
        CHECK_EQUAL(card.call.cuStreamDestroy_v2(stream), CUDA_SUCCESS);
    }
    Program(const Program&) = delete;
    Program& operator=(const Program&) = delete;

    std::uint64_t allocate(std::uint64_t bytes) {
        Failure why;
        const std::uint64_t address = engine->allocate(bytes, why);
        if (address == 0) CHECK_EQUAL(why.message, "an address");
        return address;
    }
    void free(std::uint64_t address) {
        std::uint64_t freed = 0;
        Failure why;
        CHECK(engine->free(address, freed, why));
        credits.give(freed);
    }
    std::uint64_t create(std::uint64_t bytes) {
        Failure why;
        const std::uint64_t id = engine->create(bytes, why);
        if (id == 0) CHECK_EQUAL(why.message, "a handle");
        return id;
    }
    void release(std::uint64_t id) {
        std::uint64_t freed = 0;
        Failure why;
        if (!engine->release(id, freed, why)) CHECK_EQUAL(why.message, "released");
        credits.give(freed);
    }
    // With access for its own device.
    void map(std::uint64_t id, std::uint64_t address, std::uint64_t bytes) {
        Failure why;
        if (!engine->map(id, address, bytes, why)) CHECK_EQUAL(why.message, "mapped");
        allow(address, bytes, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    }
    void allow(std::uint64_t address, std::uint64_t bytes, CUmemAccess_flags flags) {
        const CUmemAccessDesc access = access_of(flags);
        Failure why;
        if (!engine->set_access(address, bytes, {&access, 1}, why)) {
            CHECK_EQUAL(why.message, "allowed");
        }
    }
    void unmap(std::uint64_t address, std::uint64_t bytes) {
        std::uint64_t freed = 0;
        Failure why;
        if (!engine->unmap(address, bytes, freed, why)) CHECK_EQUAL(why.message, "unmapped");
        credits.give(freed);
    }
    // What a launch needs: returns what credits did not suffice for.
    std::uint64_t make_all_resident() {
        std::uint64_t missing = 0;
        Failure why;
        if (!engine->make_all_resident(credits, missing, why)) CHECK_EQUAL(why.message, "resident");
        if (!engine->finish(why)) CHECK_EQUAL(why.message, "finished");
        CHECK_EQUAL(engine->bytes_to_come(), missing);
        return missing;
    }
    void make_resident(std::uint64_t address, std::uint64_t bytes) {
        std::uint64_t missing = 0;
        Failure why;
        if (!engine->make_resident(address, bytes, credits, missing, why)) {
            CHECK_EQUAL(why.message, "resident");
        }
        CHECK_EQUAL(missing, 0U);
    }
    void swap_out(std::uint64_t bytes = kEverything) {
        Failure why;
        if (!engine->swap_out(bytes, credits, why)) CHECK_EQUAL(why.message, "swapped out");
    }
    // Returns what credits did not suffice for.
    std::uint64_t swap_in() {
        std::uint64_t missing = 0;
        Failure why;
        if (!engine->swap_in(credits, missing, why)) CHECK_EQUAL(why.message, "swapped in");
        if (!engine->finish(why)) CHECK_EQUAL(why.message, "finished");
        return missing;
    }
    void synchronize() const { CHECK_EQUAL(card.call.cuStreamSynchronize(stream), CUDA_SUCCESS); }

    // Work of the program, which does not wait for it: words of a range get a value.
    void write(std::uint64_t address, std::uint64_t bytes, std::uint32_t value) {
        std::uint64_t words = bytes / 4;
        void* parameters[] = {&address, &words, &value};
        CHECK_EQUAL(
            card.call.cuLaunchKernel(fill_, 4, 1, 1, 256, 1, 1, 0, stream, parameters, nullptr),
            CUDA_SUCCESS);
    }
    // Whether the range, which is resident, has the value; work must be done.
    static bool has(std::uint64_t address, std::uint64_t bytes, std::uint32_t value) {
        const auto* const words = static_cast<const std::uint32_t*>(gpu::sim().host_alias(address));
        if (words == nullptr) return false;
        for (std::uint64_t word = 0; word < bytes / 4; ++word) {
            if (words[word] != value) return false;
        }
        return true;
    }
    // What the engine uses of the card is what it took credits for.
    void check_credits() const {
        CHECK_EQUAL(credits.bytes + engine->counters().card_bytes, engine_bytes_);
    }

    const Card& card;
    Free credits;
    std::unique_ptr<Engine> engine;
    CUstream stream = nullptr;

  private:
    CUfunction fill_ = nullptr;
    std::uint64_t engine_bytes_ = 0;
};

}  // namespace swap_bench

#endif
