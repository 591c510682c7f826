// A tool for the tests: what NVTX tells it of memory, kept and judged. Built and loaded by
// test_nvtx.py; the functions at the end are for that test.
#include "pool/nvtx/nvtx_abi.h"

#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <string>

using namespace vramkit::pool::nvtx;

namespace {

std::mutex lock;
std::map<std::uint64_t, std::uint64_t> heaps, regions;  // address -> bytes
std::uint64_t calls = 0;
std::string fault;  // the first
void (*asks)() = nullptr;
int domain;

void require(bool holds, const char* what) {
    if (!holds && fault.empty()) fault = what;
}

// The part of `ranges` that holds the address; the end where none does.
auto around(const std::map<std::uint64_t, std::uint64_t>& ranges, std::uint64_t address) {
    auto after = ranges.upper_bound(address);
    if (after == ranges.begin()) return ranges.end();
    --after;
    return address < after->first + after->second ? after : ranges.end();
}

bool overlaps(const std::map<std::uint64_t, std::uint64_t>& ranges, const Range& range) {
    const auto next = ranges.lower_bound(range.address);
    return around(ranges, range.address) != ranges.end() ||
           (next != ranges.end() && next->first < range.address + range.size);
}

void begin(Domain given) {
    if (asks != nullptr) asks();
    ++calls;
    require(given == &domain, "not the domain that was made");
}

Heap heap_register(Domain given, const HeapDescription* heap) {
    const std::lock_guard guard(lock);
    begin(given);
    require(heap->compatibility == 0x0102 && heap->size == 48 && heap->usage == 1 &&
                heap->type == 1 && heap->range_size == 16,
            "a heap that is not well described");
    require(!overlaps(heaps, *heap->range), "heaps overlap");
    heaps[heap->range->address] = heap->range->size;
    return reinterpret_cast<Heap>(heap->range->address + 1);  // any handle but the address
}

void heap_unregister(Domain given, Heap heap) {
    const std::lock_guard guard(lock);
    begin(given);
    const auto found = heaps.find(reinterpret_cast<std::uint64_t>(heap) - 1);
    require(found != heaps.end(), "no such heap");
    if (found == heaps.end()) return;
    require(!overlaps(regions, {found->second, found->first}), "a heap goes before its regions");
    heaps.erase(found);
}

void regions_register(Domain given, const RegionsToRegister* batch) {
    const std::lock_guard guard(lock);
    begin(given);
    require(batch->compatibility == 0x0102 && batch->size == 48 && batch->type == 1 &&
                batch->range_size == 16,
            "regions that are not well described");
    for (const Range* range = batch->ranges; range != batch->ranges + batch->count; ++range) {
        const auto heap = around(heaps, range->address);
        require(heap != heaps.end() && range->address + range->size <= heap->first + heap->second &&
                    reinterpret_cast<std::uint64_t>(batch->heap) == heap->first + 1,
                "a region that is not in its heap");
        require(!overlaps(regions, *range), "regions overlap");
        regions[range->address] = range->size;
    }
}

void regions_unregister(Domain given, const RegionsToUnregister* batch) {
    const std::lock_guard guard(lock);
    begin(given);
    require(batch->compatibility == 0x0102 && batch->size == 32 && batch->type == 1 &&
                batch->address_size == 8,
            "references that are not well described");
    for (std::size_t i = 0; i < batch->count; ++i) {
        require(regions.erase(batch->addresses[i]) == 1, "no such region");
    }
}

std::size_t copy(const std::map<std::uint64_t, std::uint64_t>& ranges, Range* out,
                 std::size_t room) {
    const std::lock_guard guard(lock);
    for (const auto& [address, bytes] : ranges) {
        if (room-- == 0) break;
        *out++ = {bytes, address};
    }
    return ranges.size();
}

}  // namespace

extern "C" {

int InitializeInjectionNvtx2(TableOf table_of) {
    const auto* const callbacks = static_cast<const CallbackTable*>(table_of(1));
    const auto* const version = static_cast<const VersionTable*>(table_of(3));
    Function** slots = nullptr;
    unsigned count = 0;
    require(table_of(2) == nullptr && callbacks->slots_of(7, &slots, &count) == 0,
            "tables that do not exist");
    require(version->version == 3 && callbacks->slots_of(5, &slots, &count) == 1 && count == 16,
            "the core");
    version->tool_version(3);
    *slots[12] =
        reinterpret_cast<Function>(static_cast<DomainCreate>([](const char* name) -> Domain {
            require(std::strcmp(name, "vramkit") == 0, "the name of the domain");
            return &domain;
        }));
    return 1;
}

int InitializeInjectionNvtxExtension(Module* module) {
    if (module->version != 3 || module->size != 40 || module->number != 1 ||
        module->compatibility != 0x0102 || module->segment_count != 1) {
        return 0;
    }
    std::intptr_t* const slots = module->segments->slots;
    slots[0] = reinterpret_cast<std::intptr_t>(&heap_register);
    slots[1] = reinterpret_cast<std::intptr_t>(&heap_unregister);
    slots[3] = reinterpret_cast<std::intptr_t>(&regions_register);
    slots[5] = reinterpret_cast<std::intptr_t>(&regions_unregister);
    return 1;
}

std::size_t tool_heaps(Range* out, std::size_t room) { return copy(heaps, out, room); }
std::size_t tool_regions(Range* out, std::size_t room) { return copy(regions, out, room); }
std::uint64_t tool_calls() { return calls; }
const char* tool_fault() { return fault.c_str(); }
// Called back with every call, in the middle of it.
void tool_asks(void (*back)()) { asks = back; }
}
