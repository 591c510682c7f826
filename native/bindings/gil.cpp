// The gate that closes when Python exits.
#include "bindings/gil.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace vramkit {
namespace {

// Both sequentially consistent: either exit sees who has entered, or who enters sees the exit.
std::atomic<int> inside{0};
std::atomic<bool> is_closed{false};
// Written before `is_closed`, read after it.
std::thread::id exiting_thread;
thread_local bool calling_python = false;

}  // namespace

bool ExitGate::enter() {
    inside.fetch_add(1);
    if (!is_closed.load()) return true;
    inside.fetch_sub(1);
    return false;
}

void ExitGate::leave() { inside.fetch_sub(1); }

void ExitGate::close() {
    exiting_thread = std::this_thread::get_id();
    is_closed.store(true);
    PyThreadState* const state = PyEval_SaveThread();
    while (inside.load() != 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
    PyEval_RestoreThread(state);
}

bool ExitGate::closed() { return is_closed.load(); }

GilReleased::~GilReleased() {
    if (calling_python) {
        PyEval_RestoreThread(state_);
    } else if (ExitGate::enter()) {
        PyEval_RestoreThread(state_);
        ExitGate::leave();
    } else if (std::this_thread::get_id() == exiting_thread) {
        PyEval_RestoreThread(state_);
    } else {
        for (;;) pause();
    }
}

InsideGate::InsideGate() : entered_(ExitGate::enter()), within_another_(calling_python) {
    calling_python = entered_ || within_another_;
}

InsideGate::~InsideGate() {
    if (!entered_) return;
    calling_python = within_another_;
    ExitGate::leave();
}

}  // namespace vramkit
