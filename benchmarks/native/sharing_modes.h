// Two programs that add two arrays into a third, on one simulated card that holds one of them: what
// a switch costs and how much of their turns they compute, by the way their memory moves.
// docs/sharing-model.md has the figures, tests/native/test_sharing_modes.cpp asserts them.
#pragma once

#include <stdlib.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gpu.h"
#include "swap/engine.h"

namespace bench::sharing {

// How the memory of the program whose turn it is comes to the card.
enum class Mode {
    paged,            // managed memory, by page faults of its first launch
    prefetch,         // managed memory, prefetched as the study wrote it: the winner's, no more
    prefetch_out_in,  // the loser's is prefetched to the host first, and then the winner's in
    prefetch_both,    // the same, both at once
    swap_out_in,      // native/swap: out, and then in
    swap,             // native/swap: both at once, by credits
};

inline constexpr Mode kModes[] = {Mode::paged,         Mode::prefetch,    Mode::prefetch_out_in,
                                  Mode::prefetch_both, Mode::swap_out_in, Mode::swap};

inline const char* name(Mode mode) {
    switch (mode) {
        case Mode::paged:
            return "paged";
        case Mode::prefetch:
            return "prefetch, winner only";
        case Mode::prefetch_out_in:
            return "prefetch, out then in";
        case Mode::prefetch_both:
            return "prefetch, both at once";
        case Mode::swap_out_in:
            return "swap, out then in";
        case Mode::swap:
            break;
    }
    return "swap, both at once";
}

struct Machine {
    std::string profile = "memory-sharing";
    // Whether a prefetch to a full card evicts, as documented, or does nothing.
    bool prefetch_evicts = true;
};

inline constexpr std::uint64_t kGranule = 2 * MiB;
inline constexpr std::uint64_t kPage = 4096;

inline std::uint64_t round_up(std::uint64_t value, std::uint64_t to) {
    return (value + to - 1) / to * to;
}

// A third of a program, in whole pages.
inline std::uint64_t array_bytes(std::uint64_t program) { return program / 3 / kPage * kPage; }

// A folder that is removed with everything in it.
class Folder {
  public:
    Folder() {
        std::string pattern = (std::filesystem::temp_directory_path() / "sharing-XXXXXX").string();
        if (::mkdtemp(pattern.data()) == nullptr) throw Failure("cannot make " + pattern);
        path = pattern;
    }
    ~Folder() { std::filesystem::remove_all(path); }
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;

    std::filesystem::path path;
};

// The card holds one program of these bytes, and `more`.
inline std::string settings(const Machine& machine, std::uint64_t program, std::uint64_t more = 0) {
    static const Folder folder;
    std::string profile = machine.profile;
    if (!machine.prefetch_evicts) {
        const auto file = folder.path / "full.toml";
        std::ofstream(file) << "name = \"full\"\nextends = \"" << machine.profile
                            << "\"\n[managed]\nprefetch_evicts = 0\n";
        profile = file.string();
    }
    const std::uint64_t card = 3 * round_up(array_bytes(program), kGranule) + kGranule + more;
    return "profile=" + profile +
           ",clock=virtual,checker=on,data=off,capacity=" + std::to_string(card / MiB) + "MiB";
}

// Bytes of the card that neither engine has.
class Room final : public vramkit::swap::Credits {
  public:
    explicit Room(std::uint64_t bytes) : bytes_(bytes) {}
    bool take(std::uint64_t bytes) override {
        if (bytes > bytes_) return false;
        bytes_ -= bytes;
        return true;
    }
    void give(std::uint64_t bytes) override {
        bytes_ += bytes;
        std::uint64_t missing = 0;
        vramkit::Failure why;
        // The next program comes in with each chunk that the other one frees.
        if (incoming != nullptr && !incoming->swap_in(*this, missing, why)) {
            throw Failure("swapping in failed: " + why.message);
        }
    }

    vramkit::swap::Engine* incoming = nullptr;

  private:
    std::uint64_t bytes_;
};

// Two programs, which have both run: the second one is on the card.
class Pair {
  public:
    Pair(const Gpu& gpu, Mode mode, std::uint64_t program, std::uint64_t more = 0)
        : gpu_(gpu),
          mode_(mode),
          array_(array_bytes(program)),
          room_(3 * round_up(array_, kGranule) + more) {
        GPU_CALL(gpu_, cuStreamCreateWithPriority, &compute_, CU_STREAM_NON_BLOCKING, 0);
        GPU_CALL(gpu_, cuStreamCreateWithPriority, &out_, CU_STREAM_NON_BLOCKING, 0);
        GPU_CALL(gpu_, cuStreamCreateWithPriority, &in_, CU_STREAM_NON_BLOCKING, 0);
        if (swaps()) {
            open_engines();
        } else {
            for (auto& each : programs_) allocate_managed(each);
            for (int each : {0, 1}) run(each, 1);
        }
    }
    ~Pair() {
        for (Program& each : programs_) {
            if (each.engine == nullptr) {
                for (const CUdeviceptr array : each.arrays) gpu_.call().cuMemFree_v2(array);
            }
            each.engine.reset();
        }
        for (const CUstream stream : {compute_, out_, in_}) gpu_.call().cuStreamDestroy_v2(stream);
    }
    Pair(const Pair&) = delete;
    Pair& operator=(const Pair&) = delete;

