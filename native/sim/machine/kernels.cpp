// Eight kernels: spin for a time, four that stream through memory, two that unpack weights, and one
// that hashes.
#include "sim/machine/kernels.h"

#include <algorithm>
#include <cstring>

#include "sim/machine/unpack.h"
#include "swap/hash.h"
#include "weights/packing.h"

namespace vramkit::sim {
namespace {

constexpr std::uint64_t kWord = 4;
constexpr double kNanosecondsPerSecond = 1e9;
// What memory writes for a single weight.
constexpr std::uint64_t kSector = 32;

// Kernels compute on a copy of 4 KiB at a time. Loops over an array of constant size become vector
// instructions without further options, the ranges may begin at any byte, and the copy stays in the
// first-level cache: memory is what such a kernel waits for.
using Chunk = std::array<std::uint32_t, 1024>;

// Calls body(offset, bytes) for each chunk of a range.
template <class Body>
void each_chunk(Bytes range, Body body) {
    for (std::size_t at = 0; at < range.size(); at += sizeof(Chunk)) {
        body(at, std::min(sizeof(Chunk), range.size() - at));
    }
}

// x -> multiplier * x + increment. Rounds of a sweep combine into one of these.
struct Step {
    std::uint32_t multiplier = 1;
    std::uint32_t increment = 0;

