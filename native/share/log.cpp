#include "share/log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

namespace vramkit::share {
namespace {

char path[PATH_MAX];

}  // namespace

void log_to(std::string_view name) {
    if (name.size() >= sizeof path) return;
    memcpy(path, name.data(), name.size());
    path[name.size()] = '\0';
}

// The file is opened for each line: some programs close all descriptors that they do not know.
void log(const char* format, ...) {
    if (path[0] == '\0') return;
    const int error = errno;
    char line[1024];
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    tm local{};
    localtime_r(&now.tv_sec, &local);
    std::size_t size = strftime(line, sizeof line, "%Y-%m-%d %H:%M:%S", &local);
    size += static_cast<std::size_t>(snprintf(line + size, sizeof line - size, ".%03ld [%d] ",
                                              now.tv_nsec / 1'000'000, getpid()));
    va_list arguments;
    va_start(arguments, format);
    const int wanted = vsnprintf(line + size, sizeof line - size - 1, format, arguments);
    va_end(arguments);
    if (wanted > 0) size += static_cast<std::size_t>(wanted);
    if (size > sizeof line - 1) size = sizeof line - 1;
    line[size++] = '\n';
    if (const int file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600); file >= 0) {
        [[maybe_unused]] const ssize_t written = write(file, line, size);
        close(file);
    }
    errno = error;
}

}  // namespace vramkit::share
