#include "share/settings.h"

#include <stdlib.h>

#include <charconv>
#include <string_view>

#include "share/log.h"

namespace vramkit::share {
namespace {

std::string_view variable(const char* name) {
    const char* value = secure_getenv(name);
    return value != nullptr ? value : "";
}

template <class Number>
void read(const char* name, Number& into) {
    const std::string_view text = variable(name);
    if (text.empty()) return;
    Number number{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error == std::errc{} && end == text.data() + text.size()) {
        into = number;
    } else {
        log("%s is '%.*s'; it must be a whole number, and is ignored", name,
            static_cast<int>(text.size()), text.data());
    }
}

Mode mode_of(std::string_view text) {
    if (text == "prefetch") return Mode::prefetch;
    if (text == "paged") return Mode::paged;
    if (text != "swap") {
        log("VRAMKIT_SHARE is '%.*s'; it may be swap, prefetch or paged. swap is used",
            static_cast<int>(text.size()), text.data());
    }
    return Mode::swap;
}

}  // namespace

Settings Settings::from_environment() {
    log_to(variable("VRAMKIT_SHARE_LOG"));
    Settings settings;
    settings.mode = mode_of(variable("VRAMKIT_SHARE"));
    settings.socket = variable("VRAMKIT_SHARE_SOCKET");
    read("VRAMKIT_SHARE_MEMORY", settings.memory);
    read("VRAMKIT_SHARE_WEIGHT", settings.weight_milli);
    read("VRAMKIT_SHARE_PRIORITY", settings.priority);
    read("VRAMKIT_SHARE_HOST_LIMIT", settings.host_limit);
    read("VRAMKIT_SHARE_WINDOW", settings.window);
    read("VRAMKIT_SHARE_CHAOS", settings.chaos);
    settings.ipc = variable("VRAMKIT_SHARE_IPC") == "1";
    return settings;
}

}  // namespace vramkit::share
