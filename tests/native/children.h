// Scenarios in child processes, for tests of forks and of the end of a process.
#ifndef VRAMKIT_TESTS_NATIVE_CHILDREN_H
#define VRAMKIT_TESTS_NATIVE_CHILDREN_H

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "testing.h"

namespace children {

inline constexpr unsigned kSecondsToLive = 60;

// Runs a scenario in a child that ends by exit(), so that handlers and destructors run; returns its
// status. A child that hangs is ended by its own alarm.
template <class Scenario>
int status_of(Scenario scenario) {
    std::fflush(nullptr);
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        ::alarm(kSecondsToLive);
        testing::failures_in_test() = 0;
        scenario();
        std::exit(testing::failures_in_test() == 0 ? 0 : 1);
    }
    int status = -1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    return status;
}

inline bool exited_well(int status) {
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return true;
    std::fprintf(stderr, "child: exited %d status %d, signal %d\n", WIFEXITED(status),
                 WIFEXITED(status) ? WEXITSTATUS(status) : -1,
                 WIFSIGNALED(status) ? WTERMSIG(status) : 0);
    return false;
}

}  // namespace children

#endif
