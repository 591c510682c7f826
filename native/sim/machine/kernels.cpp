// Five kernels: spin for a time, and four that stream through memory.
#include "sim/machine/kernels.h"

#include <cstring>

namespace vramkit::sim {
namespace {

constexpr std::uint64_t kWord = 4;
constexpr double kNanosecondsPerSecond = 1e9;

// Reads and writes 32-bit words of a range that may be broken into pieces. Pieces are whole pages,
// so no word straddles two.
class Words {
  public:
    explicit Words(const Bytes& bytes) : bytes_(bytes) {}

    template <class Body>
    void each(Body body) const {
        std::uint64_t index = 0;
        for (const auto& piece : bytes_) {
            for (std::size_t at = 0; at + kWord <= piece.size(); at += kWord) {
                std::uint32_t word;
                std::memcpy(&word, piece.data() + at, kWord);
                const std::uint32_t before = word;
                body(index++, word);
                if (word != before) std::memcpy(piece.data() + at, &word, kWord);
            }
        }
    }

  private:
    const Bytes& bytes_;
};

std::vector<std::uint32_t> copy_of(const Bytes& bytes) {
    std::vector<std::uint32_t> words;
    Words(bytes).each([&](std::uint64_t, std::uint32_t& word) { words.push_back(word); });
    return words;
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
     [](const Arguments& a, std::span<const Bytes> ranges) {
         Words(ranges[0]).each(
             [&](std::uint64_t, std::uint32_t& word) { word = static_cast<std::uint32_t>(a[2]); });
     }},
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
     [](const Arguments&, std::span<const Bytes> ranges) {
         const auto left = copy_of(ranges[0]);
         const auto right = copy_of(ranges[1]);
         Words(ranges[2]).each(
             [&](std::uint64_t index, std::uint32_t& word) { word = left[index] + right[index]; });
     }},
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
         for (std::uint64_t round = 0; round < a[2]; ++round) {
             Words(ranges[0]).each(
                 [](std::uint64_t, std::uint32_t& word) { word = word * 1664525u + 1013904223u; });
         }
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
         std::uint64_t sum = 0;
         Words(ranges[0]).each([&](std::uint64_t, std::uint32_t& word) { sum += word; });
         std::uint64_t total;
         std::byte* out = ranges[1][0].data();
         std::memcpy(&total, out, sizeof total);
         total += sum;
         std::memcpy(out, &total, sizeof total);
     }},
};

}  // namespace

const BuiltinKernel* find_kernel(std::string_view name) {
    for (const BuiltinKernel& kernel : kKernels) {
        if (kernel.name == name) return &kernel;
    }
    return nullptr;
}

}  // namespace vramkit::sim
