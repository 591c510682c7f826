// Threads of ours in a program that does not know of them.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <functional>
#include <thread>

namespace vramkit::share {

// Runs until the process ends. It takes no signal: those are for the program's own threads. May
// throw std::system_error where the system allows no more threads.
inline void start_quiet_thread(std::function<void()> body) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
        std::thread(std::move(body)).detach();
    } catch (...) {
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        throw;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace vramkit::share
