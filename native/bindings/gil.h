// Letting go of the GIL around driver calls, and taking it again without harm while Python exits.
#pragma once

#include <Python.h>

namespace vramkit {

// A thread that asks for the GIL while the interpreter goes down is ended or frozen by it, in the
// middle of C++ frames that do not survive that (before Python 3.14: std::terminate). So who wants
// the GIL passes this gate. It closes at exit, and exit waits for those who are inside.
class ExitGate {
  public:
    // False once the gate is closed. Otherwise leave() must follow.
    static bool enter();
    static void leave();
    // Called at exit, with the GIL held, by the thread that ends Python.
    static void close();
    // Python exits: what is open now stays open and ends with the process.
    static bool closed();
};

// While this lives, the GIL is free. When Python exits meanwhile, the thread stops at the end of
// this scope for good: it is a daemon thread then, and its driver call is over.
class GilReleased {
  public:
    GilReleased() : state_(PyEval_SaveThread()) {}
    ~GilReleased();
    GilReleased(const GilReleased&) = delete;
    GilReleased& operator=(const GilReleased&) = delete;

  private:
    PyThreadState* state_;
};

// Marks a thread that is inside the gate for as long as it calls Python: exit waits for it, so that
// it may let go of the GIL and take it again.
class InsideGate {
  public:
    InsideGate();
    ~InsideGate();
    InsideGate(const InsideGate&) = delete;
    InsideGate& operator=(const InsideGate&) = delete;

    bool entered() const { return entered_; }

  private:
    bool entered_;
    bool within_another_;
};

}  // namespace vramkit
