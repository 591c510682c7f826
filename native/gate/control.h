// What the gate exports beside the driver API.
#ifndef VRAMKIT_GATE_CONTROL_H
#define VRAMKIT_GATE_CONTROL_H

#ifdef __cplusplus
extern "C" {
#endif

// The library that the gate forwards to, as a handle of dlopen, and its path; opened now if it has
// not been yet. Null where there is none, with the reason in `path`. The texts stay valid.
__attribute__((visibility("default"))) void* gateDriver(const char** path);

// Whether the program's memory is kept by the gate: it may leave the card and come back.
__attribute__((visibility("default"))) int gateKeepsMemory(void);

#ifdef __cplusplus
}
#endif

#endif
