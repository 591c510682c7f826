// Reads "key=value,key=value".
#include "sim/control/settings.h"

#include <dlfcn.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>

#include "sim/card/card.h"

namespace vramkit::sim {
namespace {

// Profiles lie beside the library.
std::filesystem::path profile_directory() {
    Dl_info info{};
    if (dladdr(reinterpret_cast<void*>(&profile_directory), &info) == 0) return "profiles";
    return std::filesystem::path(info.dli_fname).parent_path() / "profiles";
}

// "4GiB", "512MiB", "1000": bytes.
std::optional<std::uint64_t> parse_bytes(std::string_view text) {
    double number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || number < 0) return std::nullopt;
    const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
    double factor = 0;
    if (unit.empty()) factor = 1;
    if (unit == "KiB") factor = 1024.0;
    if (unit == "MiB") factor = 1024.0 * 1024;
    if (unit == "GiB") factor = 1024.0 * 1024 * 1024;
    if (factor == 0 || number * factor > 1e15) return std::nullopt;
    return static_cast<std::uint64_t>(number * factor);
}

std::optional<bool> parse_switch(std::string_view text) {
    if (text == "on") return true;
    if (text == "off") return false;
    return std::nullopt;
}

std::string refuse(std::string_view key, std::string_view value, std::string_view allowed) {
    return "setting " + std::string(key) + "=" + std::string(value) + ": allowed is " +
           std::string(allowed);
}

// Empty where the pair was taken, else what is wrong with it.
std::string apply(Settings& settings, std::string_view key, std::string_view value) {
    if (key == "profile") {
        settings.profile_name = value;
        return value.empty() ? refuse(key, value, "a name or a path to a .toml file") : "";
    }
    if (key == "clock") {
        settings.wall_clock = value == "wall";
        return value == "wall" || value == "virtual" ? "" : refuse(key, value, "virtual or wall");
    }
    if (key == "checker" || key == "data") {
        const auto on = parse_switch(value);
        (key == "data" ? settings.data : settings.checker) = on.value_or(true);
        return on ? "" : refuse(key, value, "on or off");
    }
    if (key == "capacity") {
        const auto bytes = parse_bytes(value);
        settings.capacity = bytes.value_or(0);
        return bytes && *bytes > 0 ? "" : refuse(key, value, "bytes, as in 512MiB or 4GiB");
    }
    if (key == "devices") {
        const auto [end, error] =
            std::from_chars(value.data(), value.data() + value.size(), settings.devices);
        const bool good = error == std::errc() && end == value.data() + value.size() &&
                          settings.devices >= 1 && settings.devices <= kMostDevices;
        return good ? "" : refuse(key, value, "1 to " + std::to_string(kMostDevices));
    }
    if (key == "scale") {
        const auto [end, error] =
            std::from_chars(value.data(), value.data() + value.size(), settings.scale);
        const bool good = error == std::errc() && end == value.data() + value.size() &&
                          settings.scale > 0 && settings.scale <= 1e6;
        return good ? "" : refuse(key, value, "a number above 0, at most 1e6");
    }
    if (key == "patience") {
        const auto [end, error] =
            std::from_chars(value.data(), value.data() + value.size(), settings.patience);
        const bool good = error == std::errc() && end == value.data() + value.size() &&
                          settings.patience > 0 && settings.patience <= 1e6;
        return good ? "" : refuse(key, value, "seconds, a number above 0, at most 1e6");
    }
    if (key == "stacks") {
        if (value == "off") settings.stacks = Stacks::off;
        if (value == "python") settings.stacks = Stacks::python;
        if (value == "native") settings.stacks = Stacks::native;
        return value == "off" || value == "python" || value == "native"
                   ? ""
                   : refuse(key, value, "off, python or native");
    }
    if (key == "card") {
        settings.card = value;
        const char* allowed = refuse_card_name(value);
        return allowed == nullptr ? "" : refuse(key, value, allowed);
    }
    if (key == "reports") {
        settings.reports = value;
        return "";
    }
    return "unknown setting '" + std::string(key) +
           "'; known are profile, clock, scale, checker, data, capacity, devices, "
           "patience, stacks, card, reports";
}

}  // namespace

std::variant<Settings, std::string> parse_settings(std::string_view text) {
    Settings settings;
    bool scaled = false;
    while (!text.empty()) {
        const std::string_view pair = text.substr(0, text.find(','));
        text.remove_prefix(std::min(text.size(), pair.size() + 1));
        if (pair.empty()) continue;
        const std::size_t equals = pair.find('=');
        if (equals == std::string_view::npos) {
            return "setting '" + std::string(pair) + "' has no value: write key=value";
        }
        scaled |= pair.substr(0, equals) == "scale";
        const std::string wrong = apply(settings, pair.substr(0, equals), pair.substr(equals + 1));
        if (!wrong.empty()) return wrong;
    }
    if (scaled && !settings.wall_clock) {
        return "setting scale does nothing with the virtual clock: add clock=wall or leave it out";
    }
    if (!settings.card.empty() &&
        (!settings.wall_clock || settings.devices != 1 || settings.scale > kMostCardScale)) {
        return "setting card=" + settings.card +
               ": processes share a card only with clock=wall, devices=1 and a scale of at most " +
               std::to_string(static_cast<int>(kMostCardScale));
    }
    auto profile = find_profile(settings.profile_name, profile_directory());
    if (std::string* error = std::get_if<std::string>(&profile)) return *error;
    settings.profile = std::move(std::get<Profile>(profile));
    if (settings.capacity == 0) {
        settings.capacity = settings.data
                                ? std::min(kMostCapacityWithData, settings.profile.total_memory)
                                : settings.profile.total_memory;
    }
    if (settings.data && settings.capacity > kMostCapacityWithData) {
        return "setting capacity: more than 4GiB needs data=off, which keeps sizes and times only";
    }
    const std::uint64_t granularity = settings.profile.granularity;
    settings.capacity = settings.capacity / granularity * granularity;
    if (settings.capacity == 0) {
        return "setting capacity: less than one page of " + std::to_string(granularity) + " bytes";
    }
    return settings;
}

}  // namespace vramkit::sim