    // Makes it the turn of a program; the other one is idle. By paging that is nothing: its first
    // launch pays.
    void switch_to(int winner) {
        const int loser = 1 - winner;
        switch (mode_) {
            case Mode::paged:
                return;
            case Mode::prefetch:
                prefetch(winner, 0, in_);
                break;
            case Mode::prefetch_out_in:
                prefetch(loser, VRAMKIT_DEVICE_CPU, out_);
                GPU_CALL(gpu_, cuStreamSynchronize, out_);
                prefetch(winner, 0, in_);
                break;
            case Mode::prefetch_both:
                prefetch(loser, VRAMKIT_DEVICE_CPU, out_);
                prefetch(winner, 0, in_);
                GPU_CALL(gpu_, cuStreamSynchronize, out_);
                break;
            case Mode::swap_out_in:
            case Mode::swap:
                return swap(*programs_[static_cast<std::size_t>(loser)].engine,
                            *programs_[static_cast<std::size_t>(winner)].engine);
        }
        GPU_CALL(gpu_, cuStreamSynchronize, in_);
    }

    // So many launches of a program, and a wait for them.
    void run(int which, int launches) {
        const auto& arrays = programs_[static_cast<std::size_t>(which)].arrays;
        for (int i = 0; i < launches; ++i) {
            gpu_.add(arrays[2], arrays[0], arrays[1], array_ / 4, compute_);
        }
        GPU_CALL(gpu_, cuStreamSynchronize, compute_);
    }

    double seconds() const { return gpu_.now() * 1e-9; }

    // Seconds that a switch adds to the first launch after it.
    double switch_seconds(int winner) {
        run(1 - winner, 1);
        const double warm_begin = seconds();
        run(1 - winner, 1);
        const double begin = seconds();
        switch_to(winner);
        run(winner, 1);
        return (seconds() - begin) - (begin - warm_begin);
    }

    // All pages of a managed program go to the host, and the card is empty of it.
    void send_home(int which) {
        prefetch(which, VRAMKIT_DEVICE_CPU, out_);
        GPU_CALL(gpu_, cuStreamSynchronize, out_);
    }

  private:
    struct Program {
        std::array<CUdeviceptr, 3> arrays{};
        std::unique_ptr<vramkit::swap::Engine> engine;  // null: its memory is managed
    };

    bool swaps() const { return mode_ == Mode::swap || mode_ == Mode::swap_out_in; }

    void allocate_managed(Program& program) {
        const auto allocate = detail::control<CUresult (*)(CUdeviceptr*, std::size_t, unsigned)>(
            gpu_.driver(), "cuMemAllocManaged");
        for (CUdeviceptr& array : program.arrays) {
            gpu_.check(allocate(&array, array_, CU_MEM_ATTACH_GLOBAL), "cuMemAllocManaged");
        }
    }

    void prefetch(int which, int place, CUstream stream) {
        const auto call =
            detail::control<CUresult (*)(CUdeviceptr, std::size_t, CUdevice, CUstream)>(
                gpu_.driver(), "cuMemPrefetchAsync");
        for (const CUdeviceptr array : programs_[static_cast<std::size_t>(which)].arrays) {
            gpu_.check(call(array, array_, place, stream), "cuMemPrefetchAsync");
        }
    }

    static void require(bool done, const vramkit::Failure& why) {
        if (!done) throw Failure("the swap engine failed: " + why.message);
    }

    void open_engines() {
        CUcontext context = nullptr;
        GPU_CALL(gpu_, cuCtxGetCurrent, &context);
        vramkit::swap::Settings settings;
        settings.address_bytes = 16 * GiB;
        vramkit::Failure why;
        for (Program& each : programs_) {
            each.engine = vramkit::swap::Engine::open(gpu_.call(), context, 0, settings, why);
            require(each.engine != nullptr, why);
            require(each.engine->prepare_host(3 * round_up(array_, kGranule), why), why);
            for (CUdeviceptr& array : each.arrays) {
                array = each.engine->allocate(array_, why);
                require(array != 0, why);
            }
        }
        for (int each : {0, 1}) {
            auto& engine = *programs_[static_cast<std::size_t>(each)].engine;
            std::uint64_t missing = 0;
            require(engine.make_resident(0, vramkit::swap::kEverything, room_, missing, why), why);
            run(each, 1);
            if (each == 0) require(engine.swap_out(vramkit::swap::kEverything, room_, why), why);
        }
    }

    void swap(vramkit::swap::Engine& loser, vramkit::swap::Engine& winner) {
        vramkit::Failure why;
        std::uint64_t missing = 0;
        require(winner.swap_in(room_, missing, why), why);
        room_.incoming = mode_ == Mode::swap ? &winner : nullptr;
        if (missing > 0) require(loser.swap_out(missing, room_, why), why);
        room_.incoming = nullptr;
        require(winner.swap_in(room_, missing, why), why);
        require(winner.finish(why), why);
    }

    const Gpu& gpu_;
    const Mode mode_;
    const std::uint64_t array_;
    Room room_;
    std::array<Program, 2> programs_;
    CUstream compute_ = nullptr, out_ = nullptr, in_ = nullptr;
};

// What two programs get done in turns.
struct Progress {
    int launches = 0;
    double seconds = 0;
    double computing = 0;  // seconds of the kernels themselves

    double share() const { return computing / seconds; }
};

// Turns in alternation. A turn ends with the first wait for a window of launches after its quantum:
// what was launched runs to its end.
inline Progress take_turns(Pair& pair, int turns, double quantum, int window, double kernel) {
    Progress progress;
    const double start = pair.seconds();
    for (int turn = 0; turn < turns; ++turn) {
        const double begin = pair.seconds();
        pair.switch_to(turn % 2);
        do {
            pair.run(turn % 2, window);
            progress.launches += window;
        } while (pair.seconds() - begin < quantum);
    }
    progress.seconds = pair.seconds() - start;
    progress.computing = progress.launches * kernel;
    return progress;
}

}  // namespace bench::sharing
