// Controls of the simulated GPU: what its libcuda.so.1 exports beside the driver API.
// All are callable from any thread. Functions that fill a buffer return the number of bytes needed
// (without the final NUL), whatever the capacity was; texts are UTF-8 JSON.
#ifndef VRAMKIT_SIM_CONTROL_H
#define VRAMKIT_SIM_CONTROL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Forgets everything (contexts, memory, work, reports, counts, faults) and starts again with
// settings as in VRAMKIT_SIM: "key=value,key=value". Keys:
//   profile=h200      name beside the library, or a path to a .toml
//   clock=virtual     virtual | wall          scale=1.0    wall clock: simulated seconds a real
//   second checker=on        on | off                data=on      off keeps sizes and times only
//   capacity=4GiB     bytes of device memory  devices=1
//   patience=5        real seconds after which a wait that nothing can end is a deadlock
//   card=NAME         share the card with the user's other processes that name it; wall clock only
//   stacks=off        off | python | native   what a site records beside the return address
//   reports=PATH      where reports are written as JSON at exit and at the next reset, to
//                     PATH.<process>.<reset>; where not given, as in VRAMKIT_SIM
// Returns 0, or non-zero and the reason in error (capacity bytes, always NUL-terminated).
int simReset(const char* settings, char* error, size_t capacity);

// The calling thread's host clock, in nanoseconds since the reset.
double simNow(void);
// Lets the calling thread's host clock run on: host work between driver calls. Returns 0, or 1
// where nothing was done: with the wall clock, and for less than 0, more than the most (a thousand
// million seconds) or what is not a number.
#define SIM_MOST_ADVANCE_NS 1e18
int simAdvance(double nanoseconds);

// The readable host address behind a device address, or null (unmapped, or data=off).
void* simHostAlias(uint64_t address);
// Host code reads or writes [pointer, pointer + bytes): pinned host memory, or an alias. In a host
// function the access is judged at that point of its stream.
void simHostAccess(const void* pointer, size_t bytes, int write);
// A pool hands out or takes back [address, address + bytes) in the order of a stream (0: the legacy
// one, of the card that has the memory).
// An access that begins in a block must end in it.
void simBlockAlloc(uint64_t address, size_t bytes, void* stream);
void simBlockFree(uint64_t address, size_t bytes, void* stream);
// The program has freed the block, and the pool holds it for uses on other streams that were issued
// before: any access that is issued from now on comes too late. simBlockFree follows when those
// uses are over.
void simBlockHold(uint64_t address, size_t bytes, void* stream);
// A pool hands out all of [address, address + bytes) in blocks: an access to what lies in none of
// them is reported. Holds until the memory or the reservation behind it is freed.
void simBlockRegion(uint64_t address, size_t bytes);
// While on, the calling thread knows that cuMemFree, cuMemFreeHost and cuMemHostUnregister wait for
// the work issued before them and relies on it: the checker takes these waits for documented ones.
void simRelyOnWaits(int on);

// {"profile":..., "clock":..., "checker":bool, "data":bool, "capacity":..., "devices":..., ...}, or
// {"error": why VRAMKIT_SIM cannot be used}
size_t simSettings(char* buffer, size_t capacity);
// [{"kind","severity","address","nbytes","first":{...},"second":{...},"advice","count"}], and the
// reset of it
size_t simReports(char* buffer, size_t capacity);
void simClearReports(void);
// Of pairs of call sites only the first 1000 are reported: how many more were seen.
uint64_t simReportsLeftOut(void);
// [{"call","reason","count","thread","location","frames"}]: driver calls that the simulated GPU
// does not have. reason: "missing", by cuGetProcAddress, or "not_supported", by their answer.
size_t simUnsupported(char* buffer, size_t capacity);
// {"cuMemAlloc_v2": 3, ...}: calls made since the reset, by symbol, zero ones left out
size_t simCallCounts(char* buffer, size_t capacity);
void simResetCallCounts(void);
// {"contexts","streams","events","device","pinned","registered","reservations","handles",
// "mappings","modules","pools","pool_blocks","graphs","graph_executables"}
size_t simLiveObjects(char* buffer, size_t capacity);

// {"name","path","capacity","processes":[{"pid","bytes"}]}: the card that processes share,
// with those that live; null where the process has its card to itself
size_t simCard(char* buffer, size_t capacity);

// Spans of what ran are kept while this is on, the newest `limit` of them (0: off).
void simTimelineStart(size_t limit);
// [{"name","engine","device","stream","start_ns","end_ns","bytes"}] in order of start; runs the
// simulation no further than the calling thread's clock.
size_t simTimeline(char* buffer, size_t capacity);

// From now on the nth and the following times-1 calls whose symbol matches the glob take delay_ns
// longer and, where code is not 0, do nothing but return it. The glob is matched with the symbol
// and with the name without its version. Returns 0, or 1 for a bad argument: a glob that no call
// has, too.
int simInject(const char* glob, uint64_t nth, uint64_t times, int code, double delay_ns);
void simClearFaults(void);
// The device is gone: its contexts return this code to every call from now on.
int simLoseDevice(int ordinal, int code);

#ifdef __cplusplus
}
#endif

#endif
