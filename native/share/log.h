// A log file: the program's own output is never touched.
#pragma once

#include <string_view>

namespace vramkit::share {

// Where VRAMKIT_SHARE_LOG names a file; without one all of this does nothing. A line is one write,
// so that processes can share the file. What cannot be written is lost.
void log_to(std::string_view path);
[[gnu::format(printf, 1, 2)]] void log(const char* format, ...);

}  // namespace vramkit::share