    Step after(const Step& first) const {
        return {multiplier * first.multiplier, multiplier * first.increment + increment};
    }
};

Step repeated(Step step, std::uint64_t rounds) {
    Step all;
    for (; rounds > 0; rounds >>= 1) {
        if ((rounds & 1) != 0) all = step.after(all);
        step = step.after(step);
    }
    return all;
}

void add(Bytes out, Bytes left, Bytes right) {
    Chunk sums{}, more{};
    each_chunk(out, [&](std::size_t at, std::size_t bytes) {
        std::memcpy(sums.data(), left.data() + at, bytes);
        std::memcpy(more.data(), right.data() + at, bytes);
        for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += more[i];
        std::memcpy(out.data() + at, sums.data(), bytes);
    });
}

void sweep(Bytes range, const Step& step) {
    Chunk words{};
    each_chunk(range, [&](std::size_t at, std::size_t bytes) {
        std::memcpy(words.data(), range.data() + at, bytes);
        for (std::uint32_t& word : words) word = word * step.multiplier + step.increment;
        std::memcpy(range.data() + at, words.data(), bytes);
    });
}

std::uint64_t checksum(Bytes range) {
    std::uint64_t sum = 0;
    Chunk words{};
    each_chunk(range, [&](std::size_t at, std::size_t bytes) {
        if (bytes < sizeof words) words.fill(0);
        std::memcpy(words.data(), range.data() + at, bytes);
        for (const std::uint32_t word : words) sum += word;
    });
    return sum;
}

double time_ns(std::uint64_t bytes, double bytes_per_s) {
    return static_cast<double>(bytes) / bytes_per_s * kNanosecondsPerSecond;
}

const BuiltinKernel kKernels[] = {
    {"vk_spin",
     {8},
     [](const Arguments&) { return std::vector<Touch>{}; },
     [](const Arguments& a, const Profile&) { return static_cast<double>(a[0]); },
     [](const Arguments&, std::span<const Bytes>) {}},
    {"vk_fill",
     {8, 8, 4},
     [](const Arguments& a) { return std::vector<Touch>{{a[0], a[1] * kWord, Use::write}}; },
     [](const Arguments& a, const Profile& profile) {
         return time_ns(a[1] * kWord, profile.kernels.fill_bytes_per_s);
     },
     [](const Arguments& a, std::span<const Bytes> ranges) { fill_bytes(ranges[0], a[2], kWord); }},
    {"vk_add",
     {8, 8, 8, 8},
     [](const Arguments& a) {
         const std::uint64_t bytes = a[3] * kWord;
         return std::vector<Touch>{
             {a[1], bytes, Use::read}, {a[2], bytes, Use::read}, {a[0], bytes, Use::write}};
     },
     [](const Arguments& a, const Profile& profile) {
         return time_ns(3 * a[3] * kWord, profile.kernels.add_bytes_per_s);
     },
     [](const Arguments&, std::span<const Bytes> ranges) { add(ranges[2], ranges[0], ranges[1]); }},
    {"vk_sweep",
     {8, 8, 4},
     [](const Arguments& a) {
         const std::uint64_t bytes = a[1] * kWord;
         return std::vector<Touch>{{a[0], bytes, Use::write}};
     },
     [](const Arguments& a, const Profile& profile) {
         return time_ns(2 * a[1] * kWord * a[2], profile.kernels.sweep_bytes_per_s);
     },
     [](const Arguments& a, std::span<const Bytes> ranges) {
         sweep(ranges[0], repeated({1664525u, 1013904223u}, a[2]));
     }},
    {"vk_checksum",
     {8, 8, 8},
     [](const Arguments& a) {
         if (a[1] == 0) return std::vector<Touch>{};
         return std::vector<Touch>{{a[0], a[1] * kWord, Use::read}, {a[2], 8, Use::atomic}};
     },
     [](const Arguments& a, const Profile& profile) {
         return time_ns(a[1] * kWord, profile.kernels.checksum_bytes_per_s);
     },
     [](const Arguments& a, std::span<const Bytes> ranges) {
         if (a[1] == 0) return;
         std::uint64_t total;
         std::byte* out = ranges[1].data();
         std::memcpy(&total, out, sizeof total);
         total += checksum(ranges[0]);
         std::memcpy(out, &total, sizeof total);
     }},
    // Those that unpack are as fast as vk_add: 2.01 TB/s of bf16 by the rate of an H200, where 2.07
    // were measured.
    {"vk_unpack_bf16",
     {8, 8, 8},
     [](const Arguments& a) {
         const std::uint64_t packed = weights::PackedLayout(a[2], 0).positions;
         return std::vector<Touch>{{a[1], packed, Use::read}, {a[0], 2 * a[2], Use::write}};
     },
     [](const Arguments& a, const Profile& profile) {
         const std::uint64_t packed = weights::PackedLayout(a[2], 0).positions;
         return time_ns(packed + 2 * a[2], profile.kernels.add_bytes_per_s);
     },
     [](const Arguments&, std::span<const Bytes> ranges) { unpack_bf16(ranges[1], ranges[0]); }},
    // It writes here and there in all of dst: nobody else may use that at the same time.
    {"vk_patch_bf16",
     {8, 8, 8, 8},
     [](const Arguments& a) {
         if (a[3] == 0) return std::vector<Touch>{};
         const weights::PackedLayout layout(a[2], a[3]);
         return std::vector<Touch>{{a[1] + layout.positions, 4 * a[3], Use::read},
                                   {a[1] + layout.values, 2 * a[3], Use::read},
                                   {a[0], 2 * a[2], Use::write}};
     },
     [](const Arguments& a, const Profile& profile) {
         return time_ns((4 + 2 + kSector) * a[3], profile.kernels.add_bytes_per_s);
     },
     [](const Arguments& a, std::span<const Bytes> ranges) {
         if (a[3] > 0) patch_bf16(ranges[2], ranges[0], ranges[1]);
     }},
    // Which slot a thread adds to is not defined: here all is in the first.
    {"vk_hash128",
     {8, 8, 8},
     [](const Arguments& a) {
         if (a[1] == 0) return std::vector<Touch>{};
         return std::vector<Touch>{{a[0], a[1] * sizeof(std::uint64_t), Use::read},
                                   {a[2], swap::kHashResultBytes, Use::atomic}};
     },
     [](const Arguments& a, const Profile& profile) {
         return time_ns(a[1] * sizeof(std::uint64_t), profile.kernels.checksum_bytes_per_s);
     },
     [](const Arguments& a, std::span<const Bytes> ranges) {
         if (a[1] == 0) return;
         swap::Hash sum;
         std::memcpy(&sum, ranges[1].data(), sizeof sum);
         const swap::Hash added = swap::hash_of(ranges[0]);
         sum.a += added.a;
         sum.b += added.b;
         std::memcpy(ranges[1].data(), &sum, sizeof sum);
     }},
};

}  // namespace

void fill_bytes(Bytes range, std::uint64_t value, unsigned width) {
    // The first bytes one by one, the rest as copies of them from the first-level cache.
    const Bytes pattern = range.first(std::min(range.size(), sizeof(Chunk)));
    for (std::size_t at = 0; at < pattern.size(); at += width) {
        std::memcpy(pattern.data() + at, &value, width);
    }
    each_chunk(range.subspan(pattern.size()), [&](std::size_t at, std::size_t bytes) {
        std::memcpy(range.data() + pattern.size() + at, pattern.data(), bytes);
    });
}

const BuiltinKernel* find_kernel(std::string_view name) {
    for (const BuiltinKernel& kernel : kKernels) {
        if (kernel.name == name) return &kernel;
    }
    return nullptr;
}

}  // namespace vramkit::sim
