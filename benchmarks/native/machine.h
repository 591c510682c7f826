// What a result says about the machine it was made on.
#pragma once

#include <sys/utsname.h>
#include <unistd.h>

#include <ctime>
#include <fstream>
#include <string>
#include <string_view>

#include "result_file.h"

namespace bench {

// The text behind the first "key ... : " of a file such as /proc/cpuinfo; empty where there is
// none.
inline std::string line_after(const char* path, std::string_view key) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
        if (!line.starts_with(key)) continue;
        const auto colon = line.find(':');
        const auto start = line.find_first_not_of(' ', colon == std::string::npos ? 0 : colon + 1);
        return start == std::string::npos ? "" : line.substr(start);
    }
    return "";
}

// Members "machine" and "date". What Python knows better is added by the drivers of the benchmarks.
inline void write_machine(Json& json) {
    utsname system{};
    uname(&system);
    const std::time_t seconds = std::time(nullptr);
    char date[32];
    std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&seconds));
    json.key("machine").begin_object();
    json.field("cpu", line_after("/proc/cpuinfo", "model name"));
    json.field("cores", static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)));
    // The version alone: what follows it says who built the kernel.
    const std::string_view release = system.release;
    json.field("kernel", std::string(system.sysname) + " " +
                             std::string(release.substr(0, release.find('-'))));
    json.field("nvidia_driver", line_after("/proc/driver/nvidia/version", "NVRM version"));
#ifdef __clang__
    json.field("compiler", __VERSION__);
#else
    json.field("compiler", "g++ " __VERSION__);
#endif
    json.end_object().field("date", date);
}

}  // namespace bench
