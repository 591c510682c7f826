// /etc/ld.so.cache: where the dynamic linker finds libraries outside its search path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace vramkit::gate {

namespace cache {

constexpr std::string_view kOldMagic = "ld.so-1.7.0";
constexpr std::size_t kOldHeader = 16;
constexpr std::size_t kOldEntry = 12;
constexpr std::size_t kOldCount = 12;  // where the number of entries is
constexpr std::string_view kMagic = "glibc-ld.so.cache1.1";
constexpr std::size_t kHeader = 48;
constexpr std::size_t kEntry = 24;
constexpr std::size_t kCount = 20;

inline std::uint32_t word_at(std::span<const char> bytes, std::size_t offset) {
    std::uint32_t word = 0;
    if (offset + sizeof word <= bytes.size())
        std::memcpy(&word, bytes.data() + offset, sizeof word);
    return word;
}

inline std::string_view text_at(std::span<const char> bytes, std::size_t offset) {
    if (offset >= bytes.size()) return {};
    const char* start = bytes.data() + offset;
    return {start, strnlen(start, bytes.size() - offset)};
}

// An older format may precede this one: it is skipped.
inline std::span<const char> current_format(std::span<const char> bytes) {
    if (std::string_view(bytes.data(), bytes.size()).starts_with(kOldMagic)) {
        const std::size_t old = kOldHeader + std::size_t{word_at(bytes, kOldCount)} * kOldEntry;
        const std::size_t aligned = (old + 7) / 8 * 8;
        if (aligned > bytes.size()) return {};
        bytes = bytes.subspan(aligned);
    }
    return std::string_view(bytes.data(), bytes.size()).starts_with(kMagic)
               ? bytes
               : std::span<const char>{};
}

}  // namespace cache

// Calls found(path) for each entry of this name until it returns true. Contents that are not as
// expected give no entry. Libraries of other processors are among them.
template <class Found>
bool each_cached(std::span<const char> content, std::string_view name, Found found) {
    const std::span<const char> bytes = cache::current_format(content);
    const std::size_t count = cache::word_at(bytes, cache::kCount);
    for (std::size_t index = 0; index < count; ++index) {
        const std::size_t entry = cache::kHeader + index * cache::kEntry;
        if (entry + cache::kEntry > bytes.size()) return false;
        if (cache::text_at(bytes, cache::word_at(bytes, entry + 4)) != name) continue;
        const std::string_view path = cache::text_at(bytes, cache::word_at(bytes, entry + 8));
        if (!path.empty() && found(path)) return true;
    }
    return false;
}

}  // namespace vramkit::gate
