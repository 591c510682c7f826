// Releases the GIL around driver calls, and takes it again safely while Python exits.
#pragma once

#include <Python.h>

namespace vramkit {

// A thread that asks for the GIL while the interpreter shuts down is ended or frozen by it, in the
// middle of C++ frames that do not survive that (before Python 3.14: std::terminate). So every
// thread passes this gate before it takes the GIL. The gate closes at exit, and exit waits for the
// threads inside.
class ExitGate {
  public:
    // False once the gate is closed. Otherwise leave() must follow.
    static bool enter();
    static void leave();
    // Called at exit, with the GIL held, by the thread that finalises Python.
    static void close();
    // Python exits: what is still open is not closed any more and ends with the process.
    static bool closed();
};

// The GIL is released for this scope. If Python exits in the meantime, the thread blocks for ever
// at the end of the scope: it is a daemon thread then, and its driver call is over.
class GilReleased {
  public:
    GilReleased() : state_(PyEval_SaveThread()) {}
    ~GilReleased();
    GilReleased(const GilReleased&) = delete;
    GilReleased& operator=(const GilReleased&) = delete;

  private:
    PyThreadState* state_;
};

// Marks a thread that is inside the gate while it calls Python: exit waits for it, so it may
// release the GIL and take it again.
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
