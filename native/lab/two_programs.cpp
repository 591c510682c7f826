// The two programs: their memory, and each mode's way to move it.
#include "lab/two_programs.h"

#include <algorithm>

#include "base/sizes.h"

namespace vramkit::lab {
namespace {

constexpr std::uint64_t kGranule = std::uint64_t{2} << 20;
constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kEngineAddresses = std::uint64_t{16} << 30;
constexpr unsigned kThreads = 256;

}  // namespace

std::optional<Mode> mode_of(std::string_view name) {
    const auto found = std::find(kModeNames.begin(), kModeNames.end(), name);
    if (found == kModeNames.end()) return std::nullopt;
    return static_cast<Mode>(found - kModeNames.begin());
}

std::uint64_t array_bytes(std::uint64_t program) { return program / 3 / kPage * kPage; }

std::uint64_t footprint(std::uint64_t program) {
    return 3 * ((array_bytes(program) + kGranule - 1) / kGranule * kGranule);
}

bool TwoPrograms::Room::take(std::uint64_t bytes) {
    if (bytes > bytes_) return false;
    bytes_ -= bytes;
    return true;
}

void TwoPrograms::Room::give(std::uint64_t bytes) {
    bytes_ += bytes;
    std::uint64_t missing = 0;
    if (incoming != nullptr && !failed) failed = !incoming->swap_in(*this, missing, why);
}

TwoPrograms::TwoPrograms(const AddingCard& card, Mode mode, std::uint64_t program,
                         std::uint64_t more)
    : card_(card),
      call_(card.driver.call()),
      now_(reinterpret_cast<double (*)()>(card.driver.symbol("simNow"))),
      mode_(mode),
      array_(array_bytes(program)),
      room_(footprint(program) + more) {}

std::unique_ptr<TwoPrograms> TwoPrograms::open(const AddingCard& card, Mode mode,
                                               std::uint64_t program, std::uint64_t more,
                                               Failure& why) {
    const DriverTable& call = card.driver.call();
    if (!card.driver.simulated() || call.cuMemAllocManaged == nullptr ||
        call.cuMemPrefetchAsync == nullptr) {
        why = Failure::no_driver(
            "two programs on one card need the simulated GPU, with managed "
            "memory");
        return nullptr;
    }
    if (array_bytes(program) == 0) {
        why = Failure::bad_value("a program of " + std::to_string(program) +
                                 " bytes; it has three arrays of at least 4096");
        return nullptr;
    }
    std::unique_ptr<TwoPrograms> made(new TwoPrograms(card, mode, program, more));
    if (!made->start(why)) return nullptr;
    return made;
}

TwoPrograms::~TwoPrograms() {
    // A call that failed may have left work behind.
    for (const CUstream stream : {compute_, out_, in_}) {
        if (stream != nullptr) call_.cuStreamSynchronize(stream);
    }
    for (Program& each : programs_) {
        if (each.engine == nullptr) {
            for (const CUdeviceptr array : each.arrays) {
                if (array != 0) call_.cuMemFree_v2(array);
            }
        }
        each.engine.reset();
    }
    for (const CUstream stream : {compute_, out_, in_}) {
        if (stream != nullptr) call_.cuStreamDestroy_v2(stream);
    }
}

bool TwoPrograms::start(Failure& why) {
    for (CUstream* stream : {&compute_, &out_, &in_}) {
        if (failed(call_.cuStreamCreateWithPriority(stream, CU_STREAM_NON_BLOCKING, 0),
                   "cuStreamCreateWithPriority", why)) {
            return false;
        }
    }
    return swaps() ? start_engines(why) : start_managed(why);
}

bool TwoPrograms::start_managed(Failure& why) {
    for (Program& each : programs_) {
        for (CUdeviceptr& array : each.arrays) {
            if (failed(call_.cuMemAllocManaged(&array, array_, CU_MEM_ATTACH_GLOBAL),
                       "cuMemAllocManaged", why)) {
                return false;
            }
        }
    }
    return run(0, 1, why) && run(1, 1, why);
}

bool TwoPrograms::start_engines(Failure& why) {
    swap::Settings settings;
    settings.address_bytes = kEngineAddresses;
    for (Program& each : programs_) {
        each.engine = swap::Engine::open(call_, card_.context, card_.device, settings, why);
        if (each.engine == nullptr || !each.engine->prepare_host(footprint(3 * array_), why)) {
            return false;
        }
        for (CUdeviceptr& array : each.arrays) {
            array = each.engine->allocate(array_, why);
            if (array == 0) return false;
        }
    }
    for (const int which : {0, 1}) {
        std::uint64_t missing = 0;
        if (!program(which).engine->make_resident(0, swap::kEverything, room_, missing, why) ||
            !run(which, 1, why) || (which == 0 && !send_home(which, why))) {
            return false;
        }
    }
    return true;
}

bool TwoPrograms::switch_to(int winner, Failure& why) {
    const int loser = 1 - winner;
    switch (mode_) {
        case Mode::paged:
            return true;
        case Mode::prefetch:
            return prefetch(winner, card_.device, in_, why) && synchronise(in_, why);
        case Mode::prefetch_out_in:
            return send_home(loser, why) && prefetch(winner, card_.device, in_, why) &&
                   synchronise(in_, why);
        case Mode::prefetch_both:
            return prefetch(loser, VRAMKIT_DEVICE_CPU, out_, why) &&
                   prefetch(winner, card_.device, in_, why) && synchronise(out_, why) &&
                   synchronise(in_, why);
        case Mode::swap_out_in:
        case Mode::swap:
            break;
    }
    return swap(*program(loser).engine, *program(winner).engine, why);
}

bool TwoPrograms::run(int which, int launches, Failure& why) {
    auto [left, right, sum] = program(which).arrays;
    std::uint64_t words = array_ / 4;
    void* arguments[] = {&sum, &left, &right, &words};
    for (int i = 0; i < launches; ++i) {
        if (failed(call_.cuLaunchKernel(card_.add, card_.blocks, 1, 1, kThreads, 1, 1, 0, compute_,
                                        arguments, nullptr),
                   "cuLaunchKernel", why)) {
            return false;
        }
    }
    return synchronise(compute_, why);
}

bool TwoPrograms::send_home(int which, Failure& why) {
    if (swaps()) return program(which).engine->swap_out(swap::kEverything, room_, why);
    return prefetch(which, VRAMKIT_DEVICE_CPU, out_, why) && synchronise(out_, why);
}

bool TwoPrograms::prefetch(int which, int place, CUstream stream, Failure& why) {
    for (const CUdeviceptr array : program(which).arrays) {
        if (failed(call_.cuMemPrefetchAsync(array, array_, place, stream), "cuMemPrefetchAsync",
                   why)) {
            return false;
        }
    }
    return true;
}

bool TwoPrograms::synchronise(CUstream stream, Failure& why) {
    return !failed(call_.cuStreamSynchronize(stream), "cuStreamSynchronize", why);
}

bool TwoPrograms::swap(swap::Engine& loser, swap::Engine& winner, Failure& why) {
    std::uint64_t missing = 0;
    if (!winner.swap_in(room_, missing, why)) return false;
    room_.incoming = mode_ == Mode::swap ? &winner : nullptr;
    const bool out = missing == 0 || loser.swap_out(missing, room_, why);
    room_.incoming = nullptr;
    if (room_.failed) {
        why = room_.why;
        return false;
    }
    return out && winner.swap_in(room_, missing, why) && winner.finish(why);
}

}  // namespace vramkit::lab
