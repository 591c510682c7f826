// The part of the NVTX 3 ABI that the pool uses: how a tool is loaded, and the memory extension.
// Layouts and values are NVTX's; its headers are not needed to build.
//
// A tool is a library. The program hands it tables of empty slots, one for each module of NVTX, and
// the tool puts its functions into those it serves.
#pragma once

#include <cstddef>
#include <cstdint>

namespace vramkit::pool::nvtx {

inline constexpr const char* kToolVariable = "NVTX_INJECTION64_PATH";
inline constexpr const char* kCoreEntry = "InitializeInjectionNvtx2";
inline constexpr const char* kExtensionEntry = "InitializeInjectionNvtxExtension";
inline constexpr std::uint16_t kVersion = 3;

using Function = void (*)();

// Core modules: the tool asks for tables by number, and in them for slots.
enum TableNumber : std::uint32_t { kCallbackTable = 1, kVersionTable = 3 };
enum CoreModule : std::uint32_t { kDomains = 5 };
inline constexpr unsigned kCoreModules = 7;
inline constexpr unsigned kMostCoreSlots = 16;
inline constexpr unsigned kCoreSlots[kCoreModules] = {0, 16, 9, 15, 7, 16, 7};  // the first is void
inline constexpr unsigned kDomainCreate = 12;                                   // of kDomains

struct CallbackTable {
    std::size_t size;
    int (*slots_of)(std::uint32_t module, Function*** table, unsigned* count);
};
struct VersionTable {
    std::size_t size;
    std::uint32_t version;
    std::uint32_t reserved;
    void (*tool_version)(std::uint32_t version);
};
using TableOf = const void* (*)(std::uint32_t number);
using InitializeCore = int (*)(TableOf table_of);  // 0: the tool refuses
using Domain = void*;
using DomainCreate = Domain (*)(const char* name);

// Extensions: the slots come with the call.
struct Segment {
    std::size_t number;  // 1: there is one
    std::size_t count;
    std::intptr_t* slots;
};
struct Module {
    std::uint16_t version;
    std::uint16_t size;
    std::uint16_t number;
    std::uint16_t compatibility;
    std::size_t segment_count;
    Segment* segments;
    void* exports;
    const void* more;
};
using InitializeExtension = int (*)(Module* module);  // 0: the tool refuses

// The memory extension. A heap is memory of which only the registered regions may be accessed.
inline constexpr std::uint16_t kMemoryModule = 1;
inline constexpr std::uint16_t kMemoryCompatibility = 0x0102;
inline constexpr std::size_t kMemorySlots = 63;
enum MemorySlot : std::size_t {
    kHeapRegister = 0,
    kHeapUnregister = 1,
    kRegionsRegister = 3,
    kRegionsUnregister = 5,
};
inline constexpr std::uint32_t kSubAllocator = 1;  // how a heap is used
inline constexpr std::uint32_t kVirtualRange = 1;  // what describes a heap or a region
inline constexpr std::uint32_t kByPointer = 1;     // what refers to a region

using Heap = void*;
struct Range {
    std::size_t size;
    std::uint64_t address;
};
struct HeapDescription {
    std::uint16_t compatibility = kMemoryCompatibility;
    std::uint16_t size = sizeof(HeapDescription);
    std::uint32_t reserved = 0;
    std::uint32_t usage = kSubAllocator;
    std::uint32_t type = kVirtualRange;
    std::size_t range_size = sizeof(Range);
    const Range* range = nullptr;
    std::uint32_t category = 0;
    std::uint32_t message_type = 0;
    const void* message = nullptr;
};
struct RegionsToRegister {
    std::uint16_t compatibility = kMemoryCompatibility;
    std::uint16_t size = sizeof(RegionsToRegister);
    std::uint32_t type = kVirtualRange;
    Heap heap = nullptr;
    std::size_t count = 0;
    std::size_t range_size = sizeof(Range);
    const Range* ranges = nullptr;
    void** handles = nullptr;  // not wanted: regions go by their addresses
};
struct RegionsToUnregister {
    std::uint16_t compatibility = kMemoryCompatibility;
    std::uint16_t size = sizeof(RegionsToUnregister);
    std::uint32_t type = kByPointer;
    std::size_t count = 0;
    std::size_t address_size = sizeof(std::uint64_t);
    const std::uint64_t* addresses = nullptr;
};
using HeapRegister = Heap (*)(Domain domain, const HeapDescription* heap);
using HeapUnregister = void (*)(Domain domain, Heap heap);
using RegionsRegister = void (*)(Domain domain, const RegionsToRegister* regions);
using RegionsUnregister = void (*)(Domain domain, const RegionsToUnregister* regions);

static_assert(sizeof(Segment) == 24 && sizeof(Module) == 40);
static_assert(sizeof(Range) == 16 && sizeof(HeapDescription) == 48);
static_assert(sizeof(RegionsToRegister) == 48 && sizeof(RegionsToUnregister) == 32);

}  // namespace vramkit::pool::nvtx
