// Whether the program can go on by itself.
#pragma once

namespace vramkit::sim {

// True: there was a moment during this call at which every other thread of the process slept until
// another thread, another process or input wakes it. False: one of them ran, was ready to run, or
// slept for a time (which is the program's own business), or the system does not tell.
//
// Reads four small files of /proc for each thread, about 15 us; stops at the first that runs. The
// simulation's lock must not be held: a thread in wait for it would look asleep.
bool program_waits();

}  // namespace vramkit::sim
