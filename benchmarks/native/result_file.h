// Writes the results of a benchmark to a file.
#pragma once

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>

#include "base/json.h"
#include "gpu.h"

namespace bench {

using vramkit::Json;

// Replaces the file as a whole; a reader never sees half of it. Throws Failure.
inline void write_file(const std::string& path, std::string_view text) {
    const std::string draft = path + ".part";
    std::ofstream file(draft, std::ios::binary | std::ios::trunc);
    file << text << '\n';
    file.close();
    if (!file || std::rename(draft.c_str(), path.c_str()) != 0) {
        throw Failure("cannot write " + path + ": " + std::strerror(errno));
    }
}

}  // namespace bench
