// Counts the locks that a thread takes. Sanitizers have a function of their own in front of the one
// that is replaced here: there is nothing to count under them.
#pragma once

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#include <dlfcn.h>
#include <pthread.h>

namespace {

thread_local int locks = 0;

}  // namespace

extern "C" [[gnu::visibility("default")]] int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
    static auto* const next = decltype(&pthread_mutex_lock)(dlsym(RTLD_NEXT, "pthread_mutex_lock"));
    ++locks;
    return next(mutex);
}
#endif
