// Checks of settings, for Python and C alike.
#include "pool/config.h"

#include <bit>
#include <string>

namespace vramkit::pool {
namespace {

bool is_outside(std::uint64_t value, std::uint64_t least, std::uint64_t most) {
    return value < least || value > most;
}
bool is_outside_part(double value) { return !(value >= 0 && value < 1); }

std::string refused(const char* name, const std::string& value, const char* allowed) {
    std::string text = name;
    text += " is ";
    text += value;
    text += "; it may be ";
    text += allowed;
    return text;
}

// Empty: all settings are in range.
std::string out_of_range(const Config& config) {
    const auto is = [](const char* name, auto value, const char* allowed) {
        return refused(name, std::to_string(value), allowed);
    };
#define VRAMKIT_NUMBER(name, value, least, most, allowed) \
    if (is_outside(config.name, least, most)) return is(#name, config.name, allowed);
#define VRAMKIT_PART(name, value) \
    if (is_outside_part(config.name)) return is(#name, config.name, "0 or more, below 1");
#define VRAMKIT_CHOICE(name, Type, value)
#define VRAMKIT_FLAG(name, value)
#include "pool/settings.def"
#undef VRAMKIT_NUMBER
#undef VRAMKIT_PART
#undef VRAMKIT_CHOICE
#undef VRAMKIT_FLAG
    if (!std::has_single_bit(config.alignment)) {
        return is("alignment", config.alignment, "a power of two from 256 to 65536");
    }
    if (config.limit != 0 && config.limit < kPage) {
        return is("limit", config.limit, "0 for none, or 2 MiB (one page) or more");
    }
    return "";
}

// Empty: every setting has an effect.
std::string without_effect(const Config& config) {
    const Config usual;
    const auto without = [](const char* name, const char* reason) {
        return std::string(name) + " has no effect " + reason;
    };
    if (config.nvtx && !config.enable_defrag) {
        return without("enable_defrag", "with nvtx, where no memory moves");
    }
    const char* const defrag =
        config.defrag_threshold != usual.defrag_threshold       ? "defrag_threshold"
        : config.defrag_interval_ms != usual.defrag_interval_ms ? "defrag_interval_ms"
                                                                : nullptr;
    if (defrag != nullptr) {
        if (!config.enable_defrag) return without(defrag, "without enable_defrag");
        if (config.nvtx) return without(defrag, "with nvtx, where no memory moves");
    }
    // Either bound alone leaves a thread's caches empty.
    const bool other_thread_bytes = config.thread_cache_bytes != usual.thread_cache_bytes;
    if (config.thread_cache_max_blocks == 0) {
        const char* const reason = "with thread_cache_max_blocks=0: threads keep nothing";
        if (config.cache_bytes != usual.cache_bytes) return without("cache_bytes", reason);
        if (other_thread_bytes) return without("thread_cache_bytes", reason);
    }
    if (config.cache_bytes == 0) {
        const char* const reason = "with cache_bytes=0: threads keep nothing";
        if (config.thread_cache_max_blocks != usual.thread_cache_max_blocks) {
            return without("thread_cache_max_blocks", reason);
        }
        if (other_thread_bytes) return without("thread_cache_bytes", reason);
    }
    if (config.cache_bytes > config.thread_cache_bytes) {
        return "cache_bytes is " + std::to_string(config.cache_bytes) +
               " for one stream, but a thread may keep only thread_cache_bytes, " +
               std::to_string(config.thread_cache_bytes) + ", for all";
    }
    if (config.size_classes == SizeClasses::power_of_two && config.alignment != usual.alignment) {
        return without("alignment", "on classes of powers of two, which are aligned");
    }
    return "";
}

}  // namespace

bool is_valid(const Config& config, Failure& why) {
    std::string reason = out_of_range(config);
    if (reason.empty()) reason = without_effect(config);
    if (reason.empty()) return true;
    why = Failure::bad_value(std::move(reason));
    return false;
}

}  // namespace vramkit::pool
